"""Write runs in TREC's six columns, or in the layouts of MS MARCO and Tevatron."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, SupportsFloat

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer

SaveFormat = Literal["trec", "msmarco", "tevatron"]

# Functions, since str.format took a tenth of the time of a search in a small store.
_LINES: dict[str, Callable[[str, str, int, str, str], str]] = {
    "trec": lambda query_id, docid, rank, score, tag: f"{query_id} Q0 {docid} {rank} {score} {tag}\n",
    "msmarco": lambda query_id, docid, rank, score, tag: f"{query_id}\t{docid}\t{rank}\n",
    "tevatron": lambda query_id, docid, rank, score, tag: f"{query_id}\t{docid}\t{score}\n",
}


def write_run(
    path: str | Path,
    rows: Iterable[tuple[str, Iterable[tuple[str, SupportsFloat]]]],
    tag: str,
    save_format: SaveFormat = "trec",
) -> None:
    """Write a run; the file appears complete or not at all. float32 and float scores are read back unchanged.

    Args:
        path: The file; gzip if it ends in .gz.
        rows: (query id, [(docid, score), …] in rank order) of each query.
        tag: Name of the run, the last of TREC's columns.
        save_format: `trec` (six columns, ranks from 1), `msmarco` (query, document, rank) or `tevatron` (query, document,
            score).

    Raises:
        UserError: An id that the format cannot hold, or a score that is NaN or infinite.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".trec") as file:
        ...     write_run(file.name, [("q1", [("d1", 0.75), ("d2", 0.5)])], tag="bm25")
        ...     print(Path(file.name).read_text(), end="")
        q1 Q0 d1 1 0.75 bm25
        q1 Q0 d2 2 0.5 bm25
    """
    if save_format not in _LINES:
        raise UserError(f"unknown run format {save_format!r}", f"use one of {', '.join(_LINES)}")
    line, clean = _LINES[save_format], _word if save_format == "trec" else _cell
    clean(tag, "tag")
    with atomic_writer(Path(path).expanduser()) as out:
        for query_id, results in rows:
            clean(query_id, "query id")
            lines = []
            for rank, (docid, score) in enumerate(results, 1):
                clean(docid, "document id")
                exact = _number(score, query_id, docid)
                lines.append(line(query_id, docid, rank, exact, tag))
            out.write("".join(lines).encode("utf-8"))


def _number(score: SupportsFloat, query_id: str, docid: str) -> str:
    exact = float(score)
    if not math.isfinite(exact):
        raise UserError(
            f"query {query_id!r} and document {docid!r} have the score {exact}", "check the vectors for NaN"
        )
    # Nine digits distinguish any two float32 values; a float64 needs up to seventeen.
    return repr(exact) if isinstance(score, float) else f"{exact:.9g}"


def _word(name: str, what: str) -> None:
    if name.split() != [name]:
        raise UserError(
            f"the {what} {name!r} is empty or holds white space, which separates the columns of a TREC run",
            "rename it, or use --save_format tevatron, whose columns are separated by tabs",
        )


def _cell(name: str, what: str) -> None:
    if not name or any(character in name for character in "\t\n\r"):
        raise UserError(f"the {what} {name!r} is empty or holds a tab or line break", "rename it")
