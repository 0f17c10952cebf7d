import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import Searcher
from starbucks_retrieval.search.interactive import converse, show
from starbucks_retrieval.sizes import Size

WORDS = ("coffee", "tea", "milk", "water")
TEXTS = ("coffee and milk", "tea", "water water", "tea with milk and milk")


class FakeEncoder:
    """Counts words; stands in for NestedEncoder."""

    def __init__(self, **changes):
        self.config = SimpleNamespace(**({"pooling": "cls", "normalize": False} | changes))

    def fingerprint(self, layer):
        return f"fake-{layer}"

    def encode(self, texts, sizes, *, is_query):
        assert is_query
        counts = np.array([[text.split().count(word) for word in WORDS] for text in texts], np.float32)
        return {size: counts[:, : size.dim] for size in sizes}


@pytest.fixture
def reps(tmp_path, write_store):
    size = Size(2, 4)
    vectors = FakeEncoder().encode(TEXTS, [size], is_query=True)[size]
    write_store(tmp_path / "p" / "L2-D4", list("abcd"), vectors, size=size, fingerprint="fake-2")
    write_store(tmp_path / "p" / "L1-D2", list("abcd"), vectors[:, :2], size=Size(1, 2), fingerprint="fake-1")
    return tmp_path / "p"


@pytest.fixture
def corpus(tmp_path):
    lines = [{"docid": docid, "title": docid.upper(), "text": text} for docid, text in zip("abcd", TEXTS)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_hits_with_their_texts(reps, corpus):
    hits = Searcher(FakeEncoder(), reps, corpus, size=Size(2, 4)).search("milk please", k=3)
    assert [(hit.docid, hit.score, hit.title, hit.text) for hit in hits] == [
        ("d", 2.0, "D", "tea with milk and milk"),
        ("a", 1.0, "A", "coffee and milk"),
        ("c", 0.0, "C", "water water"),
    ]
    assert len(Searcher(FakeEncoder(), reps / "L2-D4", corpus).search("tea", k=50)) == 4


def test_without_a_corpus_there_are_ids(reps):
    hits = Searcher(FakeEncoder(), reps / "L1-D2").search("coffee", k=1)
    assert [(hit.docid, hit.title, hit.text) for hit in hits] == [("a", "", "")]


def test_another_model_is_refused(reps, tmp_path, write_store):
    encoder = FakeEncoder()
    encoder.fingerprint = lambda layer: "other"
    with pytest.raises(UserError, match=r"another model: unnamed \(fake-2\), this one is other"):
        Searcher(encoder, reps / "L2-D4")
    with pytest.raises(UserError, match="with pooling 'cls', this model has 'mean'"):
        Searcher(FakeEncoder(pooling="mean"), reps / "L2-D4")
    with pytest.raises(UserError, match="with normalize False, this model has True"):
        Searcher(FakeEncoder(normalize=True), reps / "L2-D4")
    queries = write_store(tmp_path / "q", ["q"], np.ones((1, 4), "f4"), kind="queries")
    with pytest.raises(UserError, match="holds queries"):
        Searcher(FakeEncoder(), queries)


def test_another_corpus_is_refused(reps, corpus, tmp_path):
    lines = Path(corpus).read_text().splitlines(keepends=True)
    short, swapped = tmp_path / "short.jsonl", tmp_path / "swapped.jsonl"
    short.write_text("".join(lines[:3]))
    swapped.write_text("".join(lines[::-1]))
    with pytest.raises(UserError, match="has 3 passages, the store has 4"):
        Searcher(FakeEncoder(), reps / "L2-D4", str(short))
    with pytest.raises(UserError, match="is 'a', in the store it is 'd'"):
        Searcher(FakeEncoder(), reps / "L2-D4", str(swapped)).search("milk", k=1)


def test_a_part_shows_its_own_texts(tmp_path, write_store, corpus):
    vectors = FakeEncoder().encode(TEXTS, [Size(2, 4)], is_query=True)[Size(2, 4)]
    folder = write_store(
        tmp_path / "part", list("abcd"), vectors, size=Size(2, 4), fingerprint="fake-2", parts=2, part=1
    )
    hits = Searcher(FakeEncoder(), folder, corpus).search("tea", k=5)
    assert [(hit.docid, hit.title) for hit in hits] == [("d", "D"), ("c", "C")]


def test_conversation(reps, corpus, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("tea\nmilk\n\nnever read\n"))
    assert converse(Searcher(FakeEncoder(), reps / "L2-D4", corpus), 1) == 2
    assert capsys.readouterr().out.splitlines() == [
        "  1.   1.0000  d  D",
        "     tea with milk and milk",
        "  1.   2.0000  d  D",
        "     tea with milk and milk",
    ]
    assert show([]) == ""
