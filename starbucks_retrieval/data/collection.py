"""Test collections: corpora, queries, and relevance judgements (qrels).

Judgements are in TREC's four columns, in BEIR's layout, or in any file format with named columns.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import fields, ir_datasets
from starbucks_retrieval.data.fields import BadRow, as_id, as_text, identifier, string, value
from starbucks_retrieval.data.formats import NumberedRows, decode, file_endings, find_reader, raw_lines, tsv
from starbucks_retrieval.data.hub import HubData
from starbucks_retrieval.data.records import Passage, Query, Read, Records
from starbucks_retrieval.data.sources import Collection, as_path, beir_folder, find_ir, find_path, find_rows
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import shown

Qrels = dict[str, dict[str, int]]  # query id → docid → grade
Judgement = tuple[int, str, str, int]  # line or row number, query id, docid, grade

_INTEGER = re.compile(rb"\s*[+-]?\d+\s*")
_DIGITS = 30  # characters of a grade, zeros and spaces around it included
_TREC_ENDINGS = (".tsv", ".tsv.gz", ".txt", ".txt.gz", ".trec", ".trec.gz")  # in a folder, these come first
_CORPUS_LAYOUTS = {2: ("docid", "text"), 3: ("docid", "title", "text")}
_QUERY_LAYOUTS = {2: ("query_id", "query")}


def open_corpus(collection: Collection, *, config: str | None = None, split: str | None = None) -> Records[Passage]:
    """Open a corpus. Nothing is read before it is iterated; `scan` validates all of it.

    Args:
        collection: A file (jsonl, csv, tsv, Parquet …), a BEIR folder, a save_to_disk folder, an `ir:` id, a short name,
            or a Hugging Face data set; or rows, as a `datasets.Dataset` or dicts. Columns: `docid` (or `_id`, `doc_id`, `id`), `text` (or `contents`), optional
            `title`. A tsv file without a header has docid and text, or docid, title and text.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set, a short name, or a save_to_disk folder.

    Returns:
        The passages in the order of the collection, streamed from disk each time they are iterated.

    Raises:
        UserError: The file does not exist or has an unknown format. Iterating raises it for a bad row, with its line.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "corpus.tsv")
        ...     _ = path.write_text("d1\\tHens lay eggs.\\n")
        ...     list(open_corpus(str(path)))
        [Passage(docid='d1', title='', text='Hens lay eggs.')]
    """
    collection = as_path(collection)
    rows = find_rows(collection, "corpus", _CORPUS_LAYOUTS, config, split)
    return Records(collection, rows.source, rows.read, passage_from)


def open_queries(collection: Collection, *, config: str | None = None, split: str | None = None) -> Records[Query]:
    """Open queries. Nothing is read before they are iterated, except the qrels of a split.

    Args:
        collection: As for `open_corpus`. Columns: `query_id` (or `_id`, `qid`) and `query` (or `text`, `query_text`).
        config: Configuration of a Hugging Face data set.
        split: As for `open_corpus`; of a BEIR folder, which keeps the queries of all splits in one file, only the queries
            that `qrels/<split>` judges.

    Returns:
        The queries in the order of the collection.

    Raises:
        UserError: As for `open_corpus`; also for a split without qrels.
    """
    collection = as_path(collection)
    rows = find_rows(collection, "queries", _QUERY_LAYOUTS, config, split)
    read = rows.read
    if split and beir_folder(collection):
        read = partial(_judged_rows, read, frozenset(read_qrels(collection, split=split)))
    return Records(collection, rows.source, read, _query_from)


def passage_from(row: dict[str, Any]) -> Passage:
    """Convert a row to a passage.

    Args:
        row: Column → value. The id is in `docid`, `_id`, `doc_id` or `id`, the text in `text` or `contents`. A
            null text and a missing or null `title` count as empty. Other columns are ignored.

    Raises:
        BadRow: The row has no id or no column for the text, or a value has the wrong type.

    Example:
        >>> passage_from({"_id": 7, "text": "Hens lay eggs."})
        Passage(docid='7', title='', text='Hens lay eggs.')
    """
    return Passage(
        identifier(row, fields.DOCID), as_text(row.get(fields.TITLE[0]), fields.TITLE[0]), string(row, fields.TEXT)
    )


def _query_from(row: dict[str, Any]) -> Query:
    return Query(identifier(row, fields.QUERY_ID), string(row, fields.QUERY_TEXT))


def read_qrels(collection: Collection, *, split: str = "test") -> Qrels:
    """Read relevance judgements.

    Args:
        collection: A file, a BEIR folder, an `ir:` id, a short name, or a Hugging Face data set. Files have TREC's columns
            (`query 0 document grade`), or the columns `query-id`, `corpus-id` and `score` as tsv, csv or another format.
        split: File of a BEIR folder, or split of a short name or Hugging Face data set; a file is read whole.

    Returns:
        query id → docid → grade, in the order of the file. Grades of zero and below are kept.

    Raises:
        UserError: A bad line, or two different grades of one pair, with file and line; no judgements at all.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        ...     _ = file.write("q1 0 d1 1\\nq1 0 d2 0\\n"), file.flush()
        ...     read_qrels(file.name)
        {'q1': {'d1': 1, 'd2': 0}}
    """
    qrels: Qrels = {}
    source, judgements = _find(as_path(collection), split)
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
    """Check that all judged queries and documents exist.

    Args:
        qrels: query id → docid → grade.
        query_ids: The ids of all queries; None skips the check.
        docids: The ids of all passages; None skips the check.
        name: What messages call the qrels.

    Raises:
        UserError: Some are unknown; the message has their number and the first of them.
    """
    judged = (docid for grades in qrels.values() for docid in grades)
    for nouns, source, names, known in (
        (("query", "queries"), "among the queries", qrels, query_ids),
        (("document", "documents"), "in the corpus", judged, docids),
    ):
        unknown = [] if known is None else list(dict.fromkeys(each for each in names if each not in known))
        if unknown:
            raise UserError(
                f"{name} judges {len(unknown)} {nouns[len(unknown) > 1]} not {source}, the first is {unknown[0]!r}",
                f"check that qrels and {source.split()[-1]} belong together",
            )


def _find(collection: str, split: str) -> tuple[str, Iterator[Judgement]]:
    dataset_id = find_ir(collection, split)
    if dataset_id is not None:
        return f"ir:{dataset_id}", _from_rows(f"ir:{dataset_id}", ir_datasets.rows(dataset_id, "qrels"))
    path = find_path(collection)
    if path is None:
        return collection, _from_rows(collection, HubData(collection, "qrels", None, split).rows())
    if path.is_dir():
        path = _file_of_split(path, split)
    reader = find_reader(path) if path.name.endswith(tuple(file_endings())) else tsv.rows
    if reader is tsv.rows:
        return str(path), _from_lines(path)
    return str(path), _from_rows(str(path), reader(path, 0, None, {}))


def _file_of_split(folder: Path, split: str) -> Path:
    for ending in (*_TREC_ENDINGS, *file_endings()):
        if (folder / "qrels" / f"{split}{ending}").is_file():
            return folder / "qrels" / f"{split}{ending}"
    found = sorted({file.name.split(".")[0] for file in (folder / "qrels").glob("*.*")})
    raise UserError(
        f"{folder} holds no qrels/{split}.tsv", f"it has the splits {', '.join(found)}" if found else "add the file"
    )


def _from_rows(source: str, rows: NumberedRows) -> Iterator[Judgement]:
    """Yield the judgements of rows with named columns, upper or lower case."""
    for number, cells in rows:
        row = {str(name).lower(): cell for name, cell in cells.items()}
        try:
            query_id = as_id(value(row, fields.JUDGED_QUERY), fields.JUDGED_QUERY[0])
            docid = as_id(value(row, fields.JUDGED_DOC), fields.JUDGED_DOC[0])
            grade = value(row, fields.GRADE)
        except BadRow as error:
            raise UserError(f"{source}:{number}: {error.what}", error.hint) from None
        parsed = _whole_number(grade)
        if parsed is None:
            raise _not_integer(grade, source, number)
        yield number, query_id, docid, parsed


def _from_lines(path: Path) -> Iterator[Judgement]:
    """Yield the judgements of a text file. Its first line decides: 3 or 4 columns by tabs, else 4 by white space."""
    separator: bytes | None = None
    columns: tuple[int, int, int] | None = None  # positions of query, document and grade
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
            raise _not_integer(decode(grade, path, number), path, number)
        yield number, decode(query_id, path, number), decode(docid, path, number), parsed


def _not_integer(grade: Any, source: str | Path, number: int) -> UserError:
    return UserError(
        f"{source}:{number}: the grade {shown(grade)} is not an integer of 32 bits", "use small whole grades"
    )


def _header(cells: list[bytes], path: Path, number: int) -> tuple[int, int, int]:
    names = [decode(cell, path, number).strip().lower() for cell in cells]
    row = {name: position for position, name in enumerate(names)}
    try:
        return value(row, fields.JUDGED_QUERY), value(row, fields.JUDGED_DOC), value(row, fields.GRADE)
    except BadRow as error:
        raise UserError(
            f"{path}:{number}: neither a judgement nor a header: {error.what}", "write query-id, corpus-id, score"
        ) from None


def _integer(cell: bytes) -> int | None:
    # int() alone would also take 1_000 and the digits of other scripts.
    return _bounded(int(cell)) if len(cell) < _DIGITS and _INTEGER.fullmatch(cell) else None


def _whole_number(grade: Any) -> int | None:
    if isinstance(grade, str):
        return _integer(grade.encode())
    try:
        return _bounded(int(grade)) if grade == int(grade) else None
    except (TypeError, ValueError, ArithmeticError):
        return None


def _bounded(grade: int) -> int | None:
    return grade if -(2**31) <= grade < 2**31 else None  # measures are computed with 32 bits


def _judged_rows(read: Read, query_ids: frozenset[str], start: int, stop: int | None) -> NumberedRows:
    # A row without an id is kept: `_query_from` reports it together with its line.
    kept = (
        (number, row)
        for number, row in read(0, None)
        if not (ids := [row[name] for name in fields.QUERY_ID if name in row]) or str(ids[0]) in query_ids
    )
    yield from islice(kept, start, stop)
