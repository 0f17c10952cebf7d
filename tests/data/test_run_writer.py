"""Run files: written whole or not at all, read back as they were."""

import errno
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starbucks_retrieval.data import read_run, write_run
from starbucks_retrieval.errors import UserError

ROWS = [("q1", [("d2", 1.5), ("d1", 0.25)]), ("q2", [("d1", -3.0)])]


def test_trec_layout(tmp_path):
    write_run(tmp_path / "new" / "run.trec", ROWS, "tag")
    assert (tmp_path / "new" / "run.trec").read_text() == (
        "q1 Q0 d2 1 1.5 tag\nq1 Q0 d1 2 0.25 tag\nq2 Q0 d1 1 -3.0 tag\n"
    )
    assert read_run(tmp_path / "new" / "run.trec") == {"q1": {"d2": 1.5, "d1": 0.25}, "q2": {"d1": -3.0}}


def test_other_layouts(tmp_path):
    write_run(tmp_path / "m.tsv", ROWS, "tag", save_format="msmarco")
    assert (tmp_path / "m.tsv").read_text() == "q1\td2\t1\nq1\td1\t2\nq2\td1\t1\n"
    write_run(tmp_path / "t.tsv", [("q 1", [("d 2", 1.5)])], "tag", save_format="tevatron")
    assert (tmp_path / "t.tsv").read_text() == "q 1\td 2\t1.5\n"
    with pytest.raises(UserError, match="unknown run format 'xml'"):
        write_run(tmp_path / "x", ROWS, "tag", save_format="xml")


def test_gzip_by_name_with_equal_bytes_for_equal_content(tmp_path):
    write_run(tmp_path / "a.trec.gz", ROWS, "tag")
    write_run(str(tmp_path / "b.trec.gz"), ROWS, "tag")
    assert (tmp_path / "a.trec.gz").read_bytes() == (tmp_path / "b.trec.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.trec.gz").read_bytes()).startswith(b"q1 Q0 d2 1 1.5 tag\n")
    assert read_run(tmp_path / "a.trec.gz") == {"q1": {"d2": 1.5, "d1": 0.25}, "q2": {"d1": -3.0}}


def test_ties_of_neighbouring_float32_stay_apart(tmp_path):
    score = np.float32(28.1234567)
    below = np.nextafter(score, np.float32(0))
    write_run(tmp_path / "run", [("q", [("a", score), ("b", below)])], "tag")
    read = read_run(tmp_path / "run")["q"]
    assert np.float32(read["a"]) == score and np.float32(read["b"]) == below
    assert read["a"] > read["b"]


@pytest.mark.parametrize("name", ["", "a b", " a", "a\u00a0b", "a\tb", "a\nb", "\u2003"])
def test_ids_that_would_break_the_columns(tmp_path, name):
    for rows in ([(name, [("d", 1.0)])], [("q", [("fine", 2.0), (name, 1.0)])]):
        with pytest.raises(UserError, match="white space, which separates the columns") as raised:
            write_run(tmp_path / "run", rows, "tag")
        assert "tevatron" in raised.value.hint
    with pytest.raises(UserError, match="the tag"):
        write_run(tmp_path / "run", ROWS, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a\tb", "a\nb"])
def test_ids_that_would_break_tabs(tmp_path, name):
    with pytest.raises(UserError, match="holds a tab or line break"):
        write_run(tmp_path / "run", [(name, [("d", 1.0)])], "tag", save_format="tevatron")


@pytest.mark.parametrize("score", [float("nan"), np.float32("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_not_written(tmp_path, score):
    with pytest.raises(UserError, match="query 'q' and document 'd' have the score"):
        write_run(tmp_path / "run", [("q", [("d", score)])], "tag")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "run.trec.gz"
    write_run(target, ROWS, "old")
    before = target.read_bytes()

    def broken():
        yield ROWS[0]
        raise RuntimeError("search died")

    with pytest.raises(RuntimeError):
        write_run(target, broken(), "new")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_run(target, ROWS, "new")
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_is_no_target(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        write_run(tmp_path, ROWS, "tag")
    with pytest.raises(UserError, match="is a folder"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q Q0 a 1 2.5 t\nq Q0 b 2 1.5\n", ":2: 5 columns, a TREC run has six"),
        ("q Q0 a b 1 2.5 t\n", ":1: 7 columns, a TREC run has six"),
        ("q Q0 a 1 2.5 t\nq Q0 b 2 high t\n", ":2: the score 'high' is not a number"),
        ("q Q0 a 1 2.5 t\nq2 Q0 a 1 2.5 t\nq Q0 a 2 1.5 t\n", ":3: document a occurs twice for query q"),
        ("", " holds no results"),
    ],
)
def test_bad_runs(tmp_path, content, message):
    path = tmp_path / "run"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_run(path)
    assert raised.value.what == f"{path}{message}"
    assert raised.value.hint


def test_bad_bytes_and_missing_runs(tmp_path):
    (tmp_path / "run").write_bytes(b"q Q0 caf\xe9 1 1 t\n")
    with pytest.raises(UserError, match=r"run:1: not UTF-8"):
        read_run(tmp_path / "run")
    with pytest.raises(UserError, match="no such file"):
        read_run(tmp_path / "nowhere")


def test_scores_that_are_not_finite_are_read_for_the_evaluator_to_judge(tmp_path):
    (tmp_path / "run").write_text("q Q0 a 1 nan t\nq\tQ0  b 2 -inf t\r\n")
    read = read_run(tmp_path / "run")["q"]
    assert np.isnan(read["a"]) and read["b"] == -np.inf


words = st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), min_size=1).filter(
    lambda word: word.split() == [word]
)
runs = st.dictionaries(
    words,
    st.dictionaries(words, st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(run=runs, tag=words, single=st.booleans(), ending=st.sampled_from(["trec", "trec.gz"]))
def test_round_trip_of_any_ids_and_scores(run, tag, single, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / f"run.{ending}"
    kind = np.float32 if single else float
    write_run(path, [(q, [(d, kind(score)) for d, score in docs.items()]) for q, docs in run.items()], tag)
    read = read_run(path)
    assert {q: {d: kind(score) for d, score in docs.items()} for q, docs in read.items()} == run
    assert [list(docs) for docs in read.values()] == [list(docs) for docs in run.values()]


@settings(max_examples=30, deadline=None)
@given(score=st.floats(allow_nan=False, allow_infinity=False))
def test_python_floats_are_exact(score, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    write_run(path, [("q", [("d", score)])], "tag")
    assert read_run(path)["q"]["d"] == score
