"""Reading TREC runs: in columns where a file is plain, else line by line, which names what is wrong and where."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from starbucks_retrieval.data.files import decode, open_bytes, raw_lines
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
    """What a run file holds: `results` (query id → docid → score, in the file's order) and what its layout tells.

    `tag` is the first line's. `scattered` are queries whose results stand in more than one place of the file,
    `misranked` those with a result that the rank column puts above one of a higher score (as float32).
    """

    results: Run = field(default_factory=dict)
    tag: str = ""
    scattered: list[str] = field(default_factory=list)
    misranked: list[str] = field(default_factory=list)

    @property
    def size(self) -> Size | None:
        """The size that the tag ends in, as `starbucks-6:128` does, or None; of queries, if passages have another."""
        return self._size(1)

    @property
    def passage_size(self) -> Size | None:
        """The size of the passages where that is another, as in `starbucks-2:64/4:64`, or None."""
        return self._size(2)

    def _size(self, group: int) -> Size | None:
        found = _SIZE.search(self.tag)
        try:
            return Size.parse(found[group]) if found and found[group] else None
        except UserError:
            return None


def open_run(path: str | Path) -> RunFile:
    """Read a TREC run, plain or .gz. Ranks are compared with scores and then forgotten.

    Raises UserError with file and line for a wrong number of columns, a score that is no number, or a pair met twice.
    Scores of nan and inf are read: judging them is the evaluator's business.
    """
    path = Path(path).expanduser()
    file = _by_columns(path) or _by_lines(path)
    if not file.results:
        raise UserError(f"{path} holds no results", "check the file")
    return file


def read_run(path: str | Path) -> Run:
    """The results of a TREC run, as `open_run` reads them: query id → docid → score, in the file's order."""
    return open_run(path).results


def read_tag(path: str | Path) -> str:
    """The tag, column six, of the first line of a TREC run. Raises UserError for a file without such a line."""
    path = Path(path).expanduser()
    for number, raw in raw_lines(path):
        cells = raw.split()
        if len(cells) != len(_COLUMNS):
            raise _wrong_width(path, number, len(cells))
        return decode(cells[5], path, number)
    raise UserError(f"{path} holds no results", "check the file")


class _Queries:
    """Puts rows together to queries: `add` takes rows of one query, which end with the first of another."""

    def __init__(self) -> None:
        self.file = RunFile()
        self._scattered: dict[str, None] = {}
        self._misranked: dict[str, None] = {}
        self._open: str | None = None
        self._ranks: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def add(self, query_id: str, docids: Sequence[str], ranks: np.ndarray, scores: np.ndarray) -> bool:
        """Take further rows of `query_id`; False if one of the documents is there already."""
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

        if self._open is not None and _disagree(np.concatenate(self._ranks), np.concatenate(self._scores)):
            self._misranked[self._open] = None
        self._ranks, self._scores = [], []


def _disagree(ranks: np.ndarray, scores: np.ndarray) -> bool:
    """Whether a result ranks above one of a higher score. Equal ranks, and ranks that are no numbers, order nothing."""
    import numpy as np

    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    if not np.all(ranks[1:] > ranks[:-1]):
        order = np.lexsort((-single, ranks))
        ranks, single = ranks[order], single[order]
    return bool(np.any((single[1:] > single[:-1]) & (ranks[1:] > ranks[:-1])))


# ---------------------------------------------------------------- line by line


def _by_lines(path: Path) -> RunFile:
    import numpy as np

    queries = _Queries()
    query_id: str | None = None
    docids, ranks, scores = dict[str, None](), list[float](), list[float]()

    def flush() -> None:
        if query_id is not None:
            queries.add(query_id, list(docids), np.array(ranks), np.array(scores))

    for number, raw in raw_lines(path):
        cells = raw.split()  # ASCII white space only, so ids may hold any other character
        if len(cells) != len(_COLUMNS):
            raise _wrong_width(path, number, len(cells))
        query, docid = decode(cells[0], path, number), decode(cells[2], path, number)
        try:
            score = float(cells[4].replace(b"_", b"?"))  # Python alone reads 1_0 as a number
        except ValueError:
            shown = decode(cells[4], path, number)
            raise UserError(
                f"{path}:{number}: the score {shown!r} is not a number", "the score is column five of six"
            ) from None
        if query != query_id:
            flush()
            query_id, docids, ranks, scores = query, {}, [], []
        if docid in docids or docid in queries.file.results.get(query, ()):
            raise UserError(
                f"{path}:{number}: document {docid} occurs twice for query {query}", "keep the better of the two"
            )
        docids[docid] = None
        ranks.append(_rank(cells[3]))
        scores.append(score)
        queries.file.tag = queries.file.tag or decode(cells[5], path, number)
    flush()
    return queries.finish()


def _rank(cell: bytes) -> float:
    """A rank in decimal digits, NaN for anything else (`0x10`, `1.0`, `-`), which orders nothing."""
    return float(int(cell)) if _RANK.fullmatch(cell) else float("nan")


def _wrong_width(path: Path, number: int, width: int) -> UserError:
    return UserError(
        f"{path}:{number}: {width} columns, a TREC run has six",
        "write `query Q0 document rank score tag`; ids must not hold white space",
    )


# ---------------------------------------------------------------- in columns


class _NotPlain(Exception):
    """The file holds something that the column reader would read otherwise than the line reader."""


class _Plain:
    """The bytes of a file, as long as there is no other white space in them than one separator and line feeds."""

    closed = False

    def __init__(self, handle: BinaryIO, foreign: bytes) -> None:
        self._handle, self._foreign = handle, [bytes([byte]) for byte in foreign]

    def read(self, count: int = -1) -> bytes:
        block = self._handle.read(count)
        if any(byte in block for byte in self._foreign):
            raise _NotPlain
        return block


def _by_columns(path: Path) -> RunFile | None:
    """The run, three times as fast as by lines; None for a file that takes, or seems to take, reading by lines."""
    import numpy as np
    import pyarrow

    queries = _Queries()
    with open_bytes(path) as handle:
        try:
            start = handle.peek(1)[:4096].split(b"\n")[0]  # type: ignore[attr-defined]
            separator = "\t" if b"\t" in start else " "
            foreign = b"\r\v\f" + (b" " if separator == "\t" else b"\t")
            # Closed before the file is: its threads read ahead.
            with contextlib.closing(_batches(_Plain(handle, foreign), separator)) as batches:
                for query_ids, docids, ranks, scores, tag in batches:
                    queries.file.tag = queries.file.tag or tag
                    edges = np.flatnonzero(query_ids[1:] != query_ids[:-1]) + 1
                    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(query_ids)]):
                        if not queries.add(query_ids[low], docids[low:high], ranks[low:high], scores[low:high]):
                            return None
        except (pyarrow.ArrowException, _NotPlain, OSError, EOFError, zlib.error):
            return None
    return queries.finish()


