"""Read TREC runs: by columns with pyarrow if the file is regular, else line by line, with exact error messages."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from starbucks_retrieval.data.formats import decode, open_bytes, raw_lines
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    import numpy as np

Run = dict[str, dict[str, float]]

_BLOCK = 4 << 20  # bytes that the column reader parses at a time
_COLUMNS = ("query", "q0", "document", "rank", "score", "tag")
_RANK = re.compile(rb"[+-]?[0-9]{1,18}")
_SIZE = re.compile(r"-(\d+:\d+)(?:/(\d+:\d+))?$")


@dataclass
class RunFile:
    """The content of a run file.

    Attributes:
        results: query id → docid → score, in the order of the file.
        tag: Name of the run, column six of the first line.
        scattered: Queries whose results are not on consecutive lines.
        misranked: Queries with a result that the rank column puts above one of a higher score (as float32).
    """

    results: Run = field(default_factory=dict)
    tag: str = ""
    scattered: list[str] = field(default_factory=list)
    misranked: list[str] = field(default_factory=list)

    @property
    def size(self) -> Size | None:
        """Size at the end of the tag, as in `starbucks-6:128`; of the queries, if passages have another. None without one."""
        return self._size(1)

    @property
    def passage_size(self) -> Size | None:
        """Size of the passages if it differs from that of the queries, as in `starbucks-2:64/4:64`, else None."""
        return self._size(2)

    def _size(self, group: int) -> Size | None:
        found = _SIZE.search(self.tag)
        try:
            return Size.parse(found[group]) if found and found[group] else None
        except UserError:
            return None


def open_run(path: str | Path) -> RunFile:
    """Read a TREC run, plain or .gz, with the defects of its layout.

    NaN and infinite scores are read: the preflight of `evaluate` reports them.

    Args:
        path: The run file; `~` is expanded. Six columns separated by white space: query, Q0, document, rank, score,
            tag.

    Returns:
        The scores of all queries, the tag of the first line, and the queries whose rows are scattered or misranked.

    Raises:
        UserError: The file is missing or holds no results; a line has a wrong number of columns, is not UTF-8, has a
            score that is not a number, or repeats a document of its query. Errors of a line name file and line.
    """
    path = Path(path).expanduser()
    file = _by_columns(path) or _by_lines(path)
    if not file.results:
        raise UserError(f"{path} holds no results", "check the file")
    return file


def read_run(path: str | Path) -> Run:
    """Return the results of a TREC run.

    Args:
        path: The run file, as for `open_run`.

    Returns:
        query id → docid → score, in the order of the file. Ranks and the tag are dropped.

    Raises:
        UserError: As for `open_run`.
    """
    return open_run(path).results


def read_tag(path: str | Path) -> str:
    """Return the tag (column six) in the first line of a TREC run. The rest of the file is not read.

    Args:
        path: The run file, as for `open_run`. Empty lines before the first result are skipped.

    Raises:
        UserError: The file is missing or holds no results, or its first line does not have six columns or has a tag
            that is not UTF-8.
    """
    path = Path(path).expanduser()
    for number, cells in _lines(path):
        return decode(cells[5], path, number)
    raise UserError(f"{path} holds no results", "check the file")


class _RunBuilder:
    """Collects rows of results into queries and records defects of the layout."""

    def __init__(self) -> None:
        self.file = RunFile()
        self._scattered: dict[str, None] = {}
        self._misranked: dict[str, None] = {}
        self._open: str | None = None
        self._ranks: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def add(self, query_id: str, docids: Sequence[str], ranks: np.ndarray, scores: np.ndarray) -> bool:
        """Add consecutive rows of a query. Return False if it has one of the documents already."""
        if query_id != self._open:
            self._close()
            self._open = query_id
            if query_id in self.file.results:
                self._scattered[query_id] = None
        results = self.file.results.setdefault(query_id, {})
        before = len(results)
        results.update(zip(docids, scores.tolist()))
        self._ranks.append(ranks)
        self._scores.append(scores)
        return len(results) == before + len(docids)

    def finish(self) -> RunFile:
        self._close()
        self.file.scattered, self.file.misranked = list(self._scattered), list(self._misranked)
        return self.file

    def _close(self) -> None:
        import numpy as np

        if self._open is not None and _contradict(np.concatenate(self._ranks), np.concatenate(self._scores)):
            self._misranked[self._open] = None
        self._ranks, self._scores = [], []


def _contradict(ranks: np.ndarray, scores: np.ndarray) -> bool:
    """Return whether a result ranks above one of a higher score. Equal ranks and NaN do not order results."""
    import numpy as np

    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    if not np.all(ranks[1:] > ranks[:-1]):
        order = np.lexsort((-single, ranks))
        ranks, single = ranks[order], single[order]
    return bool(np.any((single[1:] > single[:-1]) & (ranks[1:] > ranks[:-1])))


def _lines(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    for number, raw in raw_lines(path):
        cells = raw.split()  # ASCII white space only, so ids may hold any other character
        if len(cells) != len(_COLUMNS):
            raise UserError(
                f"{path}:{number}: {len(cells)} columns, a TREC run has six",
                "write `query Q0 document rank score tag`; ids must not hold white space",
            )
        yield number, cells


def _by_lines(path: Path) -> RunFile:
    import numpy as np

    builder = _RunBuilder()
    query_id: str | None = None
    docids, ranks, scores = dict[str, None](), list[float](), list[float]()

    def flush() -> None:
        if query_id is not None:
            builder.add(query_id, list(docids), np.array(ranks), np.array(scores))

    for number, cells in _lines(path):
        query, docid = decode(cells[0], path, number), decode(cells[2], path, number)
        try:
            score = float(cells[4].replace(b"_", b"?"))  # Python alone reads 1_0 as a number
        except ValueError:
            what = f"{path}:{number}: the score {decode(cells[4], path, number)!r} is not a number"
            raise UserError(what, "write the score as a number in column five of six") from None
        if query != query_id:
            flush()
            query_id, docids, ranks, scores = query, {}, [], []
        if docid in docids or docid in builder.file.results.get(query, ()):
            what = f"{path}:{number}: document {docid} occurs twice for query {query}"
            raise UserError(what, "keep the one with the higher score")
        docids[docid] = None
        ranks.append(_rank(cells[3]))
        scores.append(score)
        builder.file.tag = builder.file.tag or decode(cells[5], path, number)
    flush()
    return builder.finish()


def _rank(cell: bytes) -> float:
    """Parse a rank in decimal digits; anything else (`0x10`, `1.0`, `-`) is NaN."""
    return float(int(cell)) if _RANK.fullmatch(cell) else float("nan")


class _IrregularFile(Exception):
    """The column reader would read the file differently from the line reader."""


class _CheckedBytes:
    """The bytes of a file; raises _IrregularFile for white space other than the separator and line feeds."""

    closed = False

    def __init__(self, handle: BinaryIO, forbidden: bytes) -> None:
        self._handle, self._forbidden = handle, [bytes([byte]) for byte in forbidden]

    def read(self, count: int = -1) -> bytes:
        block = self._handle.read(count)
        if any(byte in block for byte in self._forbidden):
            raise _IrregularFile
        return block


def _by_columns(path: Path) -> RunFile | None:
    """Read a run three times faster than line by line. Return None for a file that the line reader has to read."""
    import numpy as np
    import pyarrow

    builder = _RunBuilder()
    with open_bytes(path) as handle:
        try:
            start = handle.peek(1)[:4096].split(b"\n")[0]  # type: ignore[attr-defined]
            separator = "\t" if b"\t" in start else " "
            forbidden = b"\r\v\f" + (b" " if separator == "\t" else b"\t")
            # Closed before the file is: its threads read ahead.
            with contextlib.closing(_batches(_CheckedBytes(handle, forbidden), separator)) as batches:
                for query_ids, docids, ranks, scores, tag in batches:
                    builder.file.tag = builder.file.tag or tag
                    edges = np.flatnonzero(query_ids[1:] != query_ids[:-1]) + 1
                    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(query_ids)]):
                        if not builder.add(query_ids[low], docids[low:high], ranks[low:high], scores[low:high]):
                            return None
        except (pyarrow.ArrowException, _IrregularFile, OSError, EOFError, zlib.error):
            return None
    return builder.finish()


def _batches(
    source: _CheckedBytes, separator: str
) -> Generator[tuple[np.ndarray, list[str], np.ndarray, np.ndarray, str], None, None]:
    """Yield query ids [rows], docids, ranks [rows], scores [rows] and the first tag of each block."""
    import pyarrow as pa
    from pyarrow import csv

    repeated = pa.dictionary(pa.int32(), pa.string())
    kinds: dict[str, Any] = dict(zip(_COLUMNS, (repeated, repeated, pa.string(), repeated, pa.float64(), repeated)))
    options: dict[str, Any] = {
        "read_options": csv.ReadOptions(column_names=_COLUMNS, block_size=_BLOCK),
        "parse_options": csv.ParseOptions(delimiter=separator, quote_char=False, double_quote=False),
        "convert_options": csv.ConvertOptions(column_types=kinds, null_values=[], strings_can_be_null=False),
    }
    with csv.open_csv(pa.PythonFile(source, mode="r"), **options) as reader:
        for batch in reader:
            if batch.num_rows:
                yield _rows(batch)


def _numbers(array: Any, dtype: type[np.number]) -> np.ndarray:
    """Return the values of an array without nulls; `to_numpy` would import pandas, which takes longer than most runs."""
    import numpy as np

    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def _rows(batch: Any) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray, str]:
    import numpy as np
    from pyarrow import compute

    names = {name: batch[name].dictionary.to_pylist() for name in ("query", "q0", "rank", "tag")}
    scores = _numbers(batch["score"], np.float64)
    if np.isnan(scores).any():  # also nan(1), which the line reader refuses
        raise _IrregularFile
    # Two adjacent separators are one to the line reader, and an empty cell here.
    empty = any("" in found for found in names.values())
    if empty or not compute.min(compute.binary_length(batch["document"])).as_py():
        raise _IrregularFile
    query_ids = np.array(names["query"], dtype=object)[_numbers(batch["query"].indices, np.int32)]
    docids = batch["document"].to_pylist()
    tag = names["tag"][batch["tag"].indices[0].as_py()]
    ranks = np.array([_rank(rank.encode()) for rank in names["rank"]])[_numbers(batch["rank"].indices, np.int32)]
    return query_ids, docids, ranks, scores, tag
