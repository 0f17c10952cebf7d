"""Run files: TREC's six columns, the one currency between search and evaluate; and two other layouts to write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, SupportsFloat

from starbucks_retrieval.data.run_reader import Run, RunFile, open_run, read_run, read_tag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer

__all__ = ["Run", "RunFile", "SaveFormat", "open_run", "read_run", "read_tag", "write_run"]

SaveFormat = Literal["trec", "msmarco", "tevatron"]


def write_run(
    path: str | Path,
    rows: Iterable[tuple[str, Iterable[tuple[str, SupportsFloat]]]],
    tag: str,
    save_format: SaveFormat = "trec",
) -> None:
    """Write (query id, [(docid, score), …] in rank order) as a run, gzip if `path` ends in .gz; whole or not at all.

    Formats: trec (six columns, ranks from 1), msmarco (query, document, rank), tevatron (query, document, score).
    Scores read back as they were: float32 in nine digits, Python floats in as many as they need. Raises UserError for
    an id that the format cannot hold and for a score that is not finite.
    """
    if save_format not in _LINES:
        raise UserError(f"no run format {save_format!r}", f"take one of {', '.join(_LINES)}")
    line, clean = _LINES[save_format], _word if save_format == "trec" else _cell
    clean(tag, "tag")
    with atomic_writer(Path(path).expanduser()) as out:
        for query_id, results in rows:
            clean(query_id, "query id")
            lines = []
            for rank, (docid, score) in enumerate(results, 1):
                clean(docid, "document id")
                lines.append(line(query_id, docid, rank, _number(score, query_id, docid), tag))
            out.write("".join(lines).encode("utf-8"))


def _trec(query_id: str, docid: str, rank: int, score: str, tag: str) -> str:
    return f"{query_id} Q0 {docid} {rank} {score} {tag}\n"


def _msmarco(query_id: str, docid: str, rank: int, score: str, tag: str) -> str:
    return f"{query_id}\t{docid}\t{rank}\n"


def _tevatron(query_id: str, docid: str, rank: int, score: str, tag: str) -> str:
    return f"{query_id}\t{docid}\t{score}\n"


_LINES: dict[str, Callable[[str, str, int, str, str], str]] = {
    "trec": _trec,
    "msmarco": _msmarco,
    "tevatron": _tevatron,
}


def _number(score: SupportsFloat, query_id: str, docid: str) -> str:
    exact = float(score)
    if not math.isfinite(exact):
        raise UserError(
            f"query {query_id!r} and document {docid!r} have the score {exact}", "check the vectors for NaN"
        )
    # Nine digits tell any two float32 apart; a float64 needs up to seventeen.
    return repr(exact) if isinstance(score, float) else f"{exact:.9g}"


def _word(name: str, what: str) -> None:
    if name.split() != [name]:
        raise UserError(
            f"the {what} {name!r} is empty or holds white space, which separates the columns of a TREC run",
            "rename it, or take --save_format tevatron, whose columns are separated by tabs",
        )


def _cell(name: str, what: str) -> None:
    if not name or any(character in name for character in "\t\n\r"):
        raise UserError(f"the {what} {name!r} is empty or holds a tab or line break", "rename it")
