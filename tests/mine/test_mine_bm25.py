"""Candidates by BM25: scores by the formula, order, texts without words."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.mine.bm25 import Bm25sEngine

from .conftest import id_row, opened, write_jsonl

TEXTS = {
    "b": "cat sat mat",
    "a": "cat cat hat",
    "é": "hat the",
    "z": "dog",
    "d1": "dog",
    "d2": "The dog",
    "e": "",
}


def found_in(tmp_path, texts, groups, depth=5, k1=0.9, b=0.4):
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"_id": name, "text": text} for name, text in texts.items()])
    topics, records, docids = opened(write_jsonl(tmp_path / "g.jsonl", groups), corpus)
    return Bm25sEngine(k1, b).search(topics, records, docids, depth)


def lucene_bm25(texts, query, k1, b):
    """Kamphuis et al., ECIR 2020, the line called Lucene (accurate)."""
    documents = [[word for word in text.lower().split() if word != "the"] for text in texts.values()]
    mean = np.mean([len(words) for words in documents])
    scores = np.zeros(len(documents))
    for word in query.split():
        having = sum(word in words for words in documents)
        idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        for i, words in enumerate(documents):
            count = words.count(word)
            scores[i] += idf * count / (count + k1 * (1 - b + b * len(words) / mean))
    return scores


def test_scores_follow_the_formula_and_positives_have_theirs(tmp_path):
    pytest.importorskip("bm25s")
    found = found_in(tmp_path, TEXTS, [id_row("1", ["z", "a"], "cat hat")], k1=1.2, b=0.7)
    expected = lucene_bm25(TEXTS, "cat hat", 1.2, 0.7)
    assert found.rows[0].tolist() == [1, *np.argsort(-expected)[1:3], -1, -1]
    np.testing.assert_allclose(found.scores[0, :3], np.sort(expected)[::-1][:3], rtol=1e-6)
    np.testing.assert_allclose(found.positive_scores, expected[[3, 1]], rtol=1e-6)


def test_equal_scores_are_ordered_by_docid_and_passages_without_a_shared_word_are_left_out(tmp_path):
    pytest.importorskip("bm25s")
    groups = [id_row("1", ["e"], "dog"), id_row("2", ["e"], "the"), id_row("3", ["e"], "zebra")]
    found = found_in(tmp_path, TEXTS, groups)
    assert found.rows.tolist() == [[3, 5, 4, -1, -1], [-1] * 5, [-1] * 5]
    assert found_in(tmp_path, TEXTS, groups, depth=2).rows[0].tolist() == [3, 5]
    assert found.positive_scores.tolist() == [0, 0, 0]


def test_a_positive_outside_the_corpus_has_no_score(tmp_path):
    pytest.importorskip("bm25s")
    stray = {"docid": "x", "title": "", "text": "cat"}
    group = {"query_id": "1", "query": "cat", "positive_passages": [{"docid": "a", "text": "cat cat hat"}, stray]}
    known, unknown = found_in(tmp_path, TEXTS, [group]).positive_scores.tolist()
    assert known > 0 and math.isnan(unknown)


@pytest.mark.filterwarnings("error")
def test_a_corpus_of_stop_words_has_no_candidates(tmp_path):
    pytest.importorskip("bm25s")
    found = found_in(tmp_path, {"a": "the", "b": ""}, [id_row("1", ["a"], "the cat")], depth=2)
    assert (found.rows == -1).all()


def test_without_bm25s_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match="not installed") as caught:
        Bm25sEngine(0.9, 0.4)
    assert "starbucks-retrieval[bm25]" in caught.value.hint
