"""A training collection on disk: an Arrow table of passages and one of rows that refer to them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Group, Passage, Records, ScoredPair
from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa


_ROWS_PER_BATCH = 4096


@dataclass(frozen=True)
class PassageRow:
    """A query, the passage numbers of its documents (the first `positives` are positive), their scores and its label."""

    query_id: str
    query: str
    documents: list[int]
    positives: int
    scores: list[float]
    label: float | None


_ROWS = tuple(field.name for field in dataclasses.fields(PassageRow))
_PASSAGES = ("docid", "title", "text")


class ArrowShard:
    """A training collection in two Arrow files that are mapped into memory.

    Args:
        rows: One row per query.
        passages: One row per passage; `rows` refers to them by number.
    """

    def __init__(self, rows: pa.Table, passages: pa.Table) -> None:
        import pyarrow.compute as pc

        self.rows = rows
        self.passages = passages
        documents = pc.list_value_length(rows["documents"])
        self.without_negatives = int(pc.sum(pc.equal(documents, rows["positives"])).as_py() or 0)
        self.without_scores = int(pc.sum(pc.equal(pc.list_value_length(rows["scores"]), 0)).as_py() or 0)
        self.labelled = rows["label"].null_count == 0

    @classmethod
    def open(cls, number: int, folder: Path) -> ArrowShard:
        """Map a collection that `write_groups` or `write_pairs` wrote.

        Args:
            number: The number that it was written with.
            folder: The folder that it was written into.
        """
        rows, passages = _paths(number, folder)
        return cls(mapped(rows, _ROWS), mapped(passages, _PASSAGES))

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> PassageRow:
        """Return a row by its number."""
        return PassageRow(**self.rows.slice(number, 1).to_pylist()[0])

    def passage(self, number: int) -> Passage:
        """Return a passage by its number."""
        return Passage(**self.passages.slice(number, 1).to_pylist()[0])


def write_groups(number: int, name: str, groups: Records[Group], corpus: Records[Passage] | None, folder: Path) -> None:
    """Write training groups with the texts of their documents.

    Args:
        number: The number of the collection.
        name: Its name, for messages.
        groups: The groups.
        corpus: Texts for groups that hold ids.
        folder: Where the Arrow files are written.

    Raises:
        UserError: An id is not in the corpus, or there are no groups.
    """
    inline = check_first(name, next(iter(groups), None), corpus).passages is not None
    passages: Iterable[Passage] = _inline(groups, name) if inline else corpus or ()
    table = _write_passages(number, name, passages, folder)
    located = _number_inline(groups) if inline else _number_by_id(groups, table, corpus)
    _write_rows(number, name, (_row(group, documents) for group, documents in located), folder)


def write_pairs(number: int, name: str, pairs: Records[ScoredPair], folder: Path) -> None:
    """Write scored pairs: the first sentence becomes a query, the second its only passage.

    Args:
        number: The number of the collection.
        name: Its name, for messages.
        pairs: The pairs; their scores become the labels of the rows.
        folder: Where the Arrow files are written.

    Raises:
        UserError: There are no pairs.
    """
    if next(iter(pairs), None) is None:
        raise UserError(f"{name} holds no scored pairs", "check the path and the split")
    passages = (Passage(str(i), "", pair.sentence2) for i, pair in enumerate(pairs))
    _write_passages(number, name, passages, folder)
    rows = (PassageRow(str(i), pair.sentence1, [i], 1, [], pair.score) for i, pair in enumerate(pairs))
    _write_rows(number, name, rows, folder)


def _row(group: Group, documents: list[int]) -> PassageRow:
    scores = [] if group.scores is None else [group.scores[docid] for docid in _ids(group)]
    return PassageRow(group.query_id, group.query, documents, len(group.positive_ids), scores, None)


def _ids(group: Group) -> tuple[str, ...]:
    return (*group.positive_ids, *group.negative_ids)


def _inline(groups: Iterable[Group], name: str) -> Iterator[Passage]:
    """Yield the passages of groups that contain texts. Raises UserError for a group that holds ids only."""
    for group in groups:
        passages = check_inline(name, group)
        for docid in _ids(group):
            yield passages[docid]


def _number_inline(groups: Iterable[Group]) -> Iterator[tuple[Group, list[int]]]:
    """Yield groups with the numbers of their passages, which were written group by group in the order of _ids."""
    start = 0
    for group in groups:
        stop = start + len(_ids(group))
        yield group, [*range(start, stop)]
        start = stop


def _number_by_id(
    groups: Iterable[Group], table: pa.Table, corpus: Records[Passage] | None
) -> Iterator[tuple[Group, list[int]]]:
    """Yield groups with the numbers of their passages in the corpus. Raises UserError for an id that is not there."""
    docids = np.array([docid.as_py().encode() for docid in table.column("docid")], dtype=np.bytes_)
    order = np.argsort(docids, kind="stable")
    ordered = docids[order]
    for group in groups:
        ids = _ids(group)
        wanted = np.array([docid.encode() for docid in ids], dtype=np.bytes_)
        positions = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        for docid, present in zip(ids, ordered[positions] == wanted):
            if not present:
                raise unknown_document(group, docid, corpus)
        yield group, [int(i) for i in order[positions]]


def _paths(number: int, folder: Path) -> tuple[Path, Path]:
    return folder / f"rows-{number}.arrow", folder / f"passages-{number}.arrow"


def _write_passages(number: int, name: str, passages: Iterable[Passage], folder: Path) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in _PASSAGES])
    rows = ({name: getattr(passage, name) for name in _PASSAGES} for passage in passages)
    return write_table(_paths(number, folder)[1], rows, schema, f"{name}: passages")


def _write_rows(number: int, name: str, rows: Iterable[PassageRow], folder: Path) -> None:
    import pyarrow as pa

    numbers, scores = pa.list_(pa.int64()), pa.list_(pa.float32())
    schema = pa.schema(list(zip(_ROWS, (pa.string(), pa.string(), numbers, pa.int32(), scores, pa.float32()))))
    write_table(_paths(number, folder)[0], map(vars, rows), schema, f"{name}: rows")


def write_table(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema, label: str) -> pa.Table:
    """Stream rows into an Arrow file and map it into memory.

    Args:
        path: The file; its folder is created.
        rows: The rows.
        schema: Their columns.
        label: Of the progress.
    """
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    # Truncating it would crash a process that has it mapped; file systems without locks allow that.
    path.unlink(missing_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        stream = iter(progress(rows, None, "rows", label))
        while batch := list(itertools.islice(stream, _ROWS_PER_BATCH)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
    return mapped(path, tuple(schema.names))


def mapped(path: Path, names: tuple[str, ...]) -> pa.Table:
    """Return a table that is mapped into memory.

    Args:
        path: An Arrow file.
        names: Its columns.

    Raises:
        UserError: The file is damaged; reading it would end the process.
    """
    import pyarrow as pa

    source = pa.memory_map(str(path))
    try:
        table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)
        if tuple(table.column_names) != names:
            raise pa.ArrowInvalid(f"its columns are {table.column_names}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error})", "run the same command again, it writes the file anew") from None
    return table


def check_first(name: str, first: Group | None, corpus: Records[Passage] | None) -> Group:
    """Check that a collection has groups, and texts for them.

    Args:
        name: The collection, for messages.
        first: Its first group, or None if it is empty.
        corpus: The texts of groups that hold ids, or None.

    Returns:
        `first`.

    Raises:
        UserError: There is no group, or it holds ids and there is no corpus.
    """
    if first is None:
        raise UserError(f"{name} holds no training groups", "check the path and the split")
    if first.passages is None and corpus is None:
        raise UserError(f"the groups of {name} hold ids without texts", "name the corpus with --corpus_path")
    return first


def check_inline(name: str, group: Group) -> dict[str, Passage]:
    """Return the texts of a group in a collection whose first group has texts.

    Args:
        name: The collection, for messages.
        group: Any group of it.

    Returns:
        The passages by docid.

    Raises:
        UserError: The group holds ids only.
    """
    if group.passages is None:
        problem = f"{name}: query {group.query_id} holds ids, the first rows hold texts"
        raise UserError(problem, "put rows with texts and rows with ids in separate files")
    return group.passages


def unknown_document(group: Group, docid: str, corpus: Records[Passage] | None) -> UserError:
    """Return the error for an id that is not in the corpus, which the caller raises.

    Args:
        group: The group that names the document.
        docid: The document's id.
        corpus: The corpus, whose name is in the message.
    """
    problem = f"query {group.query_id} names the document {docid}, which {corpus.name if corpus else ''} lacks"
    return UserError(problem, "give the corpus that the training groups or qrels were made for")


def spread_positions(total: int, wanted: int) -> np.ndarray:
    """Return `wanted` positions below `total` at equal distances, all of them if there are fewer.

    Args:
        total: The number of positions.
        wanted: How many of them.

    Example:
        >>> spread_positions(10, 4).tolist()
        [0, 2, 5, 7]
    """
    return np.arange(total) if total <= wanted else np.arange(wanted) * total // wanted
