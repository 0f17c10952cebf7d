"""Everything a reader gets: figure, page, and the closing words on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.demo.examples import pick_examples
from starbucks_retrieval.demo.figure import write_figures
from starbucks_retrieval.demo.measure import run_file
from starbucks_retrieval.demo.page import render_page
from starbucks_retrieval.demo.settings import Settings
from starbucks_retrieval.demo.table import Row
from starbucks_retrieval.sizes import Sizes


def write_report(
    folder: Path, rows: Sequence[Row], summary: dict[str, Any], settings: Settings, sizes: Sizes
) -> dict[str, Any]:
    """Write figure.png, figure.svg and index.html; returns their paths."""
    figures = write_figures(rows, folder)
    ends = dict.fromkeys((sizes[0], sizes[-1]))
    runs = {str(size): run_file(folder / "after", size) for size in ends}
    examples = pick_examples(folder / "data", runs, settings.examples, settings.seed)
    collection, training = summary["collection"], summary["training"]
    story = {
        "backbone": summary["backbone"],
        "machine": summary["machine"],
        "passages": collection["passages"],
        "train_queries": collection["train_queries"],
        "test_queries": collection["test_queries"],
        "steps": training["steps"],
        "seconds": training["seconds"],
    }
    page = folder / "index.html"
    page.write_text(render_page(rows, examples, story, summary["next"]), encoding="utf-8")
    return {"page": str(page), "figure": str(figures[0]), "figure_svg": str(figures[1])}


def closing(summary: dict[str, Any]) -> str:
    """The last words: where things are, how long it took, and what to type next."""
    lines = [
        f"page: {summary['page']}    figure: {summary['figure']}",
        f"done in {summary['seconds']:.0f} s. What you can type next:",
    ]
    for line in summary["next"]:
        lines += ["", f"  {line['what']}", f"  {line['command']}"]
    return "\n".join(lines)
