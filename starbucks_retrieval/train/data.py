"""Training examples: passages sampled by seed and epoch from Arrow files, and batches of token ids."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.data import Group, Passage, Records, ScoredPair, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.train.arrow_shard import ArrowShard, Lacking, PassageRow, check_rows, write_groups, write_pairs

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """One query with the passages of its group, the positive first, and the ids of all its known positives.

    scores are a teacher's, one per passage, where the collections have them; label is how alike a scored pair is.
    """

    query: str
    docids: list[str]
    passages: list[str]
    positives: frozenset[str]
    query_id: str = ""
    scores: list[float] | None = None
    label: float | None = None


class TrainingSet:
    """Groups of one or several collections, indexed by (epoch, row) so that the choice of passages follows the epoch.

    Each group gives one positive, (shuffled start + epoch) modulo their number, and `group_size` - 1 negatives from a
    window that slides over its shuffled negatives by epoch. Source: the Tevatron data set of the released code, with a
    seeded generator in place of hash().
    """

    def __init__(
        self,
        group_size: int,
        seed: int,
        separator: str = " ",
        query_prefix: str = "",
        passage_prefix: str = "",
        with_scores: bool = False,
    ):
        self.group_size = group_size
        self.seed = seed
        self.separator = separator
        self.query_prefix = query_prefix
        self.passage_prefix = passage_prefix
        self.with_scores = with_scores
        self._parts: list[ArrowShard] = []
        self._names: list[str] = []
        self._keys: list[int] = []
        self._starts = [0]

    def add(
        self,
        name: str,
        groups: Records[Group] | Records[ScoredPair],
        corpus: Records[Passage] | None,
        folder: Path,
        scored_pairs: bool = False,
        read: bool = True,
    ) -> None:
        """Read a collection into Arrow files under `folder`, or with read=False use those another process wrote there.

        Raises UserError for an unknown document, for no negatives, or for no teacher's scores where they are needed.
        """
        number = len(self._parts)
        if read and scored_pairs:
            write_pairs(number, name, groups, folder)  # type: ignore[arg-type]
        elif read:
            write_groups(number, name, groups, corpus, folder)  # type: ignore[arg-type]
        part = ArrowShard.open(number, folder)
        self._check(name, part)
        self._parts.append(part)
        # A collection given twice, to be seen twice as often, has the same documents both times.
        self._names.append(name)
        self._keys.append(self._names.index(name))
        self._starts.append(self._starts[-1] + len(part))
        log.info("%s: %d training queries, %d passages", name, len(part), len(part.passages))

    def _check(self, name: str, part: ArrowShard) -> None:
        found = Lacking(len(part), part.without_negatives, part.without_scores)
        check_rows(name, found, self.group_size, self.with_scores)
        if self.group_size > 1 and part.without_negatives:
            log.warning(
                "%s: %d queries have no negatives of their own; random passages stand in", name, part.without_negatives
            )
        labelled = part.labelled
        if self._parts and self._parts[0].labelled != labelled:
            raise UserError("scored pairs and groups are trained with different losses", "train with one kind of data")

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, row = key
        part_number = int(np.searchsorted(self._starts, row, side="right")) - 1
        part = self._parts[part_number]
        group = part.row(row - self._starts[part_number])
        owner = self._keys[part_number]
        places = self._choose(part, group, row, epoch)
        rows = [group.documents[i] for i in places] if places is not None else self._stand_ins(part, group, row, epoch)
        passages = [part.passage(i) for i in rows]
        return Example(
            query=(self.query_prefix + group.query).strip(),
            docids=[f"{owner} {passage.docid}" for passage in passages],
            passages=[join_text(passage, self.separator, self.passage_prefix) for passage in passages],
            positives=frozenset(f"{owner} {part.passage(i).docid}" for i in group.documents[: group.positives]),
            query_id=group.query_id,
            scores=[group.scores[i] for i in places] if self.with_scores and places is not None else None,
            label=group.label,
        )

    def _choose(self, part: ArrowShard, group: PassageRow, row: int, epoch: int) -> list[int] | None:
        """Places in the group's documents, or None where the group has no negatives to choose from."""
        wanted = self.group_size - 1
        negatives = range(group.positives, len(group.documents))
        if wanted and not negatives:
            return None
        rng = np.random.default_rng([self.seed, row])
        return [_positive(group, epoch, rng), *_window(negatives, wanted, epoch, rng)]

    def _stand_ins(self, part: ArrowShard, group: PassageRow, row: int, epoch: int) -> list[int]:
        """Rows of the positive and of random passages in place of the negatives that a group lacks."""
        wanted = self.group_size - 1
        positive = _positive(group, epoch, np.random.default_rng([self.seed, row]))
        rng = np.random.default_rng([self.seed, row, epoch])
        own = set(group.documents)
        drawn = rng.choice(len(part.passages), min(len(part.passages), wanted + len(own)), replace=False)
        candidates = [int(i) for i in drawn if int(i) not in own]
        if not candidates:
            raise UserError(
                f"query {group.query_id} has every passage as a positive, so no other can be its negative",
                "add passages to the corpus, or set --train_group_size 1",
            )
        chosen = candidates[:wanted] if len(candidates) >= wanted else rng.choice(candidates, wanted).tolist()
        return [group.documents[positive], *chosen]


