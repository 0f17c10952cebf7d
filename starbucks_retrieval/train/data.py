"""Training groups on disk: texts in memory-mapped Arrow files, each epoch's passages chosen by seed."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.texts import Group, Passage, Records, join_text

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
_ROWS_PER_BATCH = 4096


@dataclass(frozen=True)
class Example:
    """One query with the passages of its group, the positive first, and the ids of all its known positives."""

    query: str
    docids: list[str]
    passages: list[str]
    positives: frozenset[str]


class TrainingSet:
    """Groups of one or several collections, indexed by (epoch, row) so that the choice of passages follows the epoch.

    Each group gives one positive, (shuffled start + epoch) modulo their number, and `group_size` - 1 negatives from a
    window that slides over its shuffled negatives by epoch. Source: the Tevatron data set of the released code, with a
    seeded generator in place of hash().
    """

    def __init__(
        self, group_size: int, seed: int, separator: str = " ", query_prefix: str = "", passage_prefix: str = ""
    ):
        self.group_size = group_size
        self.seed = seed
        self.separator = separator
        self.query_prefix = query_prefix
        self.passage_prefix = passage_prefix
        self._parts: list[_Part] = []
        self._names: list[str] = []
        self._keys: list[int] = []
        self._starts = [0]

    def add(self, name: str, groups: Records[Group], corpus: Records[Passage] | None, folder: Path) -> None:
        """Read a collection into Arrow files under `folder`. Raises UserError for an unknown document or no negatives."""
        number = len(self._parts)
        part = _Part.build(number, name, groups, corpus, folder)
        if self.group_size > 1 and not part.has_negatives:
            raise UserError(
                f"--train_group_size {self.group_size} asks for {self.group_size - 1} hard negatives a query, but {name} has none",
                "set --train_group_size 1 (in-batch negatives only), or give groups with negatives",
            )
        if self.group_size > 1 and part.without_negatives:
            log.warning(
                "%s: %d queries have no negatives of their own; random passages stand in", name, part.without_negatives
            )
        self._parts.append(part)
        # A collection given twice, to be seen twice as often, has the same documents both times.
        self._names.append(name)
        self._keys.append(self._names.index(name))
        self._starts.append(self._starts[-1] + len(part))
        log.info("%s: %d training queries, %d passages", name, len(part), len(part.passages))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, row = key
        part_number = int(np.searchsorted(self._starts, row, side="right")) - 1
        part = self._parts[part_number]
        group = part.group(row - self._starts[part_number])
        owner = self._keys[part_number]
        rng = np.random.default_rng([self.seed, row])
        positive = group.positives[(int(rng.integers(len(group.positives))) + epoch) % len(group.positives)]
        wanted = self.group_size - 1
        candidates = group.negatives
        if wanted and not candidates:
            rng = np.random.default_rng([self.seed, row, epoch])
            drawn = min(len(part.passages), wanted + len(group.positives))
            candidates = [int(i) for i in rng.choice(len(part.passages), drawn, replace=False)]
            candidates = [i for i in candidates if i not in group.positives]
        rows = [positive, *_window(candidates, wanted, epoch, rng)]
        passages = [part.passage(i) for i in rows]
        return Example(
            query=(self.query_prefix + group.query).strip(),
            docids=[f"{owner} {passage.docid}" for passage in passages],
            passages=[join_text(passage, self.separator, self.passage_prefix) for passage in passages],
            positives=frozenset(f"{owner} {part.passage(i).docid}" for i in group.positives),
        )


def _window(negatives: list[int], wanted: int, epoch: int, rng: np.random.Generator) -> list[int]:
    """`wanted` negatives from the epoch's window over the shuffled list, drawn with replacement when there are fewer."""
    if not wanted:
        return []
    if len(negatives) < wanted:
        return [negatives[int(i)] for i in rng.choice(len(negatives), wanted)]
    shuffled = rng.permutation(negatives)
    start = epoch * wanted % len(shuffled)
    return [int(i) for i in np.concatenate([shuffled, shuffled])[start : start + wanted]]


@dataclass(frozen=True)
class _Rows:
    query: str
    positives: list[int]
    negatives: list[int]


