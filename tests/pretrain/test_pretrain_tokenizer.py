"""Pieces and the words they form, and tokenizers that cannot serve."""

from __future__ import annotations

import numpy as np
import pytest
from pretrain.letters import MASK, VOCABULARY, letters, read

from starbucks_retrieval import UserError
from starbucks_retrieval.pretrain.windows import MAX_WORD, WholeWordTokenizer, join


@pytest.fixture(scope="module")
def tokenizer():
    return WholeWordTokenizer(letters())


def words_of(pieces):
    return [read(part) for part in np.split(pieces.ids, np.flatnonzero(pieces.starts)[1:])]


def test_word_starts_are_marked(tokenizer):
    texts = ["ab c. def", "", "ghi"]
    assert [words_of(pieces) for pieces in tokenizer(texts)] == [["ab", "c", ".", "def"], [""], ["ghi"]]
    assert tokenizer(["ab c"])[0].starts.tolist() == [True, False, True]
    assert tokenizer([]) == []


def test_each_text_of_a_batch_begins_a_word(tokenizer):
    for pieces, text in zip(tokenizer(["ab", "", "cd", "e"]), ["ab", "", "cd", "e"]):
        assert pieces.starts.tolist() == [True, False][: len(text)]


def test_a_cut_word_is_a_word(tokenizer):
    (pieces,) = tokenizer(["abc def"])
    assert words_of(pieces.cut(1, 5)) == ["##bc", "de"]
    assert pieces.starts.tolist() == [True, False, False, True, False, False]
    assert words_of(join([pieces.cut(0, 3), pieces.cut(1, 3)])) == ["abc", "##bc"]


def test_every_piece_of_a_very_long_word_is_a_word(tokenizer):
    long = "a" * (MAX_WORD + 1)
    (pieces,) = tokenizer([f"bc {long} {long[1:]} d"])
    assert words_of(pieces) == ["bc", "a", *["##a"] * MAX_WORD, "a" * MAX_WORD, "d"]


def test_special_tokens_around_a_text(tokenizer):
    assert (tokenizer.prefix.tolist(), tokenizer.suffix.tolist()) == ([2], [3])
    assert (tokenizer.mask_id, tokenizer.pad_id, tokenizer.vocab_size) == (MASK, 0, len(VOCABULARY))
    assert np.flatnonzero(tokenizer.special).tolist() == [0, 1, 4]


def test_truncation_set_on_the_tokenizer_cuts_nothing_and_stays():
    inner = letters().backend_tokenizer
    inner.enable_truncation(3)
    inner.enable_padding(length=20)
    try:
        assert len(WholeWordTokenizer(letters())(["abcdefgh"])[0].ids) == 8
        assert inner.truncation["max_length"] == 3
    finally:
        inner.no_truncation()
        inner.no_padding()


@pytest.mark.parametrize(
    "changes, what, remedy",
    [
        ({"mask_token": None}, "no mask token", "masked language model"),
        ({"words": False}, "does not split texts into words", "pre_tokenizer"),
        ({"special": False}, "no token in front", r"\[CLS\]"),
    ],
)
def test_unfit_tokenizers_are_refused(changes, what, remedy):
    with pytest.raises(UserError, match=what) as caught:
        WholeWordTokenizer(letters(**changes))
    assert caught.match(remedy)


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="no fast version"):
        WholeWordTokenizer(Slow())
