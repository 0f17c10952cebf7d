from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import pytest
from conftest import slow_except

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report import ReportArguments, report
from starbucks_retrieval.report.__main__ import main
from starbucks_retrieval.sizes import Size

from .conftest import costs, grid

NASTY = "<script>alert(1)</script> & 'x' \"y\" _z_ 50%"


class Loader(HTMLParser):
    """What a browser would fetch or run, and the text it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.open = 0

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster") or (name == "href" and tag in ("link", "image", "base")):
                self.fetched.append(value)
            elif name == "href":
                self.links.append(value)


@pytest.fixture
def files(two_methods, write):
    more = {
        "model": "models/<x>",
        "costs": costs(),
        "provenance": {
            "starbucks_retrieval": "9.9",
            "git": "abcdef0123456",
            "python": "3.11",
            "packages": {"torch": "2.13"},
        },
    }
    grids = [write(f"grid{i}.json", grid(0.1 * i), label, "grid", **more) for i, label in enumerate((NASTY, "old"))]
    bm25 = write("bm25.json", [Cell("web", "nDCG@10", None, 0.4, 4)], "BM25")
    return [*two_methods, *grids, bm25]


def test_a_note_stands_under_every_table(files, tmp_path):
    report(ReportArguments(files, tmp_path / "out", note=["All are trained alike."], no_figures=True))
    tables = sorted((tmp_path / "out").glob("*.md"))
    assert len(tables) == 3 and all("- All are trained alike.\n" in path.read_text() for path in tables)
    assert (tmp_path / "out" / "index.html").read_text().count("All are trained alike.") == 3


@pytest.mark.parametrize("what", slow_except(["the page"], ["the page", "files too"]))
def test_everything_is_written_on_a_page_that_fetches_nothing_and_twice_the_same(
    files, tmp_path, capsys, monkeypatch, what
):
    pytest.importorskip("matplotlib")
    if what == "the page":  # it has its own drawings of the figures that are written to files
        monkeypatch.setattr("starbucks_retrieval.report.draw_files", lambda drawing: {"png": b"", "svg": b""})
    out = tmp_path / "out" / "deeper"
    assert (
        run_command(
            main, ["--input", *files, "--output_dir", str(out), *("--baseline", "old", "--title", NASTY), "--json"]
        )
        == 0
    )
    printed, summary = capsys.readouterr()
    found = json.loads(printed)
    tables = [
        f"{name}.{kind}" for name in ("averages", "by_size", "differences", "ablation") for kind in ("md", "tex", "csv")
    ]
    drawn = [f"{name}.{kind}" for name in found["figures"] for kind in ("png", "svg")]
    assert found["figures"] == ["effectiveness", "layers", "grid_deltas", "grid_values", "latency", "pareto"]
    assert sorted(path.name for path in out.iterdir()) == sorted([*tables, *drawn, "comparisons.csv", "index.html"])
    assert sorted(found["paths"]) == sorted(str(path) for path in out.iterdir())
    assert found["page"] == str(out / "index.html")
    assert summary.strip().endswith(f"all of them in {out / 'index.html'}")
    fetches_nothing_and_escapes_everything(out)
    # Again in Python: the same bytes. Those of figures are compared where one of them is drawn twice.
    monkeypatch.setattr("starbucks_retrieval.report.draw_files", lambda drawing: {})
    report(ReportArguments(files, tmp_path / "again", baseline="old", title=NASTY))
    for path in out.iterdir():
        if path.name not in drawn:
            assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def fetches_nothing_and_escapes_everything(folder):
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = Loader()
    page.feed(text)
    assert page.fetched == []
    assert page.scripts == 1
    assert "alert(1)</script>" not in text
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert "default-src 'none'" in text
    for link in page.links:
        assert link[1:] in re.findall(r"\bid=['\"]([^'\"]+)", text) if link[0] == "#" else (folder / link).is_file()


def test_the_page_says_where_figures_come_from(files, tmp_path):
    report(ReportArguments(files, tmp_path / "out", no_figures=True))
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for word in ("models/&lt;x&gt;", "9.9 abcdef0123", "Python 3.11, torch 2.13", "new.json", "grid1.json"):
        assert word in text
    assert not list((tmp_path / "out").glob("*.png"))


def test_missing_matplotlib_is_a_user_error_and_tables_do_without(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    flags = ["--input", *files, "--output_dir", str(tmp_path / "out")]
    assert run_command(main, flags) == 2
    assert "pip install matplotlib, or pass --no_figures" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run_command(main, [*flags, "--no_figures"]) == 0
    assert (tmp_path / "out" / "averages.tex").is_file()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--baseline", "nobody"], "no input has the label 'nobody'"),
        (["--sizes", "7:7"], "nothing was measured at 7:7"),
        (["--sizes", "seven"], "cannot read the size 'seven'"),
        (["--published", "nowhere.json"], "no such file: nowhere.json"),
        (["--correction", "magic"], "magic"),
    ],
)
def test_bad_flags_write_nothing(flags, what, two_methods, tmp_path, capsys):
    out = tmp_path / "out"
    assert run_command(main, ["--input", *two_methods, "--output_dir", str(out), "--no_figures", *flags]) == 2
    assert what in capsys.readouterr().err
    assert not out.exists()


def test_a_file_in_place_of_the_folder_is_refused(two_methods, tmp_path):
    (tmp_path / "out").write_text("")
    assert run_command(main, ["--input", *two_methods, "--output_dir", str(tmp_path / "out"), "--no_figures"]) == 2


def test_serious_findings_stand_on_top(write, tmp_path, capsys):
    path = write("a.json", [Cell("web", "RR@10", Size(2, 8), 0.5, 4)], findings={"web": {"2:8": ["hub documents"]}})
    assert run_command(main, ["--input", path, "--output_dir", str(tmp_path / "out"), "--no_figures"]) == 0
    assert "warnings: 1" in capsys.readouterr().err
    text = (tmp_path / "out" / "index.html").read_text()
    assert text.index("ours, web at 2:8: hub documents") < text.index("<section")


def test_only_figures_without_sizes_make_a_page(write, tmp_path):
    done = report(
        ReportArguments(write("a.json", [Cell("web", "RR@10", None, 0.5, 4)]), tmp_path / "out", no_figures=True)
    )
    assert [table.name for table in done.tables] == ["by_size"]
    assert "| no size | ours | 0.5000 |" in (tmp_path / "out" / "by_size.md").read_text()
