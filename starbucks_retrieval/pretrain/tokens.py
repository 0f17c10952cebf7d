"""From texts to word pieces that know where each word begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from starbucks_retrieval.errors import UserError

MAX_WORD = 16  # pieces


class Pieces(NamedTuple):
    """A text as word pieces: ids int32 [pieces] without the special tokens around it; starts bool [pieces].

    starts is true where a word begins.
    """

    ids: np.ndarray
    starts: np.ndarray

    def cut(self, first: int, last: int) -> Pieces:
        """Pieces `first` up to `last`; what is left of a word that the cut goes through is a word of its own."""
        starts = self.starts[first:last].copy()
        starts[:1] = True
        return Pieces(self.ids[first:last], starts)


def join(parts: Sequence[Pieces]) -> Pieces:
    """Several texts as one."""
    return Pieces(np.concatenate([part.ids for part in parts]), np.concatenate([part.starts for part in parts]))


class WholeWordTokenizer:
    """A fast Hugging Face tokenizer that gives whole texts, uncut, with the begins of their words.

    Words are the tokenizer's own (`Encoding.word_ids`). A word of more than 16 pieces counts as that many words: such
    are the texts of scripts without spaces to some tokenizers, and no budget would ever admit them.

    prefix and suffix are the ids put around a text; special [vocabulary] is true for ids that are never masked: the
    special tokens, the unknown token among them. Raises UserError for a tokenizer without a mask token, without a token
    in front of the text (the bottleneck's place), or that cannot tell words.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                "the tokenizer has no fast version, which alone knows words", "save a tokenizer.json for it"
            )
        if tokenizer.mask_token_id is None:
            raise UserError(
                "the tokenizer has no mask token",
                "take a backbone trained as a masked language model, or add one: tokenizer.add_special_tokens({'mask_token': '[MASK]'})",
            )
        # A copy: truncation and padding are state that others may rely on, and that tokenizer.json may bring.
        self._fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._fast.no_truncation()
        self._fast.no_padding()
        self.mask_id = int(tokenizer.mask_token_id)
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self.vocab_size = len(tokenizer)
        self.special = np.zeros(self.vocab_size, dtype=bool)
        self.special[tokenizer.all_special_ids] = True
        probe = self._fast.encode("two words")
        text = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)
        if len(text) == 0 or len({probe.word_ids[i] for i in text}) < 2:
            raise UserError(
                "the tokenizer does not split texts into words, which whole-word masks need",
                "take a backbone whose tokenizer.json has a pre_tokenizer",
            )
        self.prefix = np.array(probe.ids[: text[0]], dtype=np.int32)
        self.suffix = np.array(probe.ids[text[-1] + 1 :], dtype=np.int32)
        if not len(self.prefix):
            raise UserError(
                "the tokenizer puts no token in front of a text, where masked auto-encoding keeps the text's embedding",
                "take a backbone with a [CLS] token",
            )

    def __call__(self, texts: Sequence[str]) -> list[Pieces]:
        """The pieces of each text."""
        encodings = self._fast.encode_batch(list(texts), add_special_tokens=False)
        ends = np.cumsum([0, *(len(encoding) for encoding in encodings)])
        total = int(ends[-1])
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total)
        words = np.fromiter(
            (-1 if word is None else word for encoding in encodings for word in encoding.word_ids), np.int32, total
        )
        starts = np.empty(total, dtype=bool)
        starts[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
        starts[ends[ends < total]] = True
        begins = np.flatnonzero(starts)
        sizes = np.diff(begins, append=total)
        starts |= np.repeat(sizes > MAX_WORD, sizes)
        return [Pieces(ids[first:last], starts[first:last]) for first, last in pairwise(ends)]
