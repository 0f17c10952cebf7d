"""Judge passages by whether they contain an answer, as DPR evaluates Natural Questions.

A passage is relevant if its text, without the title, has the tokens of one of the answers in a row. Tokens are those of
DPR: letters, digits and marks of any script, or one other character; after Unicode's decomposition (NFD), in small letters.
Success@k over these judgements is the "top-k accuracy" (R@k) of DPR, of pyserini's evaluator and of arXiv 2208.00231.

Source: Karpukhin et al., "Dense passage retrieval for open-domain question answering" (EMNLP 2020), and its released code.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import open_corpus
from starbucks_retrieval.data.fields import QUERY_ID, QUERY_TEXT
from starbucks_retrieval.data.formats import find_reader
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.measures import Qrels, Run

MEASURES = "Success@20 Success@100"
_NOTHING = "no passage"  # judged for a query that no run has results for, so that it counts
Answers = Mapping[str, Sequence[str]]


def read_answers(path: str | Path) -> dict[str, list[str]]:
    """Read the answers of questions.

    Args:
        path: Rows with `query_id` (or `_id`) and `answers` or `answer`, a list of texts or one of them in JSON; without an
            id, the query's text is its id. Any format of rows (jsonl, tsv or csv with a header, Parquet).

    Raises:
        UserError: The file is missing or empty, or a row has no question or no answers.

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
    found: dict[str, list[str]] = {}
    for number, row in find_reader(file)(file, 0, None, {2: ("query_id", "answers")}):
        query = next((row[name] for name in (*QUERY_ID, *QUERY_TEXT, "question") if row.get(name) is not None), None)
        answers = _list_of(row.get("answers", row.get("answer")))
        if query is None or not answers:
            missing = "no question" if query is None else "no answers"
            raise UserError(
                f"{path}:{number}: {missing}",
                'write {"query_id": "1", "answers": ["Ada Lovelace"]}, or a tsv with a header',
            )
        found[str(query)] = answers
    if not found:
        raise UserError(f"{path} has no questions", "name a file with the columns query_id and answers")
    return found


def _list_of(value: Any) -> list[str]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [one for one in values if isinstance(one, str) and one.strip()]


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Return whether a text has the tokens of one of the answers in a row.

    Args:
        text: A passage, without its title.
        answers: Texts. Case and white space do not matter; an answer without tokens matches nothing.

    Example:
        >>> has_answer("It was written by Ada  LOVELACE.", ["ada lovelace"]), has_answer("Adamant", ["Ada"])
        (True, False)
    """
    tokens = f" {_tokens(text)} "
    return any(found in tokens for answer in answers if (found := f" {_tokens(answer)} ").strip())


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
