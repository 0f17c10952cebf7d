"""Two readers of run files that must agree: in columns, for speed, and line by line, for what is odd."""

import gzip

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.data import run_reader
from starbucks_retrieval.data.run_reader import open_run, read_run, read_tag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

PLAIN = {
    "spaces": "q1 Q0 a 1 2.5 t\nq1 Q0 b 2 1e-3 t\nq2 Q0 a 1 -7 t\n",
    "tabs": "q1\tQ0\ta\t1\t2.5\tt\nq2\tQ0\ta\t1\t-7\tt\n",
    "no last line feed": "q1 Q0 a 1 2.5 t\nq2 Q0 a 1 -7 t",
    "empty lines": "\nq1 Q0 a 1 2.5 t\n\nq2 Q0 a 1 -7 t\n",
    "byte order mark": "\ufeffq1 Q0 a 1 2.5 t\n",
    "other alphabets": "сколько Q0 日本語 1 2.5 t\nq\u00a02 Q0 \u2028 1 -7 t\n",
    "quotes": 'q1 Q0 "a 1 2.5 t\nq2 Q0 \'b" 1 -7 t\n',
    "not finite": "q1 Q0 b 2 inf t\nq1 Q0 c 3 -inf t\n",
    "scores with a plus": "q1 Q0 a 1 +2.5 t\nq1 Q0 b 2 +.5 t\n",
    "scattered": "q1 Q0 a 1 2.5 t\nq2 Q0 a 1 -7 t\nq1 Q0 b 2 2 t\n",
}
ODD = {
    "runs of spaces": "q1  Q0 a 1   2.5 t\n",
    "leading space": " q1 Q0 a 1 2.5 t\n",
    "mixed": "q1 Q0 a\t1 2.5 t\nq2\tQ0 a 1 -7 t\n",
    "a tab inside what spaces separate": "q1 Q0 a 1 2.5 t\nq2 Q0 b 1 2.5\tt\n",
    "carriage returns": "q1 Q0 a 1 2.5 t\r\nq2 Q0 a 1 -7 t\r\n",
    "vertical tab": "q1 Q0 a 1\v2.5 t\n",
    "no number": "q1 Q0 a 1 nan t\nq1 Q0 b 2 -nan t\nq1 Q0 c 3 -7 t\n",
}
NASTY = [
    *("0x10", "0X1F", "-0x1", "0x", "0x1p3", "0b1", "0o7", "1L", "1f", "1d3", "1,5", "1__0", "1_0", "--1", "+-1", "e1"),
    *("1e", "1e400", "-1e400", "1e-400", ".5", "5.", "+1", "-1", "007", "1.0", "1e1", "99999999999999999999", "true"),
    *("null", "NA", "nan", "-nan", "nan(1)", "NaN(abc)", "inf", "-Infinity", "٣", "１", "1\u00a0", "²", "-"),
]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("content", PLAIN)
def test_both_readers_agree(tmp_path, content, zipped):
    path = tmp_path / ("run.gz" if zipped else "run")
    data = PLAIN[content].encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    columns, lines = run_reader._by_columns(path), run_reader._by_lines(path)
    assert columns is not None and lines.results
    assert repr(columns) == repr(lines)  # as text, for NaN is not itself
    assert repr(open_run(path)) == repr(lines)


@pytest.mark.parametrize("content", ODD)
def test_what_is_odd_is_left_to_the_line_reader(tmp_path, content):
    (tmp_path / "run").write_text(ODD[content])
    assert run_reader._by_columns(tmp_path / "run") is None
    assert repr(open_run(tmp_path / "run")) == repr(run_reader._by_lines(tmp_path / "run"))


@pytest.mark.parametrize("column", ["rank", "score"])
@pytest.mark.parametrize("cell", NASTY)
def test_both_readers_take_the_same_for_a_number(tmp_path, column, cell):
    rank, score = (cell, "9") if column == "rank" else ("1", cell)
    (tmp_path / "run").write_text(f"q Q0 a {rank} {score} t\nq Q0 b 2 10 t\nq Q0 c 3 1 t\n", encoding="utf-8")
    columns = run_reader._by_columns(tmp_path / "run")
    if columns is not None:  # else the line reader decides alone
        assert repr(columns) == repr(run_reader._by_lines(tmp_path / "run"))


