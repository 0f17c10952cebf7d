"""From examples to one flat tensor of token ids: no padding exists before the encoder's chunks are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from starbucks_retrieval.train.data import Example

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder


class Collator:
    """Tokenises a batch of examples: queries first, then passages group after group.

    Returns ids [tokens], lengths [queries + passages], num_queries [], and excluded bool [queries, passages]: passages
    that a query knows as positives besides the one it trains on (all false where false negatives are kept).
    """

    def __init__(self, encoder: NestedEncoder, mask_false_negatives: bool = True) -> None:
        self.encoder = encoder
        self.mask_false_negatives = mask_false_negatives

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        encoder = self.encoder
        passages = [text for example in examples for text in example.passages]
        rows = encoder.tokenize([example.query for example in examples], encoder.max_length(True))
        rows += encoder.tokenize(passages, encoder.max_length(False))
        return {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "num_queries": torch.tensor(len(examples)),
            "excluded": excluded_passages(examples) if self.mask_false_negatives else _nothing(examples),
        }


def excluded_passages(examples: Sequence[Example]) -> Tensor:
    """bool [queries, passages]: known positives of a query in other places than its own positive's."""
    docids = [docid for example in examples for docid in example.docids]
    mask = torch.zeros(len(examples), len(docids), dtype=torch.bool)
    own = 0
    for i, example in enumerate(examples):
        for column, docid in enumerate(docids):
            mask[i, column] = docid in example.positives
        mask[i, own] = False
        own += len(example.docids)
    return mask


def _nothing(examples: Sequence[Example]) -> Tensor:
    return torch.zeros(len(examples), sum(len(example.docids) for example in examples), dtype=torch.bool)
