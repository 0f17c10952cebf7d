"""Whole-word masks and the visibility of enhanced decoding equal an independent implementation, word by word."""

from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval.pretrain.masks import Masking, choose_words, find_words, visibility


def golden_words(data, rows=1):
    starts = np.zeros((rows, data["length"]), dtype=bool)
    starts[:, [word[0] for word in data["words"]]] = True
    maskable = np.zeros_like(starts)
    maskable[:, [place for word in data["words"] for place in word]] = True
    return find_words(starts, maskable, np.full(rows, data["length"]))


@pytest.mark.parametrize("number", range(4))
def test_nested_whole_word_masks(golden, number):
    data = golden["whole_word_masks"]
    case = data["cases"][number]
    words = golden_words(data)
    order = np.array([case["order"]])
    masking = Masking(encoder_probability=case["p_enc"], decoder_probability=case["p_dec"])
    encoder, decoder = choose_words(words, (order, order), masking)
    np.testing.assert_array_equal(words.tokens(encoder)[0], case["enc"])
    np.testing.assert_array_equal(words.tokens(decoder)[0], case["dec"])


def test_all_orders_at_once(golden):
    data = golden["whole_word_masks"]
    cases = [case for case in data["cases"] if (case["p_enc"], case["p_dec"]) == (0.2, 0.4)]
    assert len(cases) == 2
    words = golden_words(data, 2)
    orders = np.array([case["order"] for case in cases])
    encoder, decoder = choose_words(words, (orders, orders), Masking())
    np.testing.assert_array_equal(words.tokens(encoder), [case["enc"] for case in cases])
    np.testing.assert_array_equal(words.tokens(decoder), [case["dec"] for case in cases])


def test_the_suite_checks_every_case(golden):
    assert len(golden["whole_word_masks"]["cases"]) == 4


def test_visibility(golden):
    data = golden["enhanced_decoding"]
    hidden = np.zeros((len(data["lengths"]), data["T"], data["T"]), dtype=bool)
    for sequence, rows in zip(hidden, data["masked_rows"]):
        for row, places in zip(sequence, rows):
            row[places] = True
    np.testing.assert_array_equal(visibility(hidden, np.array(data["lengths"])), data["visible"])
