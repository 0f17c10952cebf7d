"""Candidates by Pyserini, where it and a Java for it are installed; and what happens where they are not."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.bm25 import Bm25sEngine, PyseriniEngine, bm25_engine

from .conftest import id_row, opened, write_jsonl

needs_pyserini = pytest.mark.skipif(
    "not __import__('starbucks_retrieval.mine.bm25', fromlist=['pyserini_works']).pyserini_works()",
    reason="needs pyserini and Java 21",
)


@needs_pyserini
def test_order_scores_and_strange_ids(tmp_path, capfd):
    texts = {"b 1": "cats sat", "z": "dog", "é😀": "dog", "a": "The dog", "c": "a dog ran to a dog", "e": ""}
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"_id": name, "text": text} for name, text in texts.items()])
    rows = [id_row("1", ["c", "e"], "dogs (AND"), id_row("2", ["b 1"], "the"), id_row("3", ["b 1"], 'cat "sitting')]
    topics, records, docids = opened(write_jsonl(tmp_path / "g.jsonl", rows), corpus)
    engine = PyseriniEngine(0.9, 0.4, tmp_path)
    found = engine.search(topics, records, docids, 6)
    assert found.rows.tolist() == [[4, 2, 1, 3, -1, -1], [-1] * 6, [0, -1, -1, -1, -1, -1]]
    assert engine.search(topics, records, docids, 2).rows[0].tolist() == [4, 2]
    assert found.positive_scores[0] == found.scores[0, 0]
    assert np.isnan(found.positive_scores[[1, 2]]).all() and found.positive_scores[3] == found.scores[2, 0]
    assert not list(tmp_path.glob(".lucene-*"))
    assert not capfd.readouterr().out


@needs_pyserini
def test_both_backends_find_the_same_words(tmp_path):
    pytest.importorskip("bm25s")
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{k}" for k in rng.integers(0, 30, 8)) for _ in range(80)]
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"_id": f"d{i}", "text": text} for i, text in enumerate(texts)])
    groups = write_jsonl(tmp_path / "g.jsonl", [id_row(f"q{i}", ["d0"], f"w{i} w{i + 1} w{i + 9}") for i in range(10)])
    collection = opened(groups, corpus)
    ours = PyseriniEngine(0.9, 0.4, tmp_path).search(*collection, 80)
    theirs = Bm25sEngine(0.9, 0.4).search(*collection, 80)
    assert [set(rows) for rows in ours.rows.tolist()] == [set(rows) for rows in theirs.rows.tolist()]
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-3)  # Anserini rounds to four digits


def failing(monkeypatch, error):
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("pyserini"):
                assert os.environ["OPENAI_API_KEY"]
                raise error
            return

    for name in [name for name in sys.modules if name.startswith("pyserini")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (ImportError("no"), "not installed", r"\[pyserini\]"),
        (RuntimeError("class file version 65.0\n\tat java"), "class file version 65.0$", "Java 21"),
    ],
)
@pytest.mark.parametrize("before", [None, "", "sk-mine"])
def test_what_is_missing_is_told_and_the_environment_is_left_alone(monkeypatch, error, message, hint, before):
    if before is None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    else:
        monkeypatch.setenv("OPENAI_API_KEY", before)
    failing(monkeypatch, error)
    with pytest.raises(UserError) as caught:
        PyseriniEngine(0.9, 0.4, None)
    assert pytest.importorskip("re").search(message, caught.value.what)
    assert pytest.importorskip("re").search(hint, caught.value.hint)
    assert os.environ.get("OPENAI_API_KEY") == before


def test_auto_falls_back_to_bm25s_where_java_does_not_work(monkeypatch):
    pytest.importorskip("bm25s")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    failing(monkeypatch, RuntimeError("no Java"))
    arguments = MineArguments(dataset_path="g", output_path="o.jsonl", bm25=True)
    assert isinstance(bm25_engine(arguments), Bm25sEngine)
