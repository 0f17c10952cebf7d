import io
import itertools
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.search import Searcher
from starbucks_retrieval.search import searcher as searcher_module
from starbucks_retrieval.search.__main__ import converse, format_hits
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.sizes import Size

WORDS = ("coffee", "tea", "milk", "water")
TEXTS = ("coffee and milk", "tea", "water water", "tea with milk and milk")


class FakeEncoder:
    """Counts words; stands in for NestedEncoder."""

    def __init__(self, **changes):
        self.config = EncoderConfig(**({"pooling": "cls", "normalize": False} | changes))

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
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "  1.   1.0000  d  D",
        "     tea with milk and milk",
        "  1.   2.0000  d  D",
        "     tea with milk and milk",
    ]
    timings = [
        re.fullmatch(r"encode (\d+\.\d) ms, search (\d+\.\d) ms at 2:4", line) for line in printed.err.splitlines()
    ]
    assert len(timings) == 2 and all(timings)
    assert format_hits([]) == ""


def test_commands_in_a_conversation(reps, corpus, monkeypatch, capsys):
    lines = (":text 1", ":size 1:2", "coffee", ":funnel 1:2@3,2:4", "milk", ":help", ":text 1")
    wrong = (":size 9:9", ":size six", ":funnel 2:4@3,1:2", ":funnel", ":depth 4", ":text 2", ":text", "tea")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, *wrong, "", "never read"])))
    searcher = Searcher(FakeEncoder(), reps, corpus, size=Size(2, 4))
    assert converse(searcher, 1) == 4
    printed = capsys.readouterr()
    shown = printed.out.splitlines()
    assert [shown[i].split()[2] for i in (0, 2, 4, 9)] == ["a", "a", "d", "d"]  # coffee, and again, milk, tea
    assert shown[6:9] == ["d", "D", "tea with milk and milk"]
    said = re.sub(r"\d+\.\d ms", "… ms", printed.err)
    assert said.startswith(
        "error: no passage 1\n  try: the last answer has 0; :text 1 is the first\n"
        "searching at 1:2\nencode … ms, search … ms at 1:2\n"
        "searching at 1:2@3,2:4\nencode … ms, search … ms at 1:2@3,2:4\n"  # coffee once more
        "encode … ms, search … ms at 1:2@3,2:4\ntype a query, or\n"
    )
    for what in (
        "\nstored: 1:2,2:4, and smaller dims of each\n",
        "error: " + str(reps) + " has no size 9:9, nor a wider one of its layer\n  try: it has 1:2, 2:4",
        "error: cannot read the size 'six'",
        "error: the funnel 2:4@3,1:2 shrinks from 2:4 to 1:2",
        "error: cannot read the size ''",
        "error: there is no command :depth\n  try: :help lists them",
        "error: no passage 2\n  try: the last answer has 1;",
        "error: no passage is named\n",
    ):
        assert what in said
    assert said.endswith("encode … ms, search … ms at 1:2@3,2:4\n")  # what was wrong changed nothing


AT_A_TERMINAL = """
from types import SimpleNamespace
from starbucks_retrieval.search.__main__ import converse

class Searcher:
    funnel = "2:4"

    def answer(self, query, k):
        print("searched for", query)
        return SimpleNamespace(hits=[], encode_ms=0.0, search_ms=0.0)

print("answers:", converse(Searcher(), 1))
"""


def test_at_a_terminal_the_arrow_key_brings_lines_back():
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen([sys.executable, "-c", AT_A_TERMINAL], env={**os.environ, "TERM": "xterm"}, **ends):
        os.close(theirs)
        shown = ""
        for awaited, keys in (
            ("query> ", "teq\x7fa\n"),
            ("query> ", "\x1b[A\n"),
            ("query> ", "\x04"),
            ("answers: 2", ""),
        ):
            seen = len(shown)
            while awaited not in shown[seen:]:
                shown += os.read(ours, 1024).decode()
            os.write(ours, keys.encode())
    os.close(ours)
    assert shown.count("searched for tea\r\n") == 2  # a letter was taken back, then the line came back whole


def test_a_funnel_encodes_once_and_scores_at_its_last_size(reps, corpus):
    encoder = FakeEncoder()
    calls = []
    real = encoder.encode
    encoder.encode = lambda texts, sizes, *, is_query: (
        calls.append((texts, list(sizes))) or real(texts, sizes, is_query=is_query)
    )
    searcher = Searcher(encoder, reps, corpus, funnel="1:2@2,2:4")
    assert (str(searcher.funnel), searcher.size, searcher.store.spec.size) == ("1:2@2,2:4", Size(2, 4), Size(2, 4))
    # Coffee and tea decide who is in, milk who comes first.
    hits = searcher.search("tea milk", k=2)
    assert [(hit.docid, hit.score, hit.text) for hit in hits] == [("d", 3, TEXTS[3]), ("b", 1, TEXTS[1])]
    assert calls == [(["tea milk"], [Size(1, 2), Size(2, 4)])]
    searcher.use(size=Size(2, 4))
    assert [hit.docid for hit in searcher.search("tea milk", k=3)] == ["d", "b", "a"]


