"""Masks of whole words: equal to a walk word by word, within their budgets, as random as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.pretrain.masks import (
    IGNORED,
    Masking,
    budgets,
    choose_words,
    find_words,
    random_order,
    replace_tokens,
    take_within_budget,
)


def random_words(rows=40, longest=50, seed=0):
    """Padded rows of words of one to six tokens, special tokens at both ends."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest + 1, rows)
    places = np.arange(longest)
    maskable = (places > 0) & (places < lengths[:, None] - 1)
    starts = maskable & (rng.random((rows, longest)) < 0.5)
    starts[:, 1] = True
    return find_words(starts, maskable, lengths), maskable, starts


def slow_walk(sizes, limit):
    taken, used = [], 0
    for size in sizes:
        fits = 0 < size <= limit - used
        used += size * fits
        taken.append(bool(fits))
    return taken


def test_words_are_runs_of_tokens():
    starts = np.array([[0, 1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0]], dtype=bool)
    maskable = np.array([[0, 1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 0, 0, 0]], dtype=bool)
    words = find_words(starts, maskable, np.array([6, 5]))
    assert words.word_of.tolist() == [[3, 0, 0, 3, 2, 3, 3], [3, 0, 1, 1, 3, 3, 3]]
    assert words.sizes.tolist() == [[2, 0, 1], [1, 2, 0]]
    assert words.tokens(np.ones((2, 3), dtype=bool)).tolist() == maskable.tolist()


def test_walk_equals_a_walk_word_by_word():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 9, (500, 30))
    limits = rng.integers(0, 60, 500)
    taken = take_within_budget(sizes, limits)
    assert taken.tolist() == [slow_walk(*row) for row in zip(sizes.tolist(), limits.tolist())]
    used = (sizes * taken).sum(1)
    assert (used <= limits).all() and (used == limits).any() and (used < limits).any()


def test_budgets_count_special_tokens_and_round_like_the_released_code():
    lengths = [2, 5, 14, 25, 512, 4000]
    assert budgets(np.array(lengths), 0.3).tolist() == [min(512, max(1, round(n * 0.3))) for n in lengths]
    assert budgets(np.array([2]), 0.1).tolist() == [1]
    assert budgets(np.array([5]), 0.5).tolist() == [2]  # a half goes to the even number
    assert budgets(np.array([100]), 0.9, max_predictions=7).tolist() == [7]


@pytest.mark.parametrize("masks", ["nested", "independent"])
@pytest.mark.parametrize("encoder, decoder", [(0.2, 0.4), (0.4, 0.2)])
def test_streams_keep_their_budgets_and_whole_words(masks, encoder, decoder):
    words, maskable, starts = random_words()
    rng = np.random.default_rng(1)
    orders = random_order(*words.sizes.shape, rng), random_order(*words.sizes.shape, rng)
    masking = Masking(encoder, decoder, masks)
    chosen = choose_words(words, orders, masking)
    for stream, probability in zip(chosen, (encoder, decoder)):
        tokens = words.tokens(stream)
        limit = budgets(words.lengths, probability)
        assert (tokens.sum(1) <= limit).all()
        if masks == "independent" or encoder < decoder or stream is chosen[1]:  # else the decoder's caps the encoder's
            assert (tokens.sum(1) == limit).mean() > 0.5
        assert not tokens[~maskable].any()
        inside = maskable[:, 1:] & ~starts[:, 1:]  # a token that goes on with a word shares its fate
        assert (tokens[:, 1:] == tokens[:, :-1])[inside].all()
    of_encoder, of_decoder = chosen
    if masks == "nested":
        assert not (of_encoder & ~of_decoder).any()
        assert (of_decoder & ~of_encoder).any() == (encoder < decoder)
    else:
        assert (of_encoder & ~of_decoder).any() and (of_decoder & ~of_encoder).any()


