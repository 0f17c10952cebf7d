"""Judge passages by whether they contain an answer, as DPR evaluates Natural Questions.

A passage is relevant if its text, without the title, has the tokens of one of the answers in a row. Tokens are those of
DPR: letters, digits and marks of any script, or one other character; after Unicode's decomposition (NFD), in small letters.
Answers can also be patterns, regular expressions that are searched in the text, as for CuratedTREC (`--match regex` of DPR).
Success@k over these judgements is the "top-k accuracy" (R@k) of DPR, of pyserini's evaluator and of arXiv 2208.00231.

Source: Karpukhin et al., "Dense passage retrieval for open-domain question answering" (EMNLP 2020), and its released code.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from starbucks_retrieval.data import open_corpus
from starbucks_retrieval.data.fields import ANSWERS, PATTERNS, QUERY_ID, QUERY_TEXT
from starbucks_retrieval.data.formats import find_reader
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.measures import Qrels, Run

if TYPE_CHECKING:
    import regex

MEASURES = "Success@20 Success@100"
_NOTHING = "no passage"  # judged for a query that no run has results for, so that it counts
Answer: TypeAlias = "str | regex.Pattern[str]"
Answers = Mapping[str, Sequence[Answer]]


def read_answers(path: str | Path) -> dict[str, list[Answer]]:
    """Read the answers of questions.

    Args:
        path: Rows with `query_id` (or `_id`) and `answers` or `answer`, a list of texts or one of them in JSON, or instead
            `patterns`, regular expressions; without an id, the query's text is its id. Any format of rows (jsonl, tsv or
            csv with a header, Parquet).

    Returns:
        The answers by query id: texts, or compiled patterns.

    Raises:
        UserError: The file is missing or empty, a row has no question or no answers, or a pattern is no regular expression.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "nq.jsonl").write_text('{"query_id": "1", "answers": ["Ada Lovelace", "Lovelace"]}')
        ...     read_answers(f"{folder}/nq.jsonl")
        {'1': ['Ada Lovelace', 'Lovelace']}
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"no file {path}", "name a file with the columns query_id and answers: --answers")
    found: dict[str, list[Answer]] = {}
    for number, row in find_reader(file)(file, 0, None, {2: ("query_id", "answers")}):
        query = next((row[name] for name in (*QUERY_ID, *QUERY_TEXT, "question") if row.get(name) is not None), None)
        patterns = row.get(PATTERNS) is not None
        names = [PATTERNS] if patterns else ANSWERS
        answers = _list_of(next((row[name] for name in names if name in row), None), patterns)
        if query is None or not answers:
            missing = "no question" if query is None else "no answers"
            raise UserError(
                f"{path}:{number}: {missing}",
                'write {"query_id": "1", "answers": ["Ada Lovelace"]}, or a tsv with a header',
            )
        found[str(query)] = [_compile(one, f"{path}:{number}") for one in answers] if patterns else [*answers]
    if not found:
        raise UserError(f"{path} has no questions", "name a file with the columns query_id and answers")
    return found


def _list_of(value: Any, patterns: bool) -> list[str]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            if not patterns:  # which can begin like this
                return []
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [one for one in values if isinstance(one, str) and one.strip()]


def _compile(pattern: str, where: str) -> regex.Pattern[str]:
    import regex

    try:
        return regex.compile(unicodedata.normalize("NFD", pattern), regex.IGNORECASE | regex.MULTILINE)
    except regex.error as error:
        problem = f"{where}: {pattern!r} is no regular expression: {error}"
        raise UserError(problem, "correct it, or leave it out: DPR's evaluation ignores it") from None


def has_answer(text: str, answers: Iterable[Answer]) -> bool:
    """Return whether a text has the tokens of one of the answers in a row, or one of the patterns matches in it.

    Args:
        text: A passage, without its title.
        answers: Texts, or patterns that `read_answers` compiled. Case does not matter, and the white space of texts does
            not; an answer without tokens matches nothing.

    Example:
        >>> has_answer("It was written by Ada  LOVELACE.", ["ada lovelace"]), has_answer("Adamant", ["Ada"])
        (True, False)
    """
    decomposed = unicodedata.normalize("NFD", text)
    tokens = f" {_tokens(decomposed)} "
    return any(_matches(answer, decomposed, tokens) for answer in answers)


def _matches(answer: Answer, text: str, tokens: str) -> bool:
    if not isinstance(answer, str):
        return answer.search(text) is not None
    wanted = f" {_tokens(answer)} "
    return bool(wanted.strip()) and wanted in tokens


def _tokens(text: str) -> str:
    """Return DPR's tokens, separated by spaces, which no token holds."""
    import regex

    words = regex.findall(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]", unicodedata.normalize("NFD", text))
    return " ".join(words).lower()


def judge_by_answers(runs: Iterable[Run], answers: Answers, corpus: str, depth: int | None) -> Qrels:
    """Judge the results of runs by the answers.

    Args:
        runs: {query id: {docid: score}}.
        answers: The answers by query id.
        corpus: The passages; only those among the results are kept in memory.
        depth: Results of a query that are judged, the best ones; None for all.

    Returns:
        Grade 1 for a passage with an answer, 0 for one without; every question has a judgement.

    Raises:
        UserError: The corpus cannot be read, or lacks a passage of a run.
    """
    wanted: dict[str, set[str]] = {}
    for run in runs:
        for query, scores in run.items():
            if query in answers:
                # As many as depth, and those that tie with the last one.
                last = sorted(scores.values(), reverse=True)[:depth][-1:]
                for docid, score in scores.items():
                    if last and score >= last[0]:
                        wanted.setdefault(docid, set()).add(query)
    qrels: dict[str, dict[str, int]] = {query: {} for query in answers}
    missing = set(wanted)
    for passage in open_corpus(corpus):
        if passage.docid in missing:
            missing.discard(passage.docid)
            for query in wanted[passage.docid]:
                qrels[query][passage.docid] = int(has_answer(passage.text, answers[query]))
    if missing:
        raise UserError(
            f"{corpus} lacks {len(missing)} passages of the runs, e.g. {min(missing)!r}",
            "name the corpus that was searched",
        )
    return {query: grades or {_NOTHING: 0} for query, grades in qrels.items()}
