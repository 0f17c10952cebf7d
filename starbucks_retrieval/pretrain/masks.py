"""Whole-word masks, the replacement of masked tokens, and the visibility of enhanced decoding."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.pretrain import check_choices

IGNORED = -100  # the label of tokens that are not predicted, as in transformers


@dataclasses.dataclass(frozen=True)
class Masking:
    """How tokens are masked.

    Attributes:
        encoder_probability: Part of a sequence's tokens, special tokens counted, that may be masked for the encoder.
        decoder_probability: The same for the decoder.
        masks: nested draws one order of words, so the encoder's masked words are among the decoder's; independent draws
            two.
        replace: 80/10/10 replaces a masked token by the mask token, a random token or itself; always_mask by the mask
            token only.
        decoder: basic masks the decoder's input; enhanced gives every token its own visible part of the text
            (RetroMAE); none masks for the encoder only.
        max_predictions: Masked tokens of a sequence at most.
        contexts: Visible parts that are drawn for a sequence, in enhanced decoding.

    Raises:
        UserError: A value is out of range.
    """

    encoder_probability: float = 0.2
    decoder_probability: float = 0.4
    masks: Literal["nested", "independent"] = "nested"
    replace: Literal["80/10/10", "always_mask"] = "80/10/10"
    decoder: Literal["basic", "enhanced", "none"] = "basic"
    max_predictions: int = 512
    contexts: int = 256

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("encoder_probability", "decoder_probability"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}", "give a number between 0 and 1, as 0.3")


class Words(NamedTuple):
    """The words of a padded batch.

    Attributes:
        word_of: int32 [batch, length], the word of each token; W for tokens that are never masked (special, padding).
        sizes: int32 [batch, W], tokens of each word, 0 for words that a row does not have.
        lengths: [batch], tokens of each row, special tokens included.
    """

    word_of: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray

    def tokens(self, words: np.ndarray) -> np.ndarray:
        """Return bool [batch, length], the tokens of the words that are true in `words` [batch, W]."""
        no_word = np.zeros((len(words), 1), dtype=bool)
        return np.take_along_axis(np.concatenate([words, no_word], axis=1), self.word_of, axis=1)


def find_words(starts: np.ndarray, maskable: np.ndarray, lengths: np.ndarray) -> Words:
    """Return the words of a batch; a word begins at every start.

    Args:
        starts: bool [batch, length].
        maskable: bool [batch, length], False for special tokens and padding.
        lengths: [batch], tokens of each row.
    """
    index = np.cumsum(starts, axis=1, dtype=np.int32) - 1
    count = int(index.max(initial=-1)) + 1
    index[~maskable] = count
    rows = np.arange(len(index), dtype=np.int32)[:, None] * (count + 1)
    sizes = np.bincount((rows + index).ravel(), minlength=len(index) * (count + 1)).reshape(len(index), count + 1)
    return Words(index, sizes[:, :count].astype(np.int32), np.asarray(lengths))


def budgets(lengths: np.ndarray, probability: float, max_predictions: int = 512) -> np.ndarray:
    """Return how many tokens may be masked in rows of these lengths: a rounded part, at least 1.

    Args:
        lengths: (rows,) int, tokens of each row.
        probability: The part of a row that is masked.
        max_predictions: The most tokens of a row.

    Returns:
        (rows,) int32.

    Example:
        >>> budgets(np.array([3, 10, 512]), 0.2)
        array([  1,   2, 102], dtype=int32)
    """
    return np.clip(np.rint(lengths * probability), 1, max_predictions).astype(np.int32)


def random_order(rows: int, words: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random permutation of the words in each row.

    Args:
        rows: The number of permutations.
        words: The number of words in each.
        rng: The source of random numbers; equal generators give equal permutations.

    Returns:
        int32 [rows, words], each row a permutation of 0 … words - 1.
    """
    # Random high bits and the word's number in the low bits: one sort, several times faster than an argsort.
    low = max(words - 1, 1).bit_length()
    keys = rng.integers(0, 1 << 32, (rows, words), dtype=np.uint32)
    keys &= np.uint32((1 << 32) - (1 << low))
    keys |= np.arange(words, dtype=np.uint32)
    keys.sort(axis=1)
    return (keys & np.uint32((1 << low) - 1)).astype(np.int32)