def _positive(group: PassageRow, epoch: int, rng: np.random.Generator) -> int:
    return (int(rng.integers(group.positives)) + epoch) % group.positives


def _window(negatives: range, wanted: int, epoch: int, rng: np.random.Generator) -> list[int]:
    """`wanted` negatives from the epoch's window over the shuffled list, drawn with replacement when there are fewer."""
    if not wanted:
        return []
    if len(negatives) < wanted:
        return [negatives[int(i)] for i in rng.choice(len(negatives), wanted)]
    shuffled = rng.permutation(np.asarray(negatives))
    start = epoch * wanted % len(shuffled)
    return [int(i) for i in np.concatenate([shuffled, shuffled])[start : start + wanted]]


class Collator:
    """Tokenises a batch of examples: queries first, then passages group after group.

    Returns ids [tokens], lengths [queries + passages], num_queries [], docids [passages] and known [queries, most
    positives of one], the hashed ids of the passages and of all positives of each query (0 pads; none where false
    negatives are kept); where the examples have them, labels [queries] and teacher [queries, group]; and query_ids, a
    list for messages.
    """

    def __init__(self, encoder: NestedEncoder, mask_false_negatives: bool = True) -> None:
        self.encoder = encoder
        self.mask_false_negatives = mask_false_negatives

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        encoder = self.encoder
        passages = [text for example in examples for text in example.passages]
        rows = encoder.tokenize([example.query for example in examples], encoder.max_length(True))
        rows += encoder.tokenize(passages, encoder.max_length(False))
        batch: dict[str, Any] = {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "num_queries": torch.tensor(len(examples)),
            "docids": torch.tensor([_hash(docid) for example in examples for docid in example.docids]),
            "known": self._known(examples),
            "query_ids": [example.query_id for example in examples],
        }
        if examples[0].label is not None:
            batch["labels"] = torch.tensor([example.label for example in examples])
        if examples[0].scores is not None:
            batch["teacher"] = torch.tensor([example.scores for example in examples])
        return batch

    def _known(self, examples: Sequence[Example]) -> Tensor:
        if not self.mask_false_negatives:
            return torch.zeros(len(examples), 1, dtype=torch.int64)
        hashes = [sorted(map(_hash, example.positives)) for example in examples]
        widest = max(map(len, hashes))
        return torch.tensor([row + [0] * (widest - len(row)) for row in hashes])


def _hash(docid: str) -> int:
    """A number that stands for an id in tensors, the same in every process; never 0."""
    return int.from_bytes(hashlib.blake2b(docid.encode(), digest_size=8).digest(), "little", signed=True) or 1
