"""The documents of a quickstart: rows of a table, or files of a folder, as passages with ids and titles."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, Query
from starbucks_retrieval.data.fields import BadRow, as_id, as_text
from starbucks_retrieval.data.formats import file_endings
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_path
from starbucks_retrieval.quickstart import QuickstartArguments
from starbucks_retrieval.quickstart.columns import ENDINGS as TABLES
from starbucks_retrieval.quickstart.columns import Columns, decoded_lines, guess_columns, query_columns, read_table
from starbucks_retrieval.quickstart.folders import ENDINGS as TEXTS
from starbucks_retrieval.quickstart.folders import TextFiles, find_texts, read_text_file

_GUESS_FROM = 200  # rows
_CONVERT = {".xlsx": "save it as csv", ".xls": "save it as csv", ".pdf": "convert it to text: pdftotext"}


@dataclass(frozen=True)
class Documents:
    """Documents that were found, and read once if they are a table.

    Attributes:
        path: The file or folder.
        count: Their number.
        told: What was found and guessed, in one line.
        source: The rows of a table with its columns, or the files.
        encoding: Of csv, tsv and text files.
    """

    path: Path
    count: int
    told: str
    source: Columns | TextFiles
    encoding: str

    def __iter__(self) -> Iterator[Passage]:
        """Yield the documents; those without any text too."""
        if isinstance(self.source, Columns):
            for number, passage in _table_documents(self.path, self.source, self.encoding):
                yield passage if passage.docid else Passage(str(number), passage.title, passage.text)
            return
        read = partial(read_text_file, folder=self.source.folder, encoding=self.encoding)
        yield from map(read, self.source.paths)

    def state(self) -> list[Any]:
        """Return names, sizes and times of the files, JSON-ready: a change makes a quickstart start over."""
        paths = [self.path] if isinstance(self.source, Columns) else self.source.paths
        stats = [(str(path), path.stat()) for path in paths]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def open_documents(arguments: QuickstartArguments) -> Documents:
    """Find the documents and guess their columns. A table is read to its end, so that all its errors are found.

    Args:
        arguments: The flags.

    Raises:
        UserError: There are no documents, or they cannot be read.
    """
    path = Path(arguments.documents).expanduser()
    if not path.exists():
        raise UserError(f"no such file or folder: {arguments.documents}", "check the path")
    if path.is_dir():
        corpus = next((path / f"corpus{end}" for end in file_endings() if (path / f"corpus{end}").is_file()), None)
        path = corpus or path
    elif not path.name.lower().endswith((*TABLES, *TEXTS)):
        known = f"csv, tsv, jsonl, {', '.join(TEXTS)}"
        raise UserError(
            f"cannot read {path}: it is none of {known}", _CONVERT.get(path.suffix.lower(), "convert it to one of them")
        )
    if path.is_file() and path.name.endswith(TABLES):
        return _open_table(path, arguments)
    named = [name for name in ("text_column", "title_column", "id_column") if getattr(arguments, name)]
    if named:
        raise UserError(f"--{named[0]} names a column, and {path} is no table", "leave it out")
    files = find_texts(path)
    told = f"{files.told()}; titles from headings or names, paths as ids"
    return Documents(path, len(files.paths), told, files, arguments.encoding)


def read_queries(path: Path, encoding: str = "utf-8") -> list[Query]:
    """Read queries: one a line of a .txt file, else a table whose columns are guessed.

    Args:
        path: The file.
        encoding: Of csv, tsv and txt files.

    Raises:
        UserError: The file is missing or malformed, or holds no queries.
    """
    if not path.is_file():
        raise UserError(f"no such file: {path}", "check --queries")
    if path.name.removesuffix(".gz").endswith(".txt"):
        queries = [Query(str(number), line.strip()) for number, line in decoded_lines(path, encoding)]
    else:
        rows = list(read_table(path, encoding))
        columns = query_columns([row for _, row in rows[:_GUESS_FROM]], str(path)) if rows else Columns((), None, None)
        found = [_document(row, columns, f"{path}:{number}") for number, row in rows]
        queries = [Query(one.docid or str(number), one.text) for number, one in enumerate(found, 1)]
    queries = [query for query in queries if query.text.strip()]
    if not queries:
        raise UserError(f"{path} holds no queries", "write one query a line, in a .txt file")
    return queries


def write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write rows as jsonl, and return their number. The file appears when it is whole.

    Args:
        path: The file; an older one is replaced.
        rows: Objects that json.dumps accepts, one a line.
    """
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        return sum(file.write(json.dumps(row, ensure_ascii=False) + "\n") > 0 for row in rows)


def _open_table(path: Path, arguments: QuickstartArguments) -> Documents:
    first = [row for _, row in itertools.islice(read_table(path, arguments.encoding), _GUESS_FROM)]
    if not first:
        raise UserError(f"{path} holds no rows", "check the file")
    columns = guess_columns(first, str(path), arguments.text_column, arguments.title_column, arguments.id_column)
    count, ids = 0, set()
    for _, passage in progress(_table_documents(path, columns, arguments.encoding), None, "rows", "reading"):
        count += 1
        ids.add(passage.docid)
    note = ""
    if columns.docid and (len(ids) < count or "" in ids):
        problem = f"column {columns.docid} has empty or repeated ids"
        if arguments.id_column:
            raise UserError(f"{path}: {problem}", 'name another with --id_column, or --id_column "" for row numbers')
        columns, note = Columns(columns.text, columns.title, None), f"; {problem}"
    return Documents(
        path, count, f"{count} row{'s' if count != 1 else ''}, {columns}{note}", columns, arguments.encoding
    )


def _table_documents(path: Path, columns: Columns, encoding: str) -> Iterator[tuple[int, Passage]]:
    """Yield (number of the row from 1, document); without a column of ids the id is empty."""
    for row_number, (line, row) in enumerate(read_table(path, encoding), 1):
        yield row_number, _document(row, columns, f"{path}:{line}")


def _document(row: dict[str, Any], columns: Columns, where: str) -> Passage:
    try:
        texts = [as_text(row.get(name), name).strip() for name in columns.text]
        title = as_text(row.get(columns.title), columns.title).strip() if columns.title else ""
        docid = row.get(columns.docid) if columns.docid else None
        docid = "" if docid is None else as_id(docid, columns.docid or "").strip()
    except BadRow as error:
        raise UserError(f"{where}: {error.what}", error.hint) from None
    return Passage(docid, title, "\n".join(filter(None, texts)))
