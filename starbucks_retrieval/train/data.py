"""Training examples: passages sampled by seed and epoch from Arrow files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from starbucks_retrieval.data import Group, Passage, Records, ScoredPair, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.texts import take_turns
from starbucks_retrieval.train.arrow_shard import (
    ArrowShard,
    PassageRow,
    spread_positions,
    write_groups,
    write_pairs,
)
from starbucks_retrieval.train.examples import Example, Text
from starbucks_retrieval.train.mixture import DataSet, Mixture

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MissingCounts:
    """Counts of a collection's rows, and of those that lack something.

    Attributes:
        rows: All rows that were counted.
        negatives: Rows without hard negatives.
        scores: Rows without a teacher's scores.
    """

    rows: int
    negatives: int
    scores: int


def check_rows(name: str, missing: MissingCounts, group_size: int, with_scores: bool, complete: bool = True) -> None:
    """Check that a collection has the negatives and the scores that training needs.

    Args:
        name: The collection, for messages.
        missing: The counts of its rows.
        group_size: Passages per query.
        with_scores: Whether training needs a teacher's scores.
        complete: Whether all rows were counted; if not, later rows may have negatives.

    Raises:
        UserError: No row has negatives, or some row has no scores.
    """
    wanted = group_size - 1
    if complete and wanted and missing.negatives == missing.rows:
        raise UserError(
            f"--train_group_size {group_size} needs {wanted} hard negatives per query, but {name} has none",
            "set --train_group_size 1 (in-batch negatives only), or give groups with negatives",
        )
    if with_scores and (missing.scores or (wanted and missing.negatives)):
        raise UserError(
            f"distillation needs a teacher's scores, and {max(missing.scores, missing.negatives)} "
            f"queries of {name} lack them",
            "give rows with positive_scores and negative_scores, as mine --save_scores true writes them",
        )


@dataclass
class TrainingSet:
    """Training groups of one or more collections, indexed by (epoch, row).

    Each epoch uses one positive of a group, the next one in a cycle with a random start, and `group_size` - 1 negatives
    from a window that moves over the group's shuffled negatives. Source: the Tevatron data set of the released code,
    with a seeded generator instead of hash().

    Args:
        group_size: Passages per query.
        seed: Seed of the choice of passages.
        separator: Text between the title and the text of a passage.
        query_prefix: Text before every query.
        passage_prefix: Text before every passage.
        with_scores: Return a teacher's scores.
        in_batch: Return whether passages of other queries are negatives of an example; this is the value of data sets
            that do not say. None returns nothing.
        with_plain: Return texts without prefixes too.
    """

    group_size: int
    seed: int
    separator: str = " "
    query_prefix: str = ""
    passage_prefix: str = ""
    with_scores: bool = False
    in_batch: bool | None = None
    with_plain: bool = False

    def __post_init__(self) -> None:
        self._shards: list[ArrowShard] = []
        self._sets: list[DataSet] = []
        self._starts = [0]

    def add(
        self,
        name: str,
        groups: Records[Group] | Records[ScoredPair],
        corpus: Records[Passage] | None,
        folder: Path,
        scored_pairs: bool = False,
        read: bool = True,
        options: DataSet | None = None,
    ) -> None:
        """Add a collection.

        Args:
            name: The collection; one that is added twice is seen twice as often.
            groups: Its rows.
            corpus: Texts for groups that hold ids.
            folder: Where the Arrow files are written.
            scored_pairs: Whether the rows are scored pairs.
            read: Write the files; False maps those that another process wrote.
            options: Its weight and settings; None takes those of the run.

        Raises:
            UserError: A document is unknown, or negatives or scores that training needs are missing.
        """
        number = len(self._shards)
        if read and scored_pairs:
            write_pairs(number, name, groups, folder)  # type: ignore[arg-type]
        elif read:
            write_groups(number, name, groups, corpus, folder)  # type: ignore[arg-type]
        shard = ArrowShard.open(number, folder)
        options = options or DataSet(name)
        self._check(options, shard)
        self._shards.append(shard)
        self._sets.append(options)
        self._starts.append(self._starts[-1] + len(shard))
        log.info("%s: %d training queries, %d passages", name, len(shard), len(shard.passages))

    def mixture(self, exponent: float = 1.0, batch: int = 0) -> Mixture:
        """Return what the sampler needs to know; see `Mixture`.

        Raises:
            UserError: A data set is smaller than a batch from one data set.
        """
        found = Mixture([len(one) for one in self._shards], [one.weight for one in self._sets], exponent, batch)
        found.check([one.name for one in self._sets])
        return found

    def _check(self, options: DataSet, shard: ArrowShard) -> None:
        name, group_size = options.name, options.train_group_size or self.group_size
        missing = MissingCounts(len(shard), shard.without_negatives, shard.without_scores)
        check_rows(name, missing, group_size, self.with_scores)
        if group_size > 1 and shard.without_negatives:
            message = "%s: %d queries have no negatives; random passages are used instead"
            log.warning(message, name, shard.without_negatives)
        if self._shards and self._shards[0].labelled != shard.labelled:
            raise UserError("scored pairs and groups need different losses", "train with one kind of data")

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: tuple[int, int]) -> Example:
        epoch, row = index
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        shard = self._shards[number]
        group = shard.row(row - self._starts[number])
        options = self._sets[number]
        # a collection that is added twice has the same documents
        key = next(
            i for i, one in enumerate(self._sets) if (one.name, one.corpus_path) == (options.name, options.corpus_path)
        )
        wanted = (options.train_group_size or self.group_size) - 1
        positions = self._choose(group, wanted, row, epoch)
        if positions is None:
            rows, scores = self._stand_ins(shard, group, wanted, row, epoch), None
        else:
            rows = [group.documents[i] for i in positions]
            scores = [group.scores[i] for i in positions] if self.with_scores else None
        passages = [shard.passage(i) for i in rows]
        return Example(
            query=(self._prefix(number, True) + group.query).strip(),
            docids=[f"{key} {passage.docid}" for passage in passages],
            passages=[join_text(passage, self.separator, self._prefix(number, False)) for passage in passages],
            positives=frozenset(f"{key} {shard.passage(i).docid}" for i in group.documents[: group.positives]),
            query_id=group.query_id,
            scores=scores,
            label=group.label,
            in_batch=self.in_batch if options.in_batch_negatives is None else options.in_batch_negatives,
            plain=self._plain(group.query, passages) if self.with_plain else None,
        )

    def _prefix(self, number: int, is_query: bool) -> str:
        """Return the text before the queries or the passages of a collection."""
        options = self._sets[number]
        own = options.query_prefix if is_query else options.passage_prefix
        return own if own is not None else self.query_prefix if is_query else self.passage_prefix

    def _plain(self, query: str, passages: list[Passage]) -> list[Text]:
        texts = [join_text(passage, self.separator) for passage in passages]
        return [Text(0, query.strip(), True), *(Text(0, text, False) for text in texts)]

    def sample_texts(self, count: int) -> Iterator[tuple[str, bool]]:
        """Yield about `count` texts with whether they are queries; at most half are. They are spread over the collections.

        Args:
            count: How many.
        """
        rows = spread_positions(len(self), count // 2)
        starts = np.cumsum([0, *(len(shard.passages) for shard in self._shards)]).tolist()
        numbers = spread_positions(starts[-1], count - len(rows))
        for is_query, position in take_turns([numbers, rows]):
            first = self._starts if is_query else starts
            number = int(np.searchsorted(first, position, side="right")) - 1
            shard, row = self._shards[number], int(position) - first[number]
            if is_query:
                text = (self._prefix(number, True) + shard.row(row).query).strip()
            else:
                text = join_text(shard.passage(row), self.separator, self._prefix(number, False))
            if text:
                yield text, bool(is_query)

    def _choose(self, group: PassageRow, wanted: int, row: int, epoch: int) -> list[int] | None:
        """Return positions in the group's documents, or None if the group has no negatives."""
        negatives = range(group.positives, len(group.documents))
        if wanted and not negatives:
            return None
        rng = np.random.default_rng([self.seed, row])
        return [_positive(group, epoch, rng), *_window(negatives, wanted, epoch, rng)]

    def _stand_ins(self, shard: ArrowShard, group: PassageRow, wanted: int, row: int, epoch: int) -> list[int]:
        """Return the passage numbers of the positive and of random passages, for a group without negatives."""
        positive = _positive(group, epoch, np.random.default_rng([self.seed, row]))
        rng = np.random.default_rng([self.seed, row, epoch])
        known = set(group.documents)
        drawn = rng.choice(len(shard.passages), min(len(shard.passages), wanted + len(known)), replace=False)
        candidates = [int(i) for i in drawn if int(i) not in known]
        if not candidates:
            problem = f"every passage is a positive of query {group.query_id}, so it has no negatives"
            raise UserError(problem, "add passages to the corpus, or set --train_group_size 1")
        chosen = candidates[:wanted] if len(candidates) >= wanted else rng.choice(candidates, wanted).tolist()
        return [group.documents[positive], *chosen]


