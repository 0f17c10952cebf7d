"""Queries, their positives, and the ids and order of a corpus."""

from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.data import Scan, open_corpus, scan
from starbucks_retrieval.mine.candidates import best_rows
from starbucks_retrieval.mine.topics import Docids, PassageFile

from .conftest import id_row, opened, write_jsonl


def test_rows_and_order_of_ids(tmp_path):
    ids = ["b", "a", "é", "B", "z" * 9, "😀", "￿", "a b"]
    for suffix in ("", "y" * 200):  # fixed width, and beyond it
        path = write_jsonl(tmp_path / "c.jsonl", [{"_id": name + suffix, "text": "x"} for name in ids])
        corpus = open_corpus(path)
        docids = Docids(corpus, scan(corpus))
        named = [name + suffix for name in ids]
        assert docids.rows([*named, "", "zz", "a b c"]).tolist() == [*range(len(ids)), -1, -1, -1]
        by_bytes = sorted(range(len(ids)), key=lambda row: named[row].encode())
        assert docids.order.tolist() == by_bytes
        assert docids.ranks[docids.order].tolist() == list(range(len(ids)))


def test_best_is_trec_evals_order():
    rng = np.random.default_rng(0)
    for length in (1, 5, 40):
        for depth in (1, 5, 50):
            scores = rng.integers(-2, 3, length).astype(np.float32)
            ranks = rng.permutation(length)
            expected = sorted(range(length), key=lambda i: (-scores[i], -ranks[i]))[:depth]
            assert best_rows(scores, ranks, depth).tolist() == expected


@pytest.fixture
def corpus(tmp_path):
    return write_jsonl(tmp_path / "corpus.jsonl", [{"_id": f"d{i}", "text": f"text {i}"} for i in range(5)])


def test_groups_of_one_query_know_each_others_positives(tmp_path, corpus):
    rows = [
        id_row("1", ["d3"], "x"),
        id_row("2", ["d0"], "y"),
        id_row("1", ["d1", "d3"], "x"),
        id_row("1", ["d2"], "z"),
    ]
    topics, _, _ = opened(write_jsonl(tmp_path / "g.jsonl", rows), corpus)
    assert topics.query_ids == ["1", "2", "1"] and topics.texts == ["x", "y", "z"]
    assert topics.topic_of_group.tolist() == [0, 1, 0, 2]
    assert [topics.rows[topics.pairs(i)].tolist() for i in range(3)] == [[3, 1], [0], [2]]
    assert topics.docids == ["d3", "d1", "d0", "d2"]
    assert topics.topic_of_pair().tolist() == [0, 0, 1, 2]


def test_positives_outside_the_corpus_are_kept_if_their_text_is_known(tmp_path, corpus, caplog):
    caplog.set_level("INFO")
    outside = {"docid": "other", "title": "T", "text": "elsewhere"}
    inline = {"query_id": "1", "query": "x", "positive_passages": [outside, {"docid": "d1", "text": "text 1"}]}
    rows = [
        inline,
        inline | {"query_id": "2", "positive_passages": [outside]},
        id_row("3", ["gone"]),
        id_row("4", ["gone", "d4"], negatives=["d0"]),
    ]
    topics, _, _ = opened(write_jsonl(tmp_path / "g.jsonl", rows), corpus)
    assert topics.topic_of_group.tolist() == [0, 1, -1, 2]
    assert topics.rows.tolist() == [5, 1, 5, 4]
    assert [passage.text for passage in topics.out_of_corpus] == ["elsewhere"]
    assert topics.outside == 4
    assert "1 of 4 groups have negatives already" in caplog.text


def test_the_wrong_corpus_is_refused(tmp_path, corpus):
    groups = write_jsonl(tmp_path / "g.jsonl", [id_row("1", ["x"]), id_row("2", ["y"])])
    with pytest.raises(UserError, match="no positive"):
        opened(groups, corpus)


def test_passages_are_read_back_by_row_and_a_shrunken_corpus_is_noticed(tmp_path):
    path = tmp_path / "c.jsonl"
    rows = [{"_id": f"é {i}", "title": "T\u2028" * (i % 2), "text": "😀\n" * i} for i in range(9)]
    corpus = open_corpus(write_jsonl(path, rows))
    wanted = np.array([0, 3, 8])
    with PassageFile(corpus, wanted, 9, tmp_path / "new") as passages:
        everything = list(corpus)
        assert [passages[row] for row in (8, 0, 3, 8)] == [everything[row] for row in (8, 0, 3, 8)]
        assert not list((tmp_path / "new").iterdir())  # nameless: a kill leaves nothing
    write_jsonl(path, rows[:8])
    with pytest.raises(UserError, match="shorter"):
        PassageFile(corpus, wanted, 9, tmp_path)
    with pytest.raises(UserError, match="shorter"):
        Docids(corpus, Scan(9, 0, "", 10, 0))
