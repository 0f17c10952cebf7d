"""What the top of the page says: how much was measured, and the best figure of every measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starbucks_retrieval.report.columns import mean
from starbucks_retrieval.report.figures import headline, headlines
from starbucks_retrieval.report.inputs import Inputs
from starbucks_retrieval.report.layouts import figure
from starbucks_retrieval.report.size_list import ReportSizes
from starbucks_retrieval.report.tables import DIGITS

_TILES = 6


@dataclass(frozen=True)
class Kpi:
    """One large figure: what it is of, the figure, whose it is, and a line more."""

    what: str
    figure: str
    who: str
    more: str


def lead(inputs: Inputs, model_sizes: ReportSizes) -> str:
    """How much was measured, in a sentence."""
    sets = len({column.dataset for column in inputs.columns})
    many = [_count(len(inputs.methods), "method"), f"on {_count(sets, 'data set')}"]
    if len(model_sizes):
        first, last = model_sizes.sizes[0], model_sizes.sizes[-1]
        many.append(
            f"at {_count(len(model_sizes), 'size')}, {first} to {last}"
            if len(model_sizes) > 1
            else f"at the size {first}"
        )
    if not len(model_sizes):
        return f"{' '.join(many)}."
    return f"{' '.join(many)}. A size is layer:dim, the embedding after that layer, cut to that many dimensions."


def kpis(inputs: Inputs, model_sizes: ReportSizes) -> list[Kpi]:
    """Of every headline, the method with the highest mean over the sizes, and what it keeps at the smallest."""
    return list(_tiles(inputs, model_sizes))[:_TILES] if len(model_sizes) else []


def _tiles(inputs: Inputs, model_sizes: ReportSizes) -> Iterator[Kpi]:
    for group, column in headlines(inputs):
        means = []
        for method in inputs.methods:
            value = mean([figure(method, group, column, size) for size in model_sizes])
            if value is not None:
                means.append((value, method))
        if not means:
            continue
        value, method = max(means, key=lambda pair: pair[0])
        whole, small = (figure(method, group, column, size) for size in (model_sizes.sizes[-1], model_sizes.sizes[0]))
        what = "mean" if len(means) == 1 else f"highest mean of {len(means)} methods"
        more = (
            f"{what} over {_count(len(model_sizes), 'size')}" if len(model_sizes) > 1 else f"at {model_sizes.sizes[0]}"
        )
        if len(model_sizes) > 1 and whole and small is not None and whole > 0:
            more += f"; {small / whole:.0%} of the largest size's figure is left at {model_sizes.sizes[0]}"
        yield Kpi(headline(group, column), f"{value:.{DIGITS}f}", method.label, more)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