def take_within_budget(sizes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Take words in order while they fit a row's limit, skipping words that would exceed it.

    Each round takes all words up to the first that does not fit; then the rest of the limit is smaller than that word,
    so there are at most as many rounds as distinct word sizes.

    Args:
        sizes: [rows, W], tokens of the words in the order in which they are taken; 0 for words not offered.
        limits: [rows], tokens that may be taken.

    Returns:
        bool [rows, W], the words taken.

    Example:
        >>> take_within_budget(np.array([[2, 3, 1]]), np.array([3]))
        array([[ True, False,  True]])
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
        unfinished = ~below[:, -1] & (after > 0)
        rows, left, sizes = rows[unfinished], after[unfinished], np.where(below[unfinished], 0, sizes[unfinished])
    return taken


def choose_words(
    words: Words, orders: tuple[np.ndarray, np.ndarray], masking: Masking
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the words that are masked for the encoder and for the decoder.

    Nested masks: words are taken up to the larger budget, of these up to the decoder's, and of these up to the
    encoder's. Source: the released code of Starbucks (arXiv 2410.13230).

    Args:
        words: The words of a batch.
        orders: Two random orders of the words [batch, W]; nested masks use the first.
        masking: The budgets.

    Returns:
        Words of the encoder and of the decoder, both bool [batch, W].
    """
    encoder, decoder = (
        budgets(words.lengths, probability, masking.max_predictions)
        for probability in (masking.encoder_probability, masking.decoder_probability)
    )
    if masking.masks == "independent":
        return _take_in_order(words.sizes, orders[0], encoder), _take_in_order(words.sizes, orders[1], decoder)
    admitted = _take_in_order(words.sizes, orders[0], np.maximum(encoder, decoder))
    of_decoder = _take_in_order(words.sizes * admitted, orders[0], decoder)
    return _take_in_order(words.sizes * of_decoder, orders[0], encoder), of_decoder


def _take_in_order(sizes: np.ndarray, order: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """`take_within_budget` in the given order; the result is in the order of the words."""
    taken = np.zeros(sizes.shape, dtype=bool)
    np.put_along_axis(taken, order, take_within_budget(np.take_along_axis(sizes, order, axis=1), limits), axis=1)
    return taken


def replace_tokens(
    ids: np.ndarray,
    chosen: np.ndarray,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
    always_mask: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask the chosen tokens: 80 % become the mask token, 10 % a random token, and 10 % stay.

    Source: BERT, as in transformers' DataCollatorForLanguageModeling.

    Args:
        ids: [batch, length].
        chosen: bool [batch, length].
        mask_id: The mask token.
        vocab_size: Random tokens are below it.
        rng: Generator of the draws.
        always_mask: All chosen tokens become the mask token.

    Returns:
        Input ids and labels, both [batch, length]; labels are the ids where chosen, -100 elsewhere.
    """
    inputs = ids.copy()
    labels = np.where(chosen, ids, IGNORED)
    if always_mask:
        inputs[chosen] = mask_id
        return inputs, labels
    positions = np.flatnonzero(chosen)
    draw = rng.random(len(positions))
    inputs.flat[positions[draw < 0.8]] = mask_id
    random = positions[(draw >= 0.8) & (draw < 0.9)]
    inputs.flat[random] = rng.integers(0, vocab_size, len(random))
    return inputs, labels


def visibility(hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return whether row i may attend to column j in enhanced decoding.

    Column 0, which holds the embedding, is visible to all rows except row 0; no row sees itself; rows of padding see
    nothing, and columns of padding are invisible. Source: RetroMAE (arXiv 2205.12035), eq. 6, and its code.

    Args:
        hidden: bool [batch, T, T], columns masked for each row.
        lengths: [batch], tokens of each text.

    Returns:
        bool [batch, T, T].
    """
    visible = ~hidden
    visible[:, :, 0] = True
    diagonal = np.arange(hidden.shape[1])
    visible[:, diagonal, diagonal] = False
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
    """Draw the visible part of the text for every token of a batch, as RetroMAE's code does.

    For each sequence min(length, `contexts`) whole-word masks are drawn; each row picks one of them, with replacement.
    Special tokens are never masked. Masks that no row picks are not computed.

    Args:
        words: The words of a batch of T tokens a row.
        probability: Part of the tokens that a mask may hide.
        rng: Generator of the draws.
        contexts: Masks of a sequence at most.
        max_predictions: Hidden tokens of a mask at most.

    Returns:
        bool [batch, T, T], see `visibility`.
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
    taken = take_within_budget(sizes, budgets(words.lengths, probability, max_predictions)[owner])
    masks = np.zeros((len(drawn), count + 1), dtype=bool)  # the last column stands for tokens without a word
    masks.ravel()[(np.arange(len(drawn))[:, None] * (count + 1) + order)[taken]] = True
    hidden = np.zeros((batch, longest, longest), dtype=bool)
    first, row = 0, 0
    for i, length in enumerate(words.lengths):
        last = int(np.searchsorted(owner, i, side="right"))
        tokens = masks[first:last][:, words.word_of[i]]
        hidden[i, :length] = tokens[which[row : row + length] - first]
        first, row = last, row + length
    return visibility(hidden, words.lengths)
