"""Table, figure and page from made-up numbers."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from starbucks_retrieval.demo import Settings
from starbucks_retrieval.demo.page import draw, example_ranks, render_demo_page, score_table, write_page
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.sizes import Size

NASTY = "<script>alert('x')</script> & \"more\""
ROWS = [
    {
        "size": "1:16",
        "parameters": 13_700_000,
        "bytes_per_passage": 32,
        "texts_per_second": 1234.5,
        "before": {"RR@10": 0.01, "nDCG@10": 0.0123},
        "fitted": {"RR@10": 0.11, "nDCG@10": 0.112},
        "after": {"RR@10": 0.2, "nDCG@10": 0.25},
    },
    {
        "size": "6:384",
        "parameters": 987,
        "bytes_per_passage": 768,
        "texts_per_second": 9.87,
        "before": {"RR@10": 0.6, "nDCG@10": 0.689},
        "fitted": {"RR@10": 0.6, "nDCG@10": 0.689},
        "after": {"RR@10": 0.61, "nDCG@10": 0.7},
    },
]
SUMMARY = {
    "backbone": "<base>",
    "machine": "2 cores & more",
    "collection": {"passages": 1500, "train_queries": 1154, "test_queries": 150},
    "fitting": {"texts": 2000, "seconds": 30.0},
    "token_table": {"size": "0:128", "scores": {"RR@10": 0.3, "nDCG@10": 0.333}},
    "training": {"steps": 12, "seconds": 25.0},
    "depth": 100,
    "rows": ROWS,
    "next": [{"what": "Ask <it>:", "command": "starbucks search --query 'a < b'"}],
    "provenance": {"starbucks_retrieval": "1.2.3", "python": "3.11.0", "packages": {"torch": "2.0", "nncf": "3"}},
}


@pytest.fixture
def folder(tmp_path):
    """A demonstration's scores, runs and data, with one test query whose passage is found at ranks 4 and 1."""
    for when in ("before", "fitted", "after"):
        cells = [
            Cell("data", name, Size.parse(row["size"]), value, 1) for row in ROWS for name, value in row[when].items()
        ]
        write_results(tmp_path / when / "scores.json", Results("evaluate", when, cells, {}))
        (tmp_path / when / "runs").mkdir()
        for size, best in (("L1-D16", "p3"), ("L6-D384", "p9")):
            order = [best, "p0", "p1"] if when == "after" else ["p0", "p1", "p2", best]
            lines = [f"q:p3 Q0 {docid} {i + 1} {9 - i} x\n" for i, docid in enumerate(order)]
            (tmp_path / when / "runs" / f"{size}.trec").write_text("".join(lines))
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq:p3\tp3\t1\n")
    (data / "queries.jsonl").write_text(
        '{"_id": "q:p3", "text": "<third> ' + 20 * "word " + '?"}\n{"_id": "other", "text": "no"}\n'
    )
    (data / "corpus.jsonl").write_text("".join(f'{{"_id": "p{i}", "text": "text {i}"}}\n' for i in range(10)))
    return tmp_path


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


def test_the_columns_of_the_table_are_aligned():
    lines = score_table(ROWS).to_string().splitlines()
    assert lines[1].split() == ["size", "parameters", "bytes/passage", "texts/s", *["before", "fitted", "after"] * 2]
    assert lines[2].split() == [
        "1:16",
        "13.7",
        "M",
        "32",
        "1,234",
        "0.010",
        "0.110",
        "0.200",
        "0.012",
        "0.112",
        "0.250",
    ]
    assert lines[3].split() == ["6:384", "987", "768", "9.9", "0.600", "0.600", "0.610", "0.689", "0.689", "0.700"]
    assert len({len(line) for line in lines[1:]}) == 1
    assert lines[0].index("nDCG@10") > lines[0].index("RR@10") > lines[1].index("texts/s")


def test_the_page_escapes_texts_and_loads_nothing_from_the_network(folder):
    ranks = example_ranks(folder, ["1:16", "6:384"], 5, 0).rename(index=lambda query: f"{query} {NASTY}")
    page = render_demo_page(SUMMARY, draw(folder, ROWS), ranks)
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.tags.count("script") == 1  # the one that sorts tables, which a policy pins
    assert reader.text.count("<script>alert('x')") == 1
    assert (
        "<base> was fitted on 2,000 texts without labels (30 seconds), and then trained with labels for 12"
        in reader.text
    )
    assert "nDCG@10 went from 0.012 to 0.112 fitted and 0.250 trained at the smallest size, 1:16" in reader.text
    assert (
        "At 0:128, a table of token vectors without any transformer layer, the fitted model reaches 0.333"
        in reader.text
    )
    assert "<third> " + 20 * "word " in reader.text
    assert "2 cores & more, with starbucks_retrieval 1.2.3, Python 3.11.0, torch 2.0." in reader.text
    assert "starbucks search --query 'a < b'" in reader.text
    files = {link for link in reader.links if not link.startswith("#")}
    assert files == {"figure.png", "figure.svg", "examples.html"}
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert page == render_demo_page(SUMMARY, draw(folder, ROWS), ranks)


def test_page_figure_and_examples_are_written(folder):
    paths = write_page(folder, SUMMARY, Settings())
    assert paths == {
        name: str(folder / file)
        for name, file in (("page", "index.html"), ("figure", "figure.png"), ("figure_svg", "figure.svg"))
    }
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "figure.svg").read_bytes()
    assert "q:p3" in (folder / "examples.html").read_text()


def test_the_figure_shows_each_measure_and_the_speed(folder):
    drawing = draw(folder, ROWS)
    assert [panel.title for panel in drawing.panels] == ["RR@10", "nDCG@10", "texts encoded per second"]
    assert list(drawing.legend) == ["before", "fitted", "after"]


def test_examples_show_the_ranks_before_and_after(folder):
    ranks = example_ranks(folder, ["1:16", "6:384"], 5, 0)
    assert [text[:7] for text in ranks.index] == ["<third>"]
    assert ranks.to_numpy().tolist() == [["4 → 4 → 1", "– → – → –"]]
