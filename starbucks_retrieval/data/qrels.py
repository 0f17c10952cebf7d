"""Relevance judgements: TREC's four columns, BEIR's tsv, csv with the same header, BEIR folders, `ir:` ids, short names, hub data sets."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path

from starbucks_retrieval.data import csv, hub, ir
from starbucks_retrieval.data.fields import GRADE, JUDGED_DOC, JUDGED_QUERY, BadRow, as_id, value
from starbucks_retrieval.data.files import decode, raw_lines
from starbucks_retrieval.data.sources import find_ir, find_path
from starbucks_retrieval.errors import UserError

Qrels = dict[str, dict[str, int]]

_INTEGER = re.compile(rb"\s*[+-]?\d+\s*")
_ENDINGS = (".tsv", ".tsv.gz", ".txt", ".txt.gz", ".trec", ".trec.gz", ".csv", ".csv.gz")


def read_qrels(collection: str, *, split: str = "test") -> Qrels:
    """Read judgements as query id → docid → grade, in the file's order. Grades of zero and below are kept.

    `split` chooses among the files of a BEIR folder, or the splits of a short name or hub data set; a file is read
    whole. Raises UserError with file and line for a bad line, and for one pair judged twice with different grades.
    """
    qrels: Qrels = {}
    source, judgements = _find(collection, split)
    for number, query_id, docid, grade in judgements:
        seen = qrels.setdefault(query_id, {}).setdefault(docid, grade)
        if seen != grade:
            raise UserError(
                f"{source}:{number}: query {query_id} and document {docid} get grade {grade}, and {seen} above",
                "keep one line for each pair",
            )
    if not qrels:
        raise UserError(f"{source} holds no judgements", "check the file")
    return qrels


def check_qrels(qrels: Qrels, query_ids: Container[str] | None, docids: Container[str] | None, name: str) -> None:
    """Raise UserError for judgements of queries or documents that do not exist; None leaves a side unchecked."""
    if query_ids is not None:
        strangers = [query_id for query_id in qrels if query_id not in query_ids]
        if strangers:
            raise UserError(
                f"{name} judges {_count(strangers, 'query')} not among the queries, the first is {strangers[0]!r}",
                "check that qrels and queries belong together",
            )
    if docids is not None:
        strangers = list(dict.fromkeys(docid for grades in qrels.values() for docid in grades if docid not in docids))
        if strangers:
            raise UserError(
                f"{name} judges {_count(strangers, 'document')} not in the corpus, the first is {strangers[0]!r}",
                "check that qrels and corpus belong together",
            )


def _count(items: list[str], noun: str) -> str:
    plural = {"query": "queries", "document": "documents"}[noun]
    return f"{len(items)} {noun if len(items) == 1 else plural}"


def _find(collection: str, split: str) -> tuple[str, Iterator[tuple[int, str, str, int]]]:
    dataset_id = find_ir(collection, split)
    if dataset_id is not None:
        return f"ir:{dataset_id}", _from_rows(f"ir:{dataset_id}", ir.rows(dataset_id, "qrels"))
    path = find_path(collection)
    if path is None:
        return collection, _from_rows(collection, hub.rows(collection, "qrels", None, split))
    if path.is_dir():
        path = qrels_file(path, split)
    is_csv = path.name.endswith((".csv", ".csv.gz"))
    return str(path), _from_csv(path) if is_csv else _from_lines(path)


def qrels_file(folder: Path, split: str) -> Path:
    """The judgements of one split of a BEIR folder."""
    for ending in _ENDINGS:
        if (folder / "qrels" / f"{split}{ending}").is_file():
            return folder / "qrels" / f"{split}{ending}"
    there = sorted({file.name.split(".")[0] for file in (folder / "qrels").glob("*.*")})
    raise UserError(
        f"{folder} holds no qrels/{split}.tsv", f"it has the splits {', '.join(there)}" if there else "add the file"
    )


def _from_rows(source: str, rows: Iterator[tuple[int, dict]]) -> Iterator[tuple[int, str, str, int]]:
    for number, row in rows:
        try:
            grade = value(row, GRADE)
            if grade != int(grade):
                raise ValueError
            yield (
                number,
                as_id(value(row, JUDGED_QUERY), JUDGED_QUERY[0]),
                as_id(value(row, JUDGED_DOC), JUDGED_DOC[0]),
                int(grade),
            )
        except BadRow as error:
            raise UserError(f"{source}:{number}: {error.what}", error.hint) from None
        except (TypeError, ValueError):
            raise UserError(f"{source}:{number}: the grade {grade!r} is not an integer", "use whole grades") from None


def _from_lines(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Judgements of a file. Its first line settles the layout: 3 or 4 columns by tabs, else 4 by white space."""
    separator: bytes | None = None
    columns: tuple[int, int, int] | None = None  # where query, document and grade stand
    width = 4
    for number, raw in raw_lines(path):
        if columns is None:
            cells = raw.split(b"\t")
            separator, width = (b"\t", len(cells)) if len(cells) in (3, 4) else (None, 4)
            columns = (0, 1, 2) if width == 3 else (0, 2, 3)
            if separator and _integer(cells[-1]) is None:
                columns = _header(cells, path, number)
                continue
        cells = raw.split(separator)
        if len(cells) != width:
            raise UserError(
                f"{path}:{number}: {len(cells)} columns, wanted {width}",
                "write TREC's `query 0 document grade`, or `query<tab>document<tab>grade` under a header",
            )
        query_id, docid, grade = (cells[column] for column in columns)
        parsed = _integer(grade)
        if parsed is None:
            raise _grade(decode(grade, path, number), path, number)
        yield number, decode(query_id, path, number), decode(docid, path, number), parsed


def _from_csv(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Judgements of a csv file, by the names in its header."""
    for number, cells in csv.rows(path):
        row = {name.lower(): cell for name, cell in cells.items()}
        try:
            query_id, docid, grade = value(row, JUDGED_QUERY), value(row, JUDGED_DOC), value(row, GRADE)
        except BadRow as error:
            raise UserError(f"{path}:{number}: {error.what}", error.hint) from None
        parsed = _integer(grade.encode())
        if parsed is None:
            raise _grade(grade, path, number)
        yield number, query_id, docid, parsed


def _grade(shown: str, path: Path, number: int) -> UserError:
    return UserError(f"{path}:{number}: the grade {shown!r} is not an integer", "use whole grades")


def _header(cells: list[bytes], path: Path, number: int) -> tuple[int, int, int]:
    names = [decode(cell, path, number).strip().lower() for cell in cells]
    row = {name: position for position, name in enumerate(names)}
    try:
        return value(row, JUDGED_QUERY), value(row, JUDGED_DOC), value(row, GRADE)
    except BadRow as error:
        raise UserError(
            f"{path}:{number}: neither a judgement nor a header: {error.what}", "write query-id, corpus-id, score"
        ) from None


def _integer(cell: bytes) -> int | None:
    # int() alone would also take 1_000 and the digits of other scripts.
    return int(cell) if _INTEGER.fullmatch(cell) else None
