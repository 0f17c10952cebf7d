"""From examples to one flat tensor of token ids: no padding exists before the encoder's chunks are cut."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from starbucks_retrieval.train.data import Example

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder


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
