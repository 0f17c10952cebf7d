"""Splitting of documents into passages."""

from __future__ import annotations

import pytest

from starbucks_retrieval.data import Passage
from starbucks_retrieval.quickstart.documents import split_documents, split_text


def by_words(texts):
    return [len(text.split()) for text in texts]


def by_characters(texts):
    return [len(text) for text in texts]


def words(count):
    return " ".join(f"w{i}" for i in range(count))


def test_short_documents_stay_whole():
    documents = [Passage("a", "T", words(4)), Passage("b", "", ""), Passage("c", "T", "")]
    assert list(split_documents(documents, 5, by_words)) == [[documents[0]], [], [documents[2]]]


def test_passages_of_a_long_document_have_its_title_and_numbered_ids():
    [found] = split_documents([Passage("a", "Hens", f"{words(6)}.\n\n{words(6)}.")], 9, by_words)
    assert found == [Passage("a#1", "Hens", f"{words(6)}."), Passage("a#2", "Hens", f"{words(6)}.")]


def test_a_title_that_is_a_text_is_split_too():
    [found] = split_documents([Passage("a", words(12), "End.")], 10, by_words)
    assert [passage.title for passage in found] == ["", ""]
    assert " ".join(passage.text for passage in found).split() == [*words(12).split(), "End."]


@pytest.mark.parametrize(
    ("text", "room", "parts"),
    [
        ("a b c\n\nd e f\n\ng h i", 6, ["a b c\n\nd e f", "g h i"]),
        ("a b c. d e f! g h?", 3, ["a b c.", "d e f!", "g h?"]),
        ("a b c d e", 2, ["a b", "c d", "e"]),
        ("# Head\n\na b c\n\nd e f", 5, ["# Head\n\na b c", "d e f"]),
        ("- a b\n- c d", 3, ["- a b", "- c d"]),
    ],
)
def test_texts_are_split_at_the_largest_units_that_fit(text, room, parts):
    assert split_text(text, room, by_words) == parts


def test_texts_without_spaces_are_split_at_sentences_and_characters():
    text = "鶏は卵を産む。" + "鴨" * 25
    parts = split_text(text, 10, by_characters)
    assert "".join(parts) == text and max(map(len, parts)) <= 10
    assert parts[0] == "鶏は卵を産む。"


def test_parts_are_about_equally_long():
    parts = split_text("\n\n".join([words(10)] * 11), 100, by_words)
    assert [len(part.split()) for part in parts] == [60, 50]
