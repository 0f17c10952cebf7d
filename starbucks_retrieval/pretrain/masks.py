"""Whole-word masks, the replacement of masked tokens, and the visibility of enhanced decoding."""

from __future__ import annotations

import dataclasses
import typing
from typing import Literal, NamedTuple

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.pretrain.losses import IGNORED


@dataclasses.dataclass(frozen=True)
class Masking:
    """How tokens are hidden.

    encoder_probability, decoder_probability: the part of a sequence's tokens, special ones counted, that may be masked.
    masks nested: one order of words serves both streams, and the encoder's are among the decoder's; independent: each
    has its own. replace 80/10/10: a masked token becomes the mask token, a random one, or stays; always_mask. decoder
    basic: masked tokens in the decoder too; enhanced: RetroMAE's visibility, a context of its own for every token, of
    `contexts` drawn for a sequence; none: the encoder's masks alone.
    """

    encoder_probability: float = 0.2
    decoder_probability: float = 0.4
    masks: Literal["nested", "independent"] = "nested"
    replace: Literal["80/10/10", "always_mask"] = "80/10/10"
    decoder: Literal["basic", "enhanced", "none"] = "basic"
    max_predictions: int = 512
    contexts: int = 256

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            if typing.get_origin(hint) is Literal and getattr(self, name) not in typing.get_args(hint):
                raise UserError(f"{name} cannot be {getattr(self, name)!r}", f"take {', '.join(typing.get_args(hint))}")
        for name in ("encoder_probability", "decoder_probability"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}", "give a number between 0 and 1, as 0.3")


class Words(NamedTuple):
    """Which tokens of a padded batch form which words.

    word_of int32 [batch, length]: the word of each token, and W for tokens that are never masked (special ones, padding).
    sizes int32 [batch, W]: tokens in each word, 0 for words that a row does not have. lengths [batch]: tokens in each
    row, special ones included.
    """

    word_of: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray

    def tokens(self, words: np.ndarray) -> np.ndarray:
        """bool [batch, length]: the tokens of those words that are true in `words` [batch, W]."""
        none = np.zeros((len(words), 1), dtype=bool)
        return np.take_along_axis(np.concatenate([words, none], axis=1), self.word_of, axis=1)


def find_words(starts: np.ndarray, maskable: np.ndarray, lengths: np.ndarray) -> Words:
    """The words of a batch: starts, maskable bool [batch, length]; lengths [batch]. A word begins at every start."""
    index = np.cumsum(starts, axis=1, dtype=np.int32) - 1
    count = int(index.max(initial=-1)) + 1
    index[~maskable] = count
    rows = np.arange(len(index), dtype=np.int32)[:, None] * (count + 1)
    sizes = np.bincount((rows + index).ravel(), minlength=len(index) * (count + 1)).reshape(len(index), count + 1)
    return Words(index, sizes[:, :count].astype(np.int32), np.asarray(lengths))


def budgets(lengths: np.ndarray, probability: float, max_predictions: int = 512) -> np.ndarray:
    """Tokens that may be masked in rows of these lengths: a rounded part of them, 1 at least."""
    return np.clip(np.rint(lengths * probability), 1, max_predictions).astype(np.int32)


def random_order(rows: int, words: int, rng: np.random.Generator) -> np.ndarray:
    """[rows, words]: a random permutation of the words in each row."""
    # Random bits above, the word's number below: one plain sort, several times faster than an argsort.
    low = max(words - 1, 1).bit_length()
    keys = rng.integers(0, 1 << 32, (rows, words), dtype=np.uint32)
    keys &= np.uint32((1 << 32) - (1 << low))
    keys |= np.arange(words, dtype=np.uint32)
    keys.sort(axis=1)
    return (keys & np.uint32((1 << low) - 1)).astype(np.int32)


