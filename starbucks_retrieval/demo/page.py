"""What a demonstration shows: lines and a table on the terminal, a figure, and an HTML page in the theme of reports."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from starbucks_retrieval.browse import BrowseArguments, browse
from starbucks_retrieval.cli.words import flag_chunks
from starbucks_retrieval.data import open_queries, read_qrels, read_run
from starbucks_retrieval.demo import Settings
from starbucks_retrieval.demo.pipeline import run_file
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.measures import Run, trec_order
from starbucks_retrieval.pages import render_template
from starbucks_retrieval.report.drawing import COLOURS, INK, Drawing, Panel, draw_files, inline_svg
from starbucks_retrieval.report.figures import effectiveness_figure
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)
_PACKAGE = logging.getLogger("starbucks_retrieval")
_WIDTH = 110

MOMENTS = ("before", "fitted", "after")
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "faiss-cpu", "faiss-gpu", "ir-measures")


@dataclass
class Part:
    """A part that runs.

    Attributes:
        outcome: What came out, for its line.
        commands: The command lines that it stands for.
        seconds: The seconds that it took.
        kept: Whether an earlier demonstration did it.
    """

    outcome: str = ""
    commands: Sequence[str] = ()
    seconds: float = 0.0
    kept: bool = False


class Story:
    """Prints a line for each part once it is done; on a terminal, its title is shown while it runs.

    Args:
        total: The number of parts.
        commands: Print the commands of each part below its line.
    """

    def __init__(self, total: int, commands: bool = False) -> None:
        self.total, self.commands = total, commands
        self._number = 0

    @contextlib.contextmanager
    def part(self, title: str) -> Iterator[Part]:
        """Run a part, in which nothing is printed but warnings, after its line; `--log_level debug` prints everything.

        Args:
            title: What the part does.

        Yields:
            The part, whose attributes the caller sets.
        """
        self._number += 1
        head, part = f"{self._number}/{self.total}  {title}", Part()
        with _title_shown(head), _logs_held_back():
            yield part
        how = f"kept from an earlier run, {part.seconds:.0f} s" if part.kept else f"{part.seconds:.0f} s"
        log.info("%s: %s (%s)", head, part.outcome, how)
        for line in part.commands if self.commands else ():
            log.info("     $ %s", wrapped(line))


def wrapped(line: str) -> str:
    """Return a command line in several short lines that can be pasted into a shell; values stay beside their flag.

    Example:
        >>> print(wrapped("starbucks encode " + "--flag value " * 10))
        starbucks encode --flag value --flag value --flag value --flag value --flag value --flag value \\
              --flag value --flag value --flag value --flag value
    """
    lines = [""]
    for chunk in flag_chunks(shlex.split(line)):
        whole = shlex.join(chunk)
        for words in [whole] if len(whole) < _WIDTH - 8 else map(shlex.quote, chunk):
            if lines[-1] and len(lines[-1]) + len(words) >= _WIDTH - 8:
                lines.append("")
            lines[-1] += (" " if lines[-1] else "") + words
    return " \\\n      ".join(lines)


@contextlib.contextmanager
def _title_shown(title: str) -> Iterator[None]:
    if not (sys.stderr.isatty() and log.isEnabledFor(logging.INFO)):
        yield
        return
    print(f"{title} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _logs_held_back() -> Iterator[None]:
    """Drop what is below a warning, and print warnings at the end, so that they do not join the title."""
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    level, handlers = _PACKAGE.level, list(_PACKAGE.handlers)
    waiting = [MemoryHandler(10_000, logging.CRITICAL + 1, handler) for handler in handlers]
    _PACKAGE.handlers[:] = waiting
    _PACKAGE.setLevel(max(logging.WARNING, _PACKAGE.getEffectiveLevel()))
    try:
        yield
    finally:
        _PACKAGE.setLevel(level)
        _PACKAGE.handlers[:] = handlers
        for handler in waiting:
            handler.close()


def score_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows of a summary as text, the scores under headings of two lines: measure, then before, fitted and after.

    Args:
        rows: One mapping for each size: `size`, `parameters`, `bytes_per_passage`, `texts_per_second`, and `before`,
            `fitted` and `after`, the score by measure. All rows have the measures of the first.

    Returns:
        A table of strings with one row for each size. Parameters from one million on are in millions.
    """
    import pandas as pd

    measures = list(rows[0]["before"])
    columns = [("", name) for name in ("parameters", "bytes/passage", "texts/s")]
    columns += [(name, when) for name in measures for when in MOMENTS]
    cells = [
        [
            f"{row['parameters'] / 1e6:.1f} M" if row["parameters"] >= 1e6 else f"{row['parameters']:,}",
            str(row["bytes_per_passage"]),
            _rate(row["texts_per_second"]),
            *(f"{row[when][name]:.3f}" for name in measures for when in MOMENTS),
        ]
        for row in rows
    ]
    headings = pd.MultiIndex.from_tuples(columns, names=["", "size"])
    return pd.DataFrame(cells, index=[row["size"] for row in rows], columns=headings)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def write_page(folder: Path, summary: dict[str, Any], settings: Settings) -> dict[str, str]:
    """Write figure.png, figure.svg, examples.html and index.html of a demonstration into its folder.

    Args:
        folder: The folder, with the scores and runs of both models and the collection.
        summary: The content of summary.json.
        settings: The number of examples and the seed that picks them.

    Returns:
        The paths of index.html (`page`), of the figure as PNG (`figure`) and as SVG (`figure_svg`).
    """
    sizes = [row["size"] for row in summary["rows"]]
    drawing = draw(folder, summary["rows"])
    files = {f"figure.{kind}": content for kind, content in draw_files(drawing).items()}
    ranks = example_ranks(folder, sizes, settings.examples, settings.seed)
    files["index.html"] = render_demo_page(summary, drawing, ranks).encode()
    ends = list(dict.fromkeys((sizes[0], sizes[-1])))
    runs = [str(run_file(folder / "after", Size.parse(size))) for size in ends]
    shown = BrowseArguments(runs, str(folder / "data"), label=ends, depth=5, max_text=500)
    title = "Test queries at the smallest and the full size, after training"
    files["examples.html"] = browse(shown, title=title).html.encode()
    for name, content in files.items():
        with atomic_writer(folder / name) as out:
            out.write(content)
    return {
        name: str(folder / file)
        for name, file in (("page", "index.html"), ("figure", "figure.png"), ("figure_svg", "figure.svg"))
    }


