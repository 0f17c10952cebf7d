"""RetroMAE's enhanced decoding: which tokens each token may be predicted from."""

from __future__ import annotations

import numpy as np

from starbucks_retrieval.pretrain.masks import Words, budgets, random_order, walk


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
