"""Table, figure, page and command lines from made-up numbers."""

from __future__ import annotations

import shlex
import sys
from html.parser import HTMLParser

from starbucks_retrieval.demo.commands import command, program, short_path
from starbucks_retrieval.demo.examples import Answer, Example, Found, pick_examples
from starbucks_retrieval.demo.figure import write_figures
from starbucks_retrieval.demo.page import render_page
from starbucks_retrieval.demo.settings import LONG
from starbucks_retrieval.demo.table import Row, text_table
from starbucks_retrieval.demo.training import steps_for

ROWS = [
    Row("1:16", 13_700_000, 32, 1234.5, {"RR@10": 0.01, "nDCG@10": 0.0123}, {"RR@10": 0.2, "nDCG@10": 0.25}),
    Row("6:384", 987, 768, 9.87, {"RR@10": 0.6, "nDCG@10": 0.689}, {"RR@10": 0.61, "nDCG@10": 0.7}),
]
STORY = {
    "backbone": "<base>",
    "machine": "2 cores & more",
    "passages": 1500,
    "train_queries": 1154,
    "test_queries": 150,
    "steps": 12,
    "seconds": 25.0,
}
COMMANDS = [{"what": "Ask <it>:", "command": "starbucks search --query 'a < b'"}]
NASTY = "<script>alert('x')</script> & \"more\""


class Reader(HTMLParser):
    """Collects tags, checks that they nest, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_table_lines_up():
    lines = text_table(ROWS).splitlines()
    assert lines[1].split() == ["size", "parameters", "bytes/passage", "texts/s", *["before", "after"] * 2]
    assert lines[2].split() == ["1:16", "13.7", "M", "32", "1,234", "0.010", "0.200", "0.012", "0.250"]
    assert lines[3].split() == ["6:384", "987", "768", "9.9", "0.600", "0.610", "0.689", "0.700"]
    assert len({len(line) for line in lines[1:]}) == 1
    assert lines[0].index("nDCG@10") > lines[0].index("RR@10") > lines[1].index("texts/s")


def test_the_page_escapes_everything_and_fetches_nothing():
    found = [Found("a.b<c>", NASTY, True), Found("d", "plain", False)]
    examples = [Example(NASTY, [Answer("1:16", found, 1, 100), Answer("6:384", found, None, 100)])]
    page = render_page(ROWS, examples, STORY, COMMANDS)
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "script" not in reader.tags
    assert reader.text.count("<script>alert('x')") == 3  # the heading, and a passage in each answer
    assert "<base> was trained for 12 steps" in reader.text
    assert "a.b<c> ✓ relevant" in reader.text
    assert "relevant passage not in the first 100" in reader.text
    assert "starbucks search --query 'a < b'" in reader.text
    assert len(reader.links) == 4 and all(link.startswith("data:image/svg+xml;base64,") for link in reader.links)
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert page == render_page(ROWS, examples, STORY, COMMANDS)


def test_the_figure_comes_as_png_and_svg(tmp_path):
    png, svg = write_figures(ROWS, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()


def test_examples_show_the_top_three_and_the_rank(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq:p3\tp3\t1\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q:p3", "text": "third?"}\n{"_id": "other", "text": "no"}\n')
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "p{i}", "text": "text {i}"}}\n' for i in range(6)))
    run = tmp_path / "small.trec"
    run.write_text("".join(f"q:p3 Q0 p{i} {i + 1} {9 - i} x\n" for i in range(6)))
    [example] = pick_examples(tmp_path, {"1:16": run}, 5, 0)
    assert example.query == "third?"
    assert example.answers == [
        Answer("1:16", [Found(f"p{i}", f"text {i}", False) for i in range(3)], rank=4, depth=6),
    ]


def test_commands_are_what_a_shell_reads(tmp_path, monkeypatch):
    line = command("encode", {"a": "x y", "b": True, "c": False, "d": None, "e": ["1", "2"], "f": 3}, ["--seed", "1"])
    words = shlex.split(line)
    assert words[len(program()) :] == ["encode", "--a", "x y", "--b", "--e", "1", "2", "--f", "3", "--seed", "1"]
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "venv" / "bin") == "venv/bin"
    assert short_path(tmp_path.parent) == str(tmp_path.parent)


def test_without_starbucks_on_the_path_its_full_name_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert program() == ["bin/python", "-m", "starbucks_retrieval"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "starbucks").touch(mode=0o755)
    assert program() == ["bin/starbucks"]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert program() == ["starbucks"]


def test_steps_follow_the_speed_within_bounds():
    speeds = [{"tokens_per_text": 80.0, "tokens_per_second": {"6:384": rate}} for rate in (1e2, 8e3, 1e9)]
    slow, usual, fast = (steps_for(LONG, speed, "6:384", 15.0) for speed in speeds)
    assert slow == LONG.min_steps
    assert LONG.min_steps < usual < LONG.max_steps
    assert fast == LONG.max_steps
