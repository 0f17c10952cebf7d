"""The contexts that enhanced decoding draws for every token."""

from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval.pretrain.masks import budgets, draw_visibility, find_words, visibility


def batch_of(lengths, longest, word=1):
    """Rows of words of `word` tokens between two special tokens."""
    lengths = np.array(lengths)
    places = np.arange(longest)
    maskable = (places > 0) & (places < lengths[:, None] - 1)
    return find_words(maskable & ((places - 1) % word == 0), maskable, lengths)


def draw(words, probability=0.5, seed=0, **options):
    return draw_visibility(words, probability, np.random.default_rng(seed), **options)


def test_the_embedding_is_seen_even_where_all_is_hidden():
    visible = visibility(np.ones((1, 4, 4), dtype=bool), np.array([3]))
    assert visible.astype(int).tolist() == [[[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]]


@pytest.mark.parametrize("word", [1, 3])
def test_rules(word):
    lengths, longest = [20, 33, 5, 40], 40
    words = batch_of(lengths, longest, word)
    visible = draw(words)
    limits = budgets(words.lengths, 0.5)
    for row, length, limit in zip(visible, lengths, limits):
        assert not row[length:].any() and not row[:, length:].any()
        row = row[:length, :length]
        assert not row.diagonal().any()
        assert row[1:, 0].all()
        assert row[: length - 1, length - 1].all()  # the last special token is in no mask
        hidden = ~row
        np.fill_diagonal(hidden, False)
        assert (hidden.sum(1) <= limit).all()
        assert (hidden.sum(1) >= limit - word - 1).all()


def test_words_are_hidden_whole():
    visible = draw(batch_of([38], 38, 3))[0]
    for i in range(38):
        spans = visible[i, 1:37].reshape(12, 3)
        own = (i - 1) // 3 if 0 < i < 37 else -1
        for number, span in enumerate(spans):
            if number != own:
                assert span.all() or not span.any()


def contexts_of(visible, first=0):
    """Different hidden sets among the rows `first`, first + 1, …; a row's own place says nothing about its set."""
    found = []
    for i, row in enumerate(visible, first):
        if not any(np.delete(row == other, [0, i, k]).all() for k, other in found):
            found.append((i, row))
    return len(found)


def test_rows_share_at_most_so_many_contexts():
    words = batch_of([64], 64)
    assert contexts_of(draw(words, contexts=3)[0]) == 3
    # 64 rows picking from 64 contexts with replacement meet 64 (1 - 1/e) = 40 of them
    counts = [contexts_of(draw(words, seed=seed)[0]) for seed in range(10)]
    assert 37 < np.mean(counts) < 45


def test_neighbours_do_not_share_a_context_more_often_than_others():
    words = batch_of([64], 64)
    shared = [contexts_of(draw(words, seed=seed)[0][i : i + 2], i) == 1 for seed in range(10) for i in range(2, 60)]
    assert np.mean(shared) < 0.05  # 1/64 by chance


def test_every_token_is_hidden_as_often():
    words = batch_of([34], 34)
    hidden = np.mean([~draw(words, seed=seed)[0] for seed in range(200)], axis=0)
    off = ~np.eye(34, dtype=bool)
    rate = np.array([hidden[off[:, j], j].mean() for j in range(34)])
    assert rate[0] == 0 and rate[33] == 0
    assert np.abs(rate[1:33] - 17 / 32).max() < 0.05


def test_equal_seeds_draw_equal_contexts_and_others_differ():
    words = batch_of([30, 12], 32)
    assert (draw(words) == draw(words)).all()
    assert (draw(words) != draw(words, seed=1)).any()


def test_the_budget_follows_the_probability_and_its_cap():
    words = batch_of([42], 42)
    for options, count in [({"probability": 0.25}, 10), ({"probability": 0.5, "max_predictions": 3}, 3)]:
        hidden = ~draw(words, **options)[0]
        np.fill_diagonal(hidden, False)
        assert hidden[0].sum() == count or hidden[0, 0]
        assert set(hidden[1:].sum(1)) <= {count - 1, count}