def slow_nested(sizes, order, budget_encoder, budget_decoder):
    """Both streams in one walk, word by word, as the released code goes."""
    encoder, decoder, used = set(), set(), 0
    spent = {"encoder": 0, "decoder": 0}
    for word in order:
        size = sizes[word]
        if used + size > max(budget_encoder, budget_decoder):
            continue
        used += size
        if spent["decoder"] + size <= budget_decoder:
            if spent["encoder"] + size <= budget_encoder:
                encoder.add(word)
                spent["encoder"] += size
            decoder.add(word)
            spent["decoder"] += size
    return [[word in stream and sizes[word] > 0 for word in range(len(sizes))] for stream in (encoder, decoder)]


@pytest.mark.parametrize("encoder, decoder", [(0.2, 0.4), (0.4, 0.2), (0.3, 0.3), (0.5, 0.4)])
def test_nested_streams_equal_one_walk_word_by_word(encoder, decoder):
    words, _, _ = random_words(rows=300)
    order = random_order(*words.sizes.shape, np.random.default_rng(2))
    chosen = choose_words(words, (order, order), Masking(encoder, decoder))
    limits = budgets(words.lengths, encoder), budgets(words.lengths, decoder)
    for row in range(300):
        expected = slow_nested(words.sizes[row].tolist(), order[row], limits[0][row], limits[1][row])
        assert [stream[row].tolist() for stream in chosen] == expected


def test_independent_streams_use_an_order_each():
    words, _, _ = random_words()
    orders = [random_order(*words.sizes.shape, np.random.default_rng(seed)) for seed in range(3)]
    masking = Masking(masks="independent")
    first, second = (
        choose_words(words, (orders[0], orders[1]), masking),
        choose_words(words, (orders[0], orders[2]), masking),
    )
    assert (first[0] == second[0]).all() and (first[1] != second[1]).any()


def test_orders_are_permutations_and_every_word_is_as_often_first():
    order = random_order(20_000, 7, np.random.default_rng(0))
    assert (np.sort(order, axis=1) == np.arange(7)).all()
    for place in (0, 3, 6):
        counts = np.bincount(order[:, place], minlength=7)
        assert (np.abs(counts - 20_000 / 7) < 5 * np.sqrt(20_000 / 7)).all()
    assert random_order(3, 1, np.random.default_rng(0)).tolist() == [[0]] * 3
    assert (np.sort(random_order(2, 5000, np.random.default_rng(0)), axis=1) == np.arange(5000)).all()


def test_eighty_ten_ten():
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 1000, (400, 250))
    chosen = rng.random(ids.shape) < 0.3
    inputs, labels = replace_tokens(ids, chosen, 4, 1000, rng)
    assert (inputs[~chosen] == ids[~chosen]).all()
    assert (labels[~chosen] == IGNORED).all() and (labels[chosen] == ids[chosen]).all()
    count = chosen.sum()
    masked, kept = (inputs[chosen] == 4).sum() / count, (inputs[chosen] == ids[chosen]).sum() / count
    assert abs(masked - 0.8) < 0.01  # standard deviation 0.0023
    assert abs(kept - 0.1) < 0.01
    random = inputs[chosen & (inputs != 4) & (inputs != ids)]
    assert 0.09 < len(random) / count < 0.11
    assert random.min() == 0 and random.max() == 999  # special tokens too, as in the published code
    assert len(np.unique(random)) > 930  # 3000 draws meet 95 % of 1000


def test_always_mask():
    ids = np.arange(20).reshape(2, 10) + 5
    chosen = ids % 3 == 0
    inputs, labels = replace_tokens(ids, chosen, 4, 30, np.random.default_rng(0), always_mask=True)
    assert inputs.tolist() == np.where(chosen, 4, ids).tolist()
    assert labels.tolist() == np.where(chosen, ids, IGNORED).tolist()


def test_options_are_checked():
    for changes in ({"encoder_probability": 0.0}, {"decoder_probability": 1.0}, {"masks": "x"}, {"replace": "never"}):
        with pytest.raises(UserError, match=next(iter(changes))):
            Masking(**changes)
