"""Windows, blocks and spans: their lengths, places, and what is left out."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from conftest import slow_except
from pretrain.letters import VOCABULARY, letters, random_texts, read

from starbucks_retrieval import UserError
from starbucks_retrieval.data.documents import Document
from starbucks_retrieval.pretrain.windows import Cutter, WholeWordTokenizer

LENGTH = 22  # 20 pieces and two special tokens


@pytest.fixture(scope="module")
def tokenizer():
    return WholeWordTokenizer(letters())


def cut(cutter, texts, epochs=1, part=0):
    """The sequences as strings; `texts` epoch after epoch, then an end."""
    documents = [
        Document(epoch * len(texts) + number, epoch, number, text)
        for epoch in range(epochs)
        for number, text in enumerate(texts)
    ]
    return list(cutter.sequences(iter(documents), part))


def strings(sequences):
    return [read(sequence.pieces.ids) for sequence in sequences]


def test_a_short_document_is_taken_whole(tokenizer):
    texts = ["abc de f.", "a " * 20]
    assert strings(cut(Cutter(tokenizer, LENGTH), texts)) == ["abc de f .", " ".join("a" * 20)]


def test_every_window_of_a_long_document_is_as_likely(tokenizer):
    text = " ".join("abcdefghijklmnopqrstuvw")  # 23 pieces: 4 windows of 20
    found = Counter(strings(cut(Cutter(tokenizer, LENGTH), [text], epochs=2000)))
    assert set(found) == {text[2 * i : 2 * i + 39] for i in range(4)}
    assert all(abs(count - 500) < 100 for count in found.values())  # five standard deviations


def test_windows_follow_seed_epoch_and_document_alone(tokenizer):
    texts = random_texts(30)
    first = strings(cut(Cutter(tokenizer, LENGTH, seed=1), texts, epochs=2))
    assert strings(cut(Cutter(tokenizer, LENGTH, seed=1), texts, epochs=2)) == first
    assert strings(cut(Cutter(tokenizer, LENGTH, seed=2), texts, epochs=2)) != first
    assert first[:30] != first[30:]
    alone = Cutter(tokenizer, LENGTH, seed=1).sequences(iter([Document(37, 1, 7, texts[7])]))
    assert strings(alone) == [first[37]]
    assert len(set(strings(cut(Cutter(tokenizer, LENGTH), [" ".join("abcdefghijklm" * 9)] * 20)))) > 5


def test_windows_record_the_next_document(tokenizer):
    texts = ["abcdef", "", "abcdef"]
    assert [sequence.after for sequence in cut(Cutter(tokenizer, LENGTH), texts)] == [(1, 0), (3, 0)]


def test_blocks_hold_whole_sentences(tokenizer):
    texts = ["abcde fgh. ijklm! nop qrs? tuv", "abcd."]
    sequences = cut(Cutter(tokenizer, 17, "blocks"), texts)
    assert strings(sequences) == ["abcde fgh . ijklm !", "nop qrs ? tuv", "abcd ."]
    assert [sequence.after for sequence in sequences] == [(0, 2), (1, 0), (2, 0)]


def test_a_dot_inside_a_word_ends_no_sentence_and_a_line_break_does(tokenizer):
    assert strings(cut(Cutter(tokenizer, 14, "blocks"), ["abcd.efgh\nabcde fgh."])) == ["abcd . efgh", "abcde fgh ."]
    assert strings(cut(Cutter(tokenizer, 14, "blocks"), ["abcd.efgh abcde fgh."])) == ["abcd . efgh abc", "##de fgh ."]


def test_a_sentence_longer_than_any_block_is_cut(tokenizer):
    sequences = cut(Cutter(tokenizer, LENGTH, "blocks"), ["abcde " * 9 + ". fgh."])
    assert strings(sequences) == [" ".join(["abcde"] * 4)] * 2 + ["abcde . fgh ."]


def test_packed_blocks_go_on_into_the_next_document(tokenizer):
    texts = ["abcde fgh. ijklm!", "nop qrs? tuv", "wxyz ab."]
    sequences = cut(Cutter(tokenizer, LENGTH, "blocks", pack=True), texts)
    assert strings(sequences) == ["abcde fgh . ijklm !"]
    sequences = cut(Cutter(tokenizer, LENGTH, "blocks", pack=True), [*texts, *texts])
    assert strings(sequences) == [
        "abcde fgh . ijklm !",
        "nop qrs ? tuv wxyz ab .",
        "abcde fgh . ijklm !",
    ]
    assert [sequence.after for sequence in sequences] == [(1, 0), (3, 0), (4, 0)]


@pytest.mark.parametrize("pack", slow_except([True], [False, True]))
def test_blocks_lose_nothing_and_go_on_from_any_part(tokenizer, pack):
    texts = random_texts(15)
    cutter = Cutter(tokenizer, LENGTH, "blocks", pack=pack, least=1)
    whole = cut(cutter, texts)
    pieces = [i for sequence in whole for i in sequence.pieces.ids]
    every = [i for text in tokenizer(texts) for i in text.ids]
    assert pieces == every[: len(pieces)]
    assert len(every) - len(pieces) < LENGTH * pack + 1  # what a last block has not filled yet
    documents = [Document(i, 0, i, text) for i, text in enumerate(texts)]
    for number, sequence in enumerate(whole[:-1]):
        position, part = sequence.after
        rest = cutter.sequences(iter(documents[position:]), part)
        assert strings(islice(rest, 3)) == strings(whole[number + 1 : number + 4])


def test_two_spans_of_a_document_never_overlap(tokenizer):
    texts = [" ".join(chr(97 + i) for i in range(length)) for length in (10, 11, 16, 26)]
    found = cut(Cutter(tokenizer, LENGTH, "spans"), texts, epochs=50)
    assert len(found) == 2 * 4 * 50
    middles = set()
    for first, second in zip(found[::2], found[1::2]):
        assert first.after == second.after
        a, b = read(first.pieces.ids).split(), read(second.pieces.ids).split()
        assert 5 <= len(a) <= 20 and 5 <= len(b) <= 20
        assert a[-1] < b[0]  # letters are in the order of the document
        middles.add(a[-1])
    assert len(middles) > 5
    long = " ".join("abcdefghijklmnopqrstuvwxyz" * 10)
    for sequence in cut(Cutter(tokenizer, LENGTH, "spans"), [long], epochs=20):
        assert len(sequence.pieces.ids) == 20


def test_empty_and_short_documents_are_left_out_and_counted(tokenizer):
    texts = ["abcde", "", "abcd", "  ", "ab cde", "a b c d"]
    for mode, kept, dropped in [
        ("window", ["abcde", "ab cde"], {"empty": 2, "short": 2}),
        ("blocks", ["abcde", "ab cde"], {"empty": 2, "short": 2}),
    ]:
        cutter = Cutter(tokenizer, LENGTH, mode)
        assert strings(cut(cutter, texts)) == kept
        assert cutter.dropped == dropped
    cutter = Cutter(tokenizer, LENGTH, "spans")
    assert strings(cut(cutter, ["abcdefghi", "abcdefghij"])) == ["abcde", "##fghij"]
    assert cutter.dropped == {"short": 1}


def test_a_short_last_block_is_left_out(tokenizer):
    cutter = Cutter(tokenizer, 16, "blocks")
    assert strings(cut(cutter, ["abcde fgh ijkl. a."])) == ["abcde fgh ijkl ."]
    assert cutter.dropped == {"short": 1}


def test_an_epoch_that_leaves_nothing_is_an_error(tokenizer):
    cutter = Cutter(tokenizer, LENGTH)
    with pytest.raises(UserError, match="1 are empty, 1 too short") as caught:
        cut(cutter, ["abc", ""], epochs=2)
    assert "at least 5 word pieces" in caught.value.hint
    # entered in the middle of an epoch, only the next whole one can tell
    documents = [Document(3, 1, 1, ""), Document(4, 2, 0, "abcdef"), Document(5, 2, 1, "")]
    assert strings(Cutter(tokenizer, LENGTH).sequences(iter(documents))) == ["abcdef"]


def test_impossible_settings_are_refused(tokenizer):
    with pytest.raises(UserError, match="too few tokens"):
        Cutter(tokenizer, 11)
    with pytest.raises(UserError, match="cannot be cut into 'words'"):
        Cutter(tokenizer, LENGTH, "words")
    with pytest.raises(UserError, match="not window"):
        Cutter(tokenizer, LENGTH, pack=True)


def test_words_are_kept_through_every_cut(tokenizer):
    texts = random_texts(20)
    for mode in ("window", "blocks", "spans"):
        for sequence in cut(Cutter(tokenizer, LENGTH, mode), texts):
            inside = [VOCABULARY[i].startswith("##") for i in sequence.pieces.ids]
            assert sequence.pieces.starts[0]
            np.testing.assert_array_equal(sequence.pieces.starts[1:], ~np.array(inside)[1:])
