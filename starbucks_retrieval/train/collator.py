"""Batches of token ids from training examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from starbucks_retrieval.train.data import Example
from starbucks_retrieval.train.examples import Text

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder


@dataclass
class Collator:
    """Tokenises a batch of examples without padding: queries first, then passages group by group.

    A call takes a list of examples and returns a dict with:

    - ids [tokens] and lengths [queries + passages]: token ids in one flat tensor, and tokens per text.
    - num_queries [].
    - docids [passages] and known [queries, most positives of one]: hashed ids of the passages, and of all positives of
      each query, padded with 0 (only zeros if false negatives are kept).
    - labels [queries] and teacher [queries, group], if the examples have them.
    - in_batch [queries], if data sets differ in it.
    - what the guide needs of the texts, in the same order, if there is one.
    - query_ids: a list, for messages.

    Args:
        encoder: Its tokenizer and maximum lengths are used.
        mask_false_negatives: Fill `known`.
        guided: `Teacher.inputs` of a guide, or None.
    """

    encoder: NestedEncoder
    mask_false_negatives: bool = True
    guided: Callable[[Sequence[Text]], dict[str, Tensor]] | None = None

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
        if examples[0].in_batch is not None:
            batch["in_batch"] = torch.tensor([example.in_batch for example in examples])
        if self.guided is not None:
            texts = [example.plain or [] for example in examples]
            batch |= self.guided([query for query, *_ in texts] + [text for _, *group in texts for text in group])
        return batch

    def _known(self, examples: Sequence[Example]) -> Tensor:
        if not self.mask_false_negatives:
            return torch.zeros(len(examples), 1, dtype=torch.int64)
        hashes = [sorted(map(_hash, example.positives)) for example in examples]
        widest = max(map(len, hashes))
        return torch.tensor([row + [0] * (widest - len(row)) for row in hashes])


def _hash(docid: str) -> int:
    """Return a hash of an id as int64, the same in every process; never 0."""
    return int.from_bytes(hashlib.blake2b(docid.encode(), digest_size=8).digest(), "little", signed=True) or 1