def walk(sizes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Take words in their order as long as a row's limit holds, skipping each that would go beyond it.

    sizes [rows, W] of the words in the order of the walk, 0 for words not offered; limits [rows]. Returns bool
    [rows, W]. A round takes every word up to the first that overflows; whatever is larger than what is left then can
    never be taken, so that what is left shrinks below that word's size: there are as many rounds as sizes, at most.
    """
    taken = np.zeros(sizes.shape, dtype=bool)
    rows = np.arange(len(sizes) if sizes.size else 0)
    left = np.asarray(limits, dtype=np.int32)
    while len(rows):
        if (sizes.max(axis=1, initial=0) > left).any():
            sizes = np.where(sizes <= left[:, None], sizes, 0)
        total = np.cumsum(sizes, axis=1, dtype=np.int32)
        below = total <= left[:, None]
        taken[rows] |= below & (sizes > 0)
        last = below.sum(axis=1) - 1  # totals only grow: those below the limit come first
        after = left - np.where(last < 0, 0, total[np.arange(len(rows)), last])
        going = ~below[:, -1] & (after > 0)
        rows, left, sizes = rows[going], after[going], np.where(below[going], 0, sizes[going])
    return taken


def choose(words: Words, orders: tuple[np.ndarray, np.ndarray], masking: Masking) -> tuple[np.ndarray, np.ndarray]:
    """The words masked for encoder and decoder, both bool [batch, W], by a walk through each one's order [batch, W].

    Nested: words are admitted up to the larger budget; those that fit the decoder's are its own, and those of them that
    fit the encoder's are the encoder's too. Source: the released code of Starbucks (arXiv 2410.13230).
    """
    encoder, decoder = (
        budgets(words.lengths, probability, masking.max_predictions)
        for probability in (masking.encoder_probability, masking.decoder_probability)
    )
    if masking.masks == "independent":
        return _walked(words.sizes, orders[0], encoder), _walked(words.sizes, orders[1], decoder)
    admitted = _walked(words.sizes, orders[0], np.maximum(encoder, decoder))
    of_decoder = _walked(words.sizes * admitted, orders[0], decoder)
    return _walked(words.sizes * of_decoder, orders[0], encoder), of_decoder


def _walked(sizes: np.ndarray, order: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """`walk` in the given order; the result is back in the order of the words."""
    taken = np.zeros(sizes.shape, dtype=bool)
    np.put_along_axis(taken, order, walk(np.take_along_axis(sizes, order, axis=1), limits), axis=1)
    return taken


def replace(
    ids: np.ndarray,
    chosen: np.ndarray,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
    always_mask: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """(input ids, labels), both like `ids` [batch, length], for the tokens that are true in `chosen` [batch, length].

    Of the chosen 80 % become the mask token, 10 % any token of the vocabulary, each as likely, and 10 % stay. Labels
    are the ids where chosen, -100 elsewhere. Source: BERT, as in transformers' DataCollatorForLanguageModeling.
    """
    inputs = ids.copy()
    labels = np.where(chosen, ids, IGNORED)
    if always_mask:
        inputs[chosen] = mask_id
        return inputs, labels
    places = np.flatnonzero(chosen)
    fate = rng.random(len(places))
    inputs.flat[places[fate < 0.8]] = mask_id
    random = places[(fate >= 0.8) & (fate < 0.9)]
    inputs.flat[random] = rng.integers(0, vocab_size, len(random))
    return inputs, labels


def visibility(hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """bool [batch, T, T]: may row i attend to column j. hidden bool [batch, T, T]: columns that are drawn away from i.

    Column 0, which holds the embedding, is seen by all rows but row 0; no row sees itself; rows and columns of padding
    (from lengths [batch] on) see nothing and are not seen. Source: RetroMAE (arXiv 2205.12035), eq. 6, and its code.
    """
    visible = ~hidden
    visible[:, :, 0] = True
    places = np.arange(hidden.shape[1])
    visible[:, places, places] = False
    for row, length in zip(visible, lengths):
        row[length:] = False
        row[:, length:] = False
    return visible


def draw_visibility(
    words: Words,
    probability: float,
    rng: np.random.Generator,
    contexts: int = 256,
    max_predictions: int = 512,
) -> np.ndarray:
    """bool [batch, T, T], with contexts drawn for a batch of T tokens a row.

    Of each sequence min(length, `contexts`) whole-word masks are drawn under the budget of `probability`; each of its
    rows picks one of them, with replacement. Masks that no row picks are never made. Special tokens are in no mask.
    """
    batch, longest = words.word_of.shape
    count = words.sizes.shape[1]
    picks = (rng.random((batch, longest)) * np.minimum(words.lengths, contexts)[:, None]).astype(np.int64)
    picks += np.arange(batch)[:, None] * contexts
    inside = np.arange(longest) < np.asarray(words.lengths)[:, None]
    drawn, which = np.unique(picks[inside], return_inverse=True)
    owner = (drawn // contexts).astype(np.int32)  # the sequence of each mask
    order = random_order(len(drawn), count, rng)
    sizes = np.take(words.sizes, owner[:, None] * np.int32(count) + order)
    taken = walk(sizes, budgets(words.lengths, probability, max_predictions)[owner])
    masks = np.zeros((len(drawn), count + 1), dtype=bool)  # the last word is that of tokens which have none
    masks.ravel()[(np.arange(len(drawn))[:, None] * (count + 1) + order)[taken]] = True
    hidden = np.zeros((batch, longest, longest), dtype=bool)
    first, row = 0, 0
    for i, length in enumerate(words.lengths):
        last = int(np.searchsorted(owner, i, side="right"))
        tokens = masks[first:last][:, words.word_of[i]]
        hidden[i, :length] = tokens[which[row : row + length] - first]
        first, row = last, row + length
    return visibility(hidden, words.lengths)