def draw(folder: Path, rows: Sequence[dict[str, Any]]) -> Drawing:
    """Return the figure: each measure over the sizes before, fitted and after training, and the speed of each size.

    Args:
        folder: The folder of the demonstration, with `scores.json` of all three models.
        rows: The rows of its summary, as in `score_table`.
    """
    found = read_inputs([f"{when}={folder / when / 'scores.json'}" for when in MOMENTS])
    sizes = found.choose_sizes(",".join(row["size"] for row in rows))
    quality = effectiveness_figure(found, sizes) or Drawing("", "", [])  # of one size, no line
    panels = [dataclasses.replace(p, title=p.title.removeprefix("data ")) for p in quality.panels]
    speed = Panel("texts encoded per second", "texts encoded per second at each size", lambda axes: _bars(axes, rows))
    return Drawing("figure", "Quality and speed at each size", [*panels, speed], (4.3, 3.3), quality.legend)


def _bars(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    bars = axes.barh([row["size"] for row in rows], [row["texts_per_second"] for row in rows], color=COLOURS[2])
    axes.bar_label(bars, [_rate(row["texts_per_second"]) for row in rows], padding=5, color=INK)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.15)


def example_ranks(folder: Path, sizes: Sequence[str], count: int, seed: int) -> pd.DataFrame:
    """Return the rank of the relevant passage of a few test queries at every size, before, fitted and after training.

    Args:
        folder: The folder of the demonstration, with runs of all three models and the collection.
        sizes: The sizes, as text.
        count: The number of queries, which are picked by a hash.
        seed: The seed of the hash.

    Returns:
        A table with a row for each query and a column for each size. A cell is a text such as `57 → 9 → 4`; a dash is a
        rank beyond the depth searched.
    """
    import pandas as pd

    data = str(folder / "data")
    qrels = read_qrels(data, split="test")
    texts = {query.query_id: query.text for query in open_queries(data, split="test")}
    chosen = sorted(qrels, key=lambda name: hashlib.blake2b(f"{seed} {name}".encode()).digest())[:count]
    runs = [[read_run(run_file(folder / when, Size.parse(size))) for when in MOMENTS] for size in sizes]

    def first_rank(run: Run, name: str) -> str:
        order = enumerate(trec_order(run.get(name, {})), 1)
        return next((str(rank) for rank, docid in order if docid in qrels[name]), "–")

    cells = [[" → ".join(first_rank(run, name) for run in moments) for moments in runs] for name in chosen]
    return pd.DataFrame(cells, index=[texts[name] for name in chosen], columns=pd.Index(sizes, name="query"))


def render_demo_page(summary: dict[str, Any], drawing: Drawing, ranks: pd.DataFrame) -> str:
    """Return the page as HTML.

    Args:
        summary: The content of summary.json.
        drawing: The figure, from `draw`.
        ranks: The table of `example_ranks`.
    """
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):  # texts in full
        tables = {
            "scores": Markup(score_table(summary["rows"]).to_html(border=0)),  # noqa: S704 - to_html escapes the texts
            "ranks": Markup(ranks.to_html(border=0)),  # noqa: S704 - as above
        }
    measure = list(summary["rows"][0]["before"])[-1]
    context = {"summary": summary, "drawing": drawing, "measure": measure, "packages": _PACKAGES, **tables}
    return render_template("demo.html", inline_svg=inline_svg, **context)
