"""From sequences of word pieces to the tensors of one step: masked inputs, labels, visibility."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.pretrain.losses import IGNORED
from starbucks_retrieval.pretrain.masks import Masking, choose, find_words, random_order, replace
from starbucks_retrieval.pretrain.tokens import Pieces, WholeWordTokenizer
from starbucks_retrieval.pretrain.visibility import draw_visibility


class MaskingCollator:
    """Pads sequences on the right, to a multiple of `multiple` tokens, and masks them.

    Returns ids, attention_mask, encoder_ids, encoder_labels, all int64 [batch, T]. For a basic decoder also decoder_ids
    and decoder_labels of the second stream; for an enhanced one decoder_ids, which are ids, decoder_labels, which are
    all tokens but the special ones, and visible, bool [batch, T, T]. Labels are -100 where nothing is predicted.
    """

    def __init__(self, tokenizer: WholeWordTokenizer, masking: Masking, multiple: int = 8) -> None:
        self.tokenizer = tokenizer
        self.masking = masking
        self.multiple = multiple

    def __call__(self, rows: Sequence[Pieces], rng: np.random.Generator) -> dict[str, Tensor]:
        ids, starts, lengths = self._padded(rows)
        maskable = self._text(lengths, ids.shape[1]) & ~self.tokenizer.special[ids]
        words = find_words(starts, maskable, lengths)
        masking = self.masking
        count, most = words.sizes.shape
        orders = random_order(count, most, rng), random_order(count, most, rng)
        of_encoder, of_decoder = choose(words, orders, masking)
        always = masking.replace == "always_mask"
        vocabulary = self.tokenizer.mask_id, self.tokenizer.vocab_size
        batch = {"ids": ids, "attention_mask": np.arange(ids.shape[1]) < lengths[:, None]}
        batch["encoder_ids"], batch["encoder_labels"] = replace(ids, words.tokens(of_encoder), *vocabulary, rng, always)
        if masking.decoder == "basic":
            batch["decoder_ids"], batch["decoder_labels"] = replace(
                ids, words.tokens(of_decoder), *vocabulary, rng, always
            )
        elif masking.decoder == "enhanced":
            batch["decoder_ids"] = ids
            batch["decoder_labels"] = np.where(maskable, ids, IGNORED)
        tensors = {name: torch.from_numpy(values.astype(np.int64)) for name, values in batch.items()}
        if masking.decoder == "enhanced":
            tensors["visible"] = torch.from_numpy(
                draw_visibility(words, masking.decoder_probability, rng, masking.contexts, masking.max_predictions)
            )
        return tensors

    def _padded(self, rows: Sequence[Pieces]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids [batch, T], starts [batch, T], lengths [batch]; special tokens around each text, and no start in them."""
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        head = len(prefix)
        lengths = np.array([head + len(pieces.ids) + len(suffix) for pieces in rows])
        longest = -(-int(lengths.max()) // self.multiple) * self.multiple
        ids = np.full((len(rows), longest), self.tokenizer.pad_id, dtype=np.int64)
        starts = np.zeros(ids.shape, dtype=bool)
        ids[:, :head] = prefix
        for row, start, pieces in zip(ids, starts, rows):
            end = head + len(pieces.ids)
            row[head:end] = pieces.ids
            row[end : end + len(suffix)] = suffix
            start[head:end] = pieces.starts
        return ids, starts, lengths

    def _text(self, lengths: np.ndarray, longest: int) -> np.ndarray:
        """bool [batch, T]: places between the special tokens around each text."""
        places = np.arange(longest)
        return (places >= len(self.tokenizer.prefix)) & (places < (lengths - len(self.tokenizer.suffix))[:, None])
