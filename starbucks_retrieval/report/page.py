"""The values that the template `report.html` shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starbucks_retrieval.pages import render_template
from starbucks_retrieval.report.columns import ReportSizes, mean_or_none
from starbucks_retrieval.report.drawing import Drawing, inline_svg
from starbucks_retrieval.report.figures import panel_columns, panel_title
from starbucks_retrieval.report.inputs import ReportInputs, Source
from starbucks_retrieval.report.layouts import column_score
from starbucks_retrieval.report.tables import DIGITS, Table

_MAX_KPIS = 6


@dataclass(frozen=True)
class Kpi:
    """One large number at the top of the page: what it measures, its value, the method it belongs to, and a remark."""

    name: str
    value: str
    method: str
    details: str


@dataclass(frozen=True)
class ReportPage:
    """Everything on the page.

    Args:
        title: Its heading.
        subtitle: The sentence below it.
        kpis: The large numbers.
        warnings: Serious findings of the preflight.
        tables: The tables.
        drawings: The figures; that of effectiveness stands before the tables.
        sources: The result files.
        notes: Sentences about scores that were left out.
        version: The version of this package.
    """

    title: str
    subtitle: str
    kpis: list[Kpi]
    warnings: list[str]
    tables: list[Table]
    drawings: list[Drawing]
    sources: list[Source]
    notes: list[str]
    version: str

    def sections(self) -> list[tuple[str, str]]:
        """Return (anchor, heading) of each section, in the order of the page."""
        drawings = [(drawing.name, drawing.title) for drawing in self.drawings]
        first = [section for section in drawings if section[0] == "effectiveness"]
        tables = [(f"table-{table.name}", table.title) for table in self.tables]
        rest = [section for section in drawings if section not in first]
        return [*first, *tables, *rest, ("provenance", "Where the figures come from")]

    def file_details(self) -> list[tuple[str, str]]:
        """Return (path, contents besides the scores) of each result file."""
        return list(dict.fromkeys((source.path, source.details()) for source in self.sources if source.more))


def render_report_page(page: ReportPage) -> str:
    """Return the page as HTML.

    Returns:
        A complete HTML document. All values are escaped, and a browser loads nothing but this text.
    """
    return render_template("report.html", page=page, inline_svg=inline_svg)


def describe_inputs(inputs: ReportInputs, model_sizes: ReportSizes) -> str:
    """Return a sentence that says how much was measured.

    Args:
        inputs: The contents of the result files.
        model_sizes: The sizes that the tables show; may be empty.

    Returns:
        The numbers of methods, data sets and sizes. If there are sizes, a second sentence explains what a size is.
    """
    sets = len({column.dataset for column in inputs.columns})
    measured = f"{_count(len(inputs.methods), 'method')} on {_count(sets, 'data set')}"
    if not len(model_sizes):
        return f"{measured}."
    first, last = model_sizes.sizes[0], model_sizes.sizes[-1]
    several = f"at {_count(len(model_sizes), 'size')}, {first} to {last}"
    at = several if len(model_sizes) > 1 else f"at the size {first}"
    return f"{measured} {at}. A size is layer:dim, the embedding after that layer, cut to that many dimensions."


def choose_kpis(inputs: ReportInputs, model_sizes: ReportSizes) -> list[Kpi]:
    """Return, for each data set or average, the method with the highest mean over the sizes.

    Args:
        inputs: The contents of the result files.
        model_sizes: The sizes of the mean. A method needs a score at each of them.

    Returns:
        Up to six large numbers, in the order of the panels; none if there are no sizes.
    """
    return list(_kpis(inputs, model_sizes))[:_MAX_KPIS] if len(model_sizes) else []


def _kpis(inputs: ReportInputs, model_sizes: ReportSizes) -> Iterator[Kpi]:
    small, large = model_sizes.sizes[0], model_sizes.sizes[-1]
    for group, column in panel_columns(inputs):
        means = []
        for method in inputs.methods:
            value = mean_or_none([column_score(method, group, column, size) for size in model_sizes])
            if value is not None:
                means.append((value, method))
        if not means:
            continue
        value, method = max(means, key=lambda pair: pair[0])
        kind = "mean" if len(means) == 1 else f"highest mean of {len(means)} methods"
        details = f"{kind} over {_count(len(model_sizes), 'size')}" if len(model_sizes) > 1 else f"at {small}"
        at_large, at_small = (column_score(method, group, column, size) for size in (large, small))
        if len(model_sizes) > 1 and at_large and at_small is not None and at_large > 0:
            details += f"; {at_small / at_large:.0%} of the largest size's figure is left at {small}"
        yield Kpi(panel_title(group, column), f"{value:.{DIGITS}f}", method.label, details)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