def _batches(
    plain: _Plain, separator: str
) -> Generator[tuple[np.ndarray, list[str], np.ndarray, np.ndarray, str], None, None]:
    """Query ids [rows], docids, ranks [rows], scores [rows] and the first tag, block by block."""
    import pyarrow as pa
    from pyarrow import csv

    few = pa.dictionary(pa.int32(), pa.string())
    kinds: dict[str, Any] = dict(zip(_COLUMNS, (few, few, pa.string(), few, pa.float64(), few)))
    options: dict[str, Any] = {
        "read_options": csv.ReadOptions(column_names=_COLUMNS, block_size=_BLOCK),
        "parse_options": csv.ParseOptions(delimiter=separator, quote_char=False, double_quote=False),
        "convert_options": csv.ConvertOptions(column_types=kinds, null_values=[], strings_can_be_null=False),
    }
    with csv.open_csv(pa.PythonFile(plain, mode="r"), **options) as reader:
        for batch in reader:
            if batch.num_rows:
                yield _rows(batch)


def _rows(batch: Any) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray, str]:
    import numpy as np
    from pyarrow import compute

    names = {name: batch[name].dictionary.to_pylist() for name in ("query", "q0", "rank", "tag")}
    scores = batch["score"].to_numpy()
    if np.isnan(scores).any():  # or nan(1), which is no number to the line reader
        raise _NotPlain
    # Two separators side by side are one to the line reader, and an empty cell here.
    empty = any("" in found for found in names.values())
    if empty or not compute.min(compute.binary_length(batch["document"])).as_py():
        raise _NotPlain
    query_ids = np.array(names["query"], dtype=object)[batch["query"].indices.to_numpy()]
    docids = batch["document"].to_numpy(zero_copy_only=False).tolist()
    tag = names["tag"][batch["tag"].indices[0].as_py()]
    ranks = np.array([_rank(rank.encode()) for rank in names["rank"]])[batch["rank"].indices.to_numpy()]
    return query_ids, docids, ranks, scores, tag