@pytest.mark.parametrize(("cell", "is_one"), [("1", True), ("+1", True), ("001", True), ("0x1", False), ("1.0", False)])
def test_a_rank_is_written_in_decimal_digits(tmp_path, cell, is_one):
    (tmp_path / "run").write_text(f"q Q0 a {cell} 9 t\nq Q0 b 2 10 t\n")
    for file in (run_reader._by_columns(tmp_path / "run"), run_reader._by_lines(tmp_path / "run")):
        assert file.misranked == (["q"] if is_one else [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q Q0 a 1 2.5 t\nq  a 2 1.5 t\n", ":2: 5 columns"),
        ("q Q0 a 1 2.5 t\nq Q0  1 2.5 t\n", ":2: 5 columns"),
        ("q Q0 a 1 2.5 t\nq Q0 b\tc 1 2.5 t\n", ":2: 7 columns"),
        ("q\tQ0\ta b\t1\t2.5\tt\n", ":1: 7 columns"),
        ("q Q0 a\r1 2 2.5 t\n", ":1: 7 columns"),
        ("q Q0 a 1 0x10 t\n", ":1: the score '0x10' is not a number"),
        ("q Q0 a 1 1_0 t\n", ":1: the score '1_0' is not a number"),
        ("q Q0 a 1 nan(1) t\n", ":1: the score 'nan(1)' is not a number"),
        ("q Q0 a 1 null t\n", ":1: the score 'null' is not a number"),
        ("q Q0 a 1 2 t\nq Q0 b 2 1 t\nq Q0 a 3 0 t\n", ":3: document a occurs twice for query q"),
    ],
)
def test_both_readers_refuse_the_same(tmp_path, content, message):
    (tmp_path / "run").write_bytes(content.encode())
    with pytest.raises(UserError) as raised:
        open_run(tmp_path / "run")
    assert message in raised.value.what


def test_damaged_gzip_is_named(tmp_path):
    whole = gzip.compress("".join(f"q Q0 d{i} {i} {-i} t\n" for i in range(5000)).encode())
    (tmp_path / "run.gz").write_bytes(whole[:-4000])
    with pytest.raises(UserError, match=r"run\.gz:\d+: damaged gzip"):
        open_run(tmp_path / "run.gz")


def test_queries_go_on_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(run_reader, "_BLOCK", 200)
    rng = np.random.default_rng(0)
    rows = [(f"q{i // 50}", f"d{i % 50}", i % 50, 50 - i % 50 + rng.random() / 2) for i in range(500)]
    (tmp_path / "run").write_text("".join(f"{q} Q0 {d} {r} {s!r} t\n" for q, d, r, s in rows))
    columns = run_reader._by_columns(tmp_path / "run")
    assert columns == run_reader._by_lines(tmp_path / "run")
    assert [list(results.items()) for results in columns.results.values()] == [
        [(d, s) for q, d, _, s in rows if q == f"q{i}"] for i in range(10)
    ]
    assert (columns.scattered, columns.misranked) == ([], [])


@pytest.mark.parametrize(
    ("ranked", "disagrees"),
    [
        ([(1, 3.0), (2, 2.0), (3, 1.0)], False),
        ([(3, 1.0), (1, 3.0), (2, 2.0)], False),  # out of order, but of one mind
        ([(1, 3.0), (2, 1.0), (3, 2.0)], True),
        ([(3, 3.0), (1, 1.0), (2, 2.0)], True),
        ([(1, 2.0), (2, 2.0)], False),  # ties
        ([(1, 1.0), (2, 1.0 + 1e-12)], False),  # ties as float32, as trec_eval compares them
        ([(1, 1.0), (1, 2.0), (1, 0.5)], False),  # ranks that order nothing
        ([(1, 1.0), (1, 3.0), (2, 2.0)], True),
        ([(0, 1e39), (1, 2.0)], False),
    ],
)
def test_ranks_against_scores(tmp_path, ranked, disagrees):
    lines = [f"q Q0 d{i} {rank} {score!r} t\n" for i, (rank, score) in enumerate(ranked)]
    (tmp_path / "run").write_text("".join([*lines, "r Q0 d 1 1 t\n"]))
    for file in (run_reader._by_columns(tmp_path / "run"), run_reader._by_lines(tmp_path / "run")):
        assert file.misranked == (["q"] if disagrees else [])


@pytest.mark.parametrize(
    ("tag", "size"),
    [
        ("starbucks-6:128", Size(6, 128)),
        ("my-model-12:768", Size(12, 768)),
        ("bm25", None),
        ("6:128", None),
        ("starbucks-2:32@1000,12:768", None),
        ("starbucks-0:128", Size(0, 128)),
        ("starbucks-6:128-v2", None),
    ],
)
def test_tags_tell_sizes(tmp_path, tag, size):
    (tmp_path / "run").write_text(f"q Q0 a 1 2.5 {tag}\nq Q0 b 2 1.5 other-1:8\n")
    assert (open_run(tmp_path / "run").tag, read_tag(tmp_path / "run")) == (tag, tag)
    assert open_run(tmp_path / "run").size == size


def test_a_tag_of_no_run(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="holds no results"):
        read_tag(tmp_path / "run")
    (tmp_path / "run").write_text("q Q0 a 1 2.5\n")
    with pytest.raises(UserError, match=":1: 5 columns"):
        read_tag(tmp_path / "run")


@pytest.mark.parametrize("runs", slow_except([2], [2, 8]))
def test_public_runs_read_alike(shared, runs):
    for path in sorted((shared / "data" / "runs").glob("*.trec.gz"))[:runs]:
        columns = run_reader._by_columns(path)
        assert columns is None or columns == run_reader._by_lines(path), path.name
        assert len(read_run(path)) >= 43