class _Part:
    """One collection: a table of passages and a table of groups that point into it."""

    def __init__(self, groups: pa.Table, passages: pa.Table, without_negatives: int) -> None:
        self.groups = groups
        self.passages = passages
        self.without_negatives = without_negatives
        self.has_negatives = without_negatives < len(groups)

    def __len__(self) -> int:
        return len(self.groups)

    def group(self, row: int) -> _Rows:
        found = self.groups.slice(row, 1).to_pylist()[0]
        return _Rows(found["query"], found["positives"], found["negatives"])

    def passage(self, row: int) -> Passage:
        return Passage(**self.passages.slice(row, 1).to_pylist()[0])

    @classmethod
    def build(
        cls, number: int, name: str, groups: Records[Group], corpus: Records[Passage] | None, folder: Path
    ) -> _Part:
        import pyarrow as pa

        first = next(iter(groups), None)
        if first is None:
            raise UserError(f"{name} holds no training groups", "check the path and the split")
        integers = pa.list_(pa.int64())
        group_schema = pa.schema([("query", pa.string()), ("positives", integers), ("negatives", integers)])
        passage_schema = pa.schema([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())])
        passages: Iterable[Passage]
        if first.passages is not None:
            passages = _inline(groups, name)
        elif corpus is not None:
            passages = corpus
        else:
            raise UserError(f"the groups of {name} hold ids without texts", "name the corpus with --corpus_path")
        rows = ({"docid": p.docid, "title": p.title, "text": p.text} for p in passages)
        table = _written(folder / f"passages-{number}.arrow", rows, passage_schema, f"{name}: passages")
        pointers = _running(groups) if first.passages is not None else _looked_up(groups, table, corpus)
        group_table = _written(folder / f"groups-{number}.arrow", pointers, group_schema, f"{name}: groups")
        without = sum(not len(found) for found in group_table.column("negatives"))
        return cls(group_table, table, without)


def _ids(group: Group) -> tuple[str, ...]:
    return (*group.positive_ids, *group.negative_ids)


def _inline(groups: Iterable[Group], name: str) -> Iterator[Passage]:
    """The passages of groups that carry them. Raises UserError for a group among them that holds ids only."""
    for group in groups:
        if group.passages is None:
            raise UserError(
                f"{name}: query {group.query_id} holds ids, the first rows hold texts",
                "keep rows with texts and rows with ids in files of their own",
            )
        for docid in _ids(group):
            yield group.passages[docid]


def _running(groups: Iterable[Group]) -> Iterator[dict[str, Any]]:
    """Groups whose passages were written one group after the other, in the order of _ids."""
    start = 0
    for group in groups:
        middle = start + len(group.positive_ids)
        stop = middle + len(group.negative_ids)
        yield {"query": group.query, "positives": [*range(start, middle)], "negatives": [*range(middle, stop)]}
        start = stop


def _looked_up(groups: Iterable[Group], table: pa.Table, corpus: Records[Passage] | None) -> Iterator[dict[str, Any]]:
    """Groups whose ids are found in the corpus table. Raises UserError for an id that is not there."""
    docids = np.array([docid.as_py().encode() for docid in table.column("docid")], dtype=np.bytes_)
    order = np.argsort(docids, kind="stable")
    ordered = docids[order]

    def rows(ids: tuple[str, ...], group: Group) -> list[int]:
        wanted = np.array([docid.encode() for docid in ids], dtype=np.bytes_)
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        for docid, present in zip(ids, ordered[at] == wanted):
            if not present:
                raise UserError(
                    f"query {group.query_id} names the document {docid}, which {corpus.name if corpus else ''} lacks",
                    "give the corpus that the training groups or qrels were made for",
                )
        return [int(i) for i in order[at]]

    for group in groups:
        positives = rows(group.positive_ids, group)
        yield {"query": group.query, "positives": positives, "negatives": rows(group.negative_ids, group)}


def _written(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema, label: str) -> pa.Table:
    """Stream rows into an Arrow file and map it back into memory."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        stream = iter(progress(rows, None, "rows", label))
        while batch := list(itertools.islice(stream, _ROWS_PER_BATCH)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
