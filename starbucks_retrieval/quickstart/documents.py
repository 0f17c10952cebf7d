"""The documents of a quickstart: rows of a table, or files of a folder, with ids and titles, split into passages."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
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


#: Returns the number of tokens of each text, without special tokens.
CountTokens = Callable[[Sequence[str]], list[int]]

_BATCH = 256  # documents that are tokenised together
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\n")
_WORD = re.compile(r"\s+")
_HEADING = re.compile(r"\s*#{1,6}\s[^\n]*\s*")


def split_documents(documents: Iterable[Passage], room: int, count: CountTokens) -> Iterator[list[Passage]]:
    """Yield the passages of each document, none for a document without text.

    A document of at most `room` tokens, title included, is one passage with the document's id. A longer one is split as
    `split_text` says; passage n has the id `docid#n`, and each has the title.

    Args:
        documents: The documents.
        room: Tokens of a passage at most.
        count: Counts tokens.
    """
    stream = iter(documents)
    while batch := list(islice(stream, _BATCH)):
        texts = count([document.text for document in batch])
        titles = count([document.title for document in batch])
        for document, text_tokens, title_tokens in zip(batch, texts, titles):
            if not (document.text or document.title):
                yield []
            elif text_tokens + title_tokens <= room:
                yield [document]
            elif title_tokens > room // 2:  # no title, but a text in the wrong column
                parts = split_text(f"{document.title}\n\n{document.text}".strip(), room, count)
                yield [Passage(f"{document.docid}#{n}", "", part) for n, part in enumerate(parts, 1)]
            else:
                parts = split_text(document.text, room - title_tokens, count)
                yield [Passage(f"{document.docid}#{n}", document.title, part) for n, part in enumerate(parts, 1)]


def split_text(text: str, room: int, count: CountTokens) -> list[str]:
    """Split a text into parts of about equal length, between paragraphs where they are short enough.

    A paragraph that is longer than `room` is split between sentences, a sentence between words, and a word that is too
    long between characters. A heading of markdown stays with the paragraph below it.

    Args:
        text: The text.
        room: Tokens of a part at most.
        count: Counts tokens.

    Example:
        >>> by_words = lambda texts: [len(text.split()) for text in texts]
        >>> split_text("Hens lay eggs. They eat corn.\\n\\nDucks swim.", 6, by_words)
        ['Hens lay eggs. They eat corn.', 'Ducks swim.']
    """
    units = _units(_paragraphs(text), room, count, (_SENTENCE, _WORD))
    total = sum(tokens for _, tokens in units)
    target = total / max(1, math.ceil(total / room))
    parts: list[str] = []
    current, size = "", 0
    for unit, tokens in units:
        if current and (size + tokens > room or size >= target):
            parts.append(current)
            current, size = "", 0
        current, size = current + unit, size + tokens
    return [part.strip() for part in (*parts, current) if part.strip()]


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs with the white space after them; a heading is joined with what follows."""
    found = _cut(text, _PARAGRAPH)
    joined: list[str] = []
    for paragraph in found:
        if joined and _HEADING.fullmatch(joined[-1]):
            joined[-1] += paragraph
        else:
            joined.append(paragraph)
    return joined


def _units(
    pieces: Sequence[str], room: int, count: CountTokens, finer: Sequence[re.Pattern[str]]
) -> list[tuple[str, int]]:
    """Return (piece, tokens), where pieces of more than `room` tokens are cut by the next finer pattern."""
    units: list[tuple[str, int]] = []
    for piece, tokens in zip(pieces, count(list(pieces))):
        if tokens <= room or len(piece) < 2:
            units.append((piece, tokens))
        elif finer:
            units += _units(_cut(piece, finer[0]), room, count, finer[1:])
        else:  # one character has at least one token in scripts without spaces
            step = min(len(piece) - 1, max(1, room // 2))
            units += _units([piece[i : i + step] for i in range(0, len(piece), step)], room, count, ())
    return units


def _cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Cut a text after every match, and return the pieces, which together are the text."""
    ends = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)])]