def test_a_quantised_first_step(reps, corpus):
    searcher = Searcher(FakeEncoder(), reps, corpus, funnel="2:4/int8@4,2:4")  # keeps all four
    exact = Searcher(FakeEncoder(), reps, corpus, size=Size(2, 4))
    assert searcher.search("tea", k=4) == exact.search("tea", k=4)


def test_where_a_funnel_ends(reps):
    closed = Searcher(FakeEncoder(), reps, funnel=Funnel.parse("1:2@4,2:4@3"))
    assert [len(closed.search("tea", k)) for k in (1, 3, 10)] == [1, 3, 3]
    with pytest.raises(UserError, match="--hits 0 is below 1"):
        closed.search("tea", 0)


def test_a_size_that_is_not_stored_is_cut_from_a_wider_one(reps):
    searcher = Searcher(FakeEncoder(), reps, size=Size(2, 3))
    assert [hit.docid for hit in searcher.search("milk water", 2)] == ["d", "a"]  # water is the fourth dimension
    searcher = Searcher(FakeEncoder(), searcher.store, funnel="2:1@4,2:2")
    assert [hit.docid for hit in searcher.search("tea milk", 2)] == ["d", "b"]


def test_a_searcher_that_is_switched_wrongly_stays_as_it_was(reps):
    searcher = Searcher(FakeEncoder(), reps, size=Size(2, 4))
    for options, what in [
        ({}, "either a size or a funnel"),
        ({"size": Size(2, 4), "funnel": "2:4"}, "either a size or a funnel"),
        ({"funnel": "1:2@2,5:4"}, "no size 5:4"),
        ({"funnel": "1:2,2:4"}, "does not say how many"),
    ]:
        with pytest.raises(UserError, match=what):
            searcher.use(**options)
    assert str(searcher.funnel) == "2:4"
    with pytest.raises(UserError, match="several sizes"):
        Searcher(FakeEncoder(), reps)
    searcher.encoder.fingerprint = lambda layer: "other" if layer == 1 else f"fake-{layer}"
    with pytest.raises(UserError, match="another model"):
        searcher.use(funnel="1:2@2,2:4")


def test_threads_share_a_searcher(reps, corpus):
    searcher = Searcher(FakeEncoder(), reps, corpus, size=Size(2, 4))
    inside, most = [], []
    real = searcher.encoder.encode

    def encode(texts, sizes, *, is_query):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()
        return real(texts, sizes, is_query=is_query)

    searcher.encoder.encode = encode
    queries = [" ".join(words) for words in itertools.permutations(WORDS, 2)] * 4
    expected = {query: searcher.search(query) for query in set(queries)}

    def answer(query):
        if query == "tea milk":
            searcher.use(funnel="1:2@4,2:4")  # keeps all four: the same answers
        return searcher.search(query)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answer, queries)) == [expected[query] for query in queries]
    assert max(most) == 1  # one query is encoded at a time


def test_texts_do_not_stay_in_memory(tmp_path, write_store):
    import tracemalloc

    ids, text = [f"d{i}" for i in range(2000)], "coffee \0\t\n☕ " * 100
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"docid": d, "title": f"t\0{d}", "text": d + text}) + "\n" for d in ids))
    vectors = np.eye(2000, 4, dtype=np.float32)
    folder = write_store(tmp_path / "long", ids, vectors, size=Size(2, 4), fingerprint="fake-2")
    tracemalloc.start()
    searcher = Searcher(FakeEncoder(), folder, str(path))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 500_000  # of three million characters
    [hit] = searcher.search("tea", 1)
    assert (hit.docid, hit.title, hit.text) == ("d1", "t\0d1", "d1" + text)


def test_a_model_is_loaded_as_deep_as_it_is_needed(reps, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        searcher_module, "_load", lambda name, layer, device: loaded.append((name, layer)) or FakeEncoder()
    )
    searcher = Searcher("model", reps, size=Size(1, 2))
    searcher.use(funnel="1:2@3,2:4")
    searcher.use(size=Size(1, 2))
    searcher.use(size=Size(2, 4))
    assert loaded == [("model", 1), ("model", 2)]