def _positive(group: PassageRow, epoch: int, rng: np.random.Generator) -> int:
    return (int(rng.integers(group.positives)) + epoch) % group.positives


def _window(negatives: range, wanted: int, epoch: int, rng: np.random.Generator) -> list[int]:
    """Return `wanted` negatives from the epoch's window, or a sample with replacement if there are fewer."""
    if not wanted:
        return []
    if len(negatives) < wanted:
        return [negatives[int(i)] for i in rng.choice(len(negatives), wanted)]
    shuffled = rng.permutation(np.asarray(negatives))
    start = epoch * wanted % len(shuffled)
    return [int(i) for i in np.concatenate([shuffled, shuffled])[start : start + wanted]]


@dataclass(eq=False)
class MixtureSampler(torch.utils.data.Sampler):
    """Yields (pass, row) pairs in an order that depends on the seed and the epoch only.

    Args:
        mixture: The data sets.
        seed: The seed.
        epoch: Called at the start of an epoch, returns its number.
    """

    mixture: Mixture
    seed: int
    epoch: Callable[[], int]

    def __len__(self) -> int:
        return len(self.mixture)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # Read here instead of set by set_epoch, which the data loader of a resumed run does not forward.
        passes, rows = self.mixture.order(self.seed, self.epoch())
        return ((int(one), int(row)) for one, row in zip(passes, rows))
