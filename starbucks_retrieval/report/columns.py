"""Scores of methods by column (data set and measure) and size, the order of columns, and the sizes that tables show."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.sizes import SIZE_ALIASES, Size, Sizes

AVERAGE = "Average"

# The papers' order; other data sets follow in the order of their files.
_ORDER = ("stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sickr", "msmarco", "dl19", "dl20")
_DATASETS = {
    "stsbenchmark": "stsb",
    "stsbtest": "stsb",
    "sickrsts": "sickr",
    "sick": "sickr",
    "msmarcodev": "msmarco",
    "msmarcopassagedev": "msmarco",
    "dl19passage": "dl19",
    "dl20passage": "dl20",
    "trecdl2019": "dl19",
    "trecdl2020": "dl20",
    "dbpedia": "dbpediaentity",
    "webistouche2020": "touche2020",
    "fiqa2018": "fiqa",
    "cfever": "climatefever",
    "signal1mrt": "signal1m",
}
_MEASURES = {"spearmancosine": "spearman", "mrr@10": "rr@10"}


class Column(NamedTuple):
    """A data set and a measure; `dataset` is `AVERAGE` for the mean over the data sets of the measure."""

    dataset: str
    measure: str


class ColumnGroup(NamedTuple):
    """The columns of one measure. Averages stay inside a group: scores of different measures are not averaged."""

    measure: str
    columns: tuple[Column, ...]

    @property
    def averaged(self) -> bool:
        """Whether the group has a column of averages."""
        return len(self.columns) > 1


@dataclass(frozen=True)
class Cost:
    """The cost of one size; None where it was not measured.

    Args:
        query_ms: Milliseconds to encode a query.
        passage_ms: Milliseconds to encode a passage.
        bytes_per_passage: Bytes to store a passage.
    """

    query_ms: float | None
    passage_ms: float | None
    bytes_per_passage: float | None


@dataclass
class MethodResults:
    """All that was measured of one method.

    Attributes:
        label: Its name in tables.
        cells: Its cells by column and size; None is the size of scores without one.
        costs: Its costs by size.
        pairs: Its scores of queries at one layer against passages at another, by column, size of the queries and size of
            the passages.
        seeds: Its cells of several seeds by column and size, where `cells` has their means.
        gold: The gold scores of sets of pairs, by set, where the cosines of its pairs are kept.
        origins: The file of each cell; of several seeds, that of the first.
        models: The fingerprints of the models of several seeds by column and size, "" where unknown.
    """

    label: str
    cells: dict[tuple[Column, Size | None], Cell] = field(default_factory=dict)
    costs: dict[Size, Cost] = field(default_factory=dict)
    pairs: dict[tuple[Column, Size, Size], float] = field(default_factory=dict)
    seeds: dict[tuple[Column, Size | None], list[Cell]] = field(default_factory=dict)
    gold: dict[str, dict[str, float]] = field(default_factory=dict)
    origins: dict[tuple[Column, Size | None], str] = field(default_factory=dict)
    models: dict[tuple[Column, Size | None], list[str]] = field(default_factory=dict)

    def add_pairs(self, cells: Iterable[Cell]) -> list[Cell]:
        """Add the scores of two layers at one dim, where a column has several of a dim, and return their cells."""
        groups: dict[tuple[Column, int], list[Cell]] = {}
        for cell in cells:
            if cell.size and cell.passage_size and cell.size.dim == cell.passage_size.dim:
                groups.setdefault((Column(cell.dataset, cell.measure), cell.size.dim), []).append(cell)
        added = []
        for (column, _), group in groups.items():
            if sum(cell.size != cell.passage_size for cell in group) > 1:
                for cell in group:
                    assert cell.size and cell.passage_size
                    self.pairs[column, cell.size, cell.passage_size] = cell.value
                added += group
        return added

    @property
    def has_sizes(self) -> bool:
        """Whether any score has a size."""
        return any(size is not None for _, size in self.cells)

    def cell(self, column: Column, size: Size | None) -> Cell | None:
        """Return the cell, or None if it is missing or its value is not finite."""
        found = self.cells.get((column, size))
        return found if found is not None and math.isfinite(found.value) else None

    def runs(self, column: Column, size: Size | None) -> list[Cell]:
        """Return the cells of all seeds, or the one cell."""
        cell = self.cell(column, size)
        return self.seeds.get((column, size)) or ([] if cell is None else [cell])

    def value(self, column: Column, size: Size | None) -> float | None:
        """Return the score, or None if it is missing."""
        found = self.cell(column, size)
        return None if found is None else found.value

    def sizes(self, column: Column) -> list[Size]:
        """Return the sizes of the column, ascending."""
        return sorted(size for known, size in self.cells if known == column and size is not None)


@dataclass(frozen=True)
class ReportSizes:
    """The sizes of the tables.

    Attributes:
        sizes: The sizes, ascending.
        aliases: Size → its alias (`Demi` … `Trenta`), for the sizes that have one.
    """

    sizes: tuple[Size, ...]
    aliases: dict[Size, str]

    def __iter__(self) -> Iterator[Size]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, size: Size | None) -> str:
        """Return `Tall 6:128`, `6:128` for a size without an alias, `no size` for None."""
        if size is None:
            return "no size"
        alias = self.aliases.get(size)
        return f"{alias} {size}" if alias else str(size)

    def __str__(self) -> str:
        return ", ".join(map(str, self.sizes))


def group_columns(columns: Iterable[Column]) -> list[ColumnGroup]:
    """Return the columns by measure, the papers' data sets first and in the papers' order.

    Example:
        >>> [len(group.columns) for group in group_columns([Column("a", "RR@10"), Column("b", "RR@10")])]
        [2]
    """
    by_measure: dict[str, list[Column]] = {}
    for column in columns:
        by_measure.setdefault(column.measure, []).append(column)
    order = {name: position for position, name in enumerate(_ORDER)}

    def rank(column: Column) -> int:
        return order.get(dataset_key(column.dataset), len(order))

    found = [ColumnGroup(measure, tuple(sorted(group, key=rank))) for measure, group in by_measure.items()]
    return sorted(found, key=lambda group: rank(group.columns[0]))


def measure_name(measure: str) -> str:
    """Return the name of a measure as tables print it: correlations with a capital, others unchanged.

    Example:
        >>> measure_name("spearman"), measure_name("nDCG@10")
        ('Spearman', 'nDCG@10')
    """
    return measure.capitalize() if measure in ("spearman", "pearson") else measure


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing or there are no values.

    Example:
        >>> mean_or_none([0.5, 1.0]), mean_or_none([0.5, None]), mean_or_none([])
        (0.75, None, None)
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def dataset_key(name: str) -> str:
    """Return one spelling for all names of a data set.

    Example:
        >>> {dataset_key(name) for name in ("STS-B", "stsb", "sts/stsb-test")}
        {'stsb'}
    """
    letters = re.sub(r"[^a-z0-9]", "", name.lower().rsplit("/", 1)[-1])
    return _DATASETS.get(letters, letters)


def measure_key(name: str) -> str:
    """Return one spelling for all names of a measure.

    Example:
        >>> {measure_key(name) for name in ("RR@10", "MRR@10", "rr@10")}
        {'rr@10'}
    """
    letters = re.sub(r"[^a-z0-9@]", "", name.lower())
    return _MEASURES.get(letters, letters)


def is_grid(sizes: Iterable[Size]) -> bool:
    """Return whether there are more sizes than layers and than dims, so that they cross layers with dims.

    Example:
        >>> is_grid([Size(2, 8), Size(4, 16)]), is_grid([Size(2, 8), Size(2, 16), Size(4, 8)])
        (False, True)
    """
    known = set(sizes)
    return len(known) > max(len({size.layer for size in known}), len({size.dim for size in known}), 0)


def choose_report_sizes(measured: set[Size], listed: set[Size], sizes: str | None = None) -> ReportSizes:
    """Choose the sizes that the tables show.

    Args:
        measured: All sizes in the result files.
        listed: The sizes of the files that hold a list of sizes, not a grid.
        sizes: The sizes to show, such as `2:32,4:64` or `all`. By default the listed ones; without any, the default
            sizes that lie on the grid, or all sizes if there is only one layer or one dim.

    Returns:
        The sizes, with aliases if the six default sizes of the model are among them.

    Raises:
        UserError: The sizes cannot be read, or nothing was measured at them.
    """
    default = sorted(listed or (_default_sizes(measured) & measured if is_grid(measured) else measured))
    aliases = _size_aliases(set(default) or measured)
    if sizes is None:
        return ReportSizes(tuple(default), aliases)
    chosen = tuple(Sizes.parse(sizes, Sizes(default) if default else None))
    if not measured & set(chosen):
        known = ", ".join(map(str, sorted(measured))) or "no size"
        raise UserError(f"nothing was measured at {sizes}", f"the files hold {known}")
    return ReportSizes(chosen, aliases or _size_aliases(measured))


def _default_sizes(measured: set[Size]) -> set[Size]:
    if not measured:
        return set()
    return set(Sizes.default(max(size.layer for size in measured), max(size.dim for size in measured)))


def _size_aliases(sizes: set[Size]) -> dict[Size, str]:
    """Return the aliases of the six default sizes, or nothing if one of them is not in `sizes`."""
    default = sorted(_default_sizes(sizes))
    if len(default) != len(SIZE_ALIASES) or not set(default) <= sizes:
        return {}
    return {size: alias.capitalize() for size, alias in zip(default, SIZE_ALIASES)}
