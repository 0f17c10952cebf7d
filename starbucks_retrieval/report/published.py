"""Scores that the Starbucks paper prints. Tables label them; no average, test or best score includes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.report.columns import AVERAGE, Column, ColumnGroup, ReportSizes, dataset_key, measure_key
from starbucks_retrieval.report.tables import TableCell, TableRow
from starbucks_retrieval.sizes import Size

# A data set, or the data sets of an average, and a measure; each in its one spelling.
Key = tuple[str | frozenset[str], str]

_METRICS = {"msmarco": "rr@10", "dl19": "ndcg@10", "dl20": "ndcg@10"}
_ABLATIONS = (
    ("table2", "without_KL", "SMAE-SRL without KL"),
    ("table3", "- MAE", "SMAE-SRL, SMAE without MAE"),
    ("table3", "- Starbucks", "SMAE-SRL, SMAE without Starbucks"),
)
_TASKS: dict[str, Key] = {
    "STS (STS-B Spearman)": ("stsb", "spearman"),
    "Retrieval (MS MARCO dev MRR@10)": ("msmarco", "rr@10"),
}


@dataclass(frozen=True)
class PublishedMethod:
    """One row of the paper.

    Attributes:
        label: Its name.
        sized: Its scores by data set (or the data sets of an average), measure and size.
        averages: Its averages over the six sizes.
    """

    label: str
    sized: dict[tuple[Key, Size], float] = field(default_factory=dict)
    averages: dict[Key, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """The scores of the paper.

    Attributes:
        methods: Rows of Tables 1 and 4, and of README's Table A2.
        ablations: Rows of Tables 2 and 3.
        sizes: The six sizes, ascending.
    """

    methods: tuple[PublishedMethod, ...] = ()
    ablations: tuple[PublishedMethod, ...] = ()
    sizes: tuple[Size, ...] = ()

    def averages(self, groups: Sequence[ColumnGroup]) -> list[TableRow]:
        """Return the rows for the table of averages over sizes."""
        return _rows(self.methods, lambda method: [method.averages.get(key) for key in _keys(groups)])

    def at_size(self, groups: Sequence[ColumnGroup], size: Size | None) -> list[TableRow]:
        """Return the rows for one size.

        Args:
            groups: The columns of each measure.
            size: The size; there are no rows for None.
        """
        if size is None:
            return []
        return _rows(self.methods, lambda method: [method.sized.get((key, size)) for key in _keys(groups)])

    def over_sizes(self, group: ColumnGroup, column: Column, model_sizes: ReportSizes) -> list[TableRow]:
        """Return the rows of a column over the sizes; the last score is their average, if the paper has these sizes.

        Args:
            group: The columns of the measure.
            column: A data set, or the average over those of the group.
            model_sizes: The sizes, in the order of the cells.
        """
        key = _average_key(group) if column.dataset == AVERAGE else _key(column)

        def figures(method: PublishedMethod) -> list[float | None]:
            average = method.averages.get(key) if tuple(model_sizes) == self.sizes else None
            return [*(method.sized.get((key, size)) for size in model_sizes), average]

        return _rows((*self.methods, *self.ablations), figures)

    def notes(self, rows: Sequence[TableRow], columns: Sequence[Column]) -> list[str]:
        """Return notes about the published rows of a table with these columns.

        Returns:
            The notes; none if no row is published.
        """
        if not any(row.published for row in rows):
            return []
        sizes = ", ".join(map(str, self.sizes))
        notes = [
            f"Rows marked published are printed in the Starbucks paper (arXiv 2410.13230), at its sizes {sizes}. "
            "They were not measured here and take part in no average, test or best figure."
        ]
        if any(dataset_key(column.dataset) == "quora" for column in columns):
            notes.append(
                "Some published Quora figures cannot be right (0.0178 at 10:512, between 0.7808 and 0.8477): no targets."
            )
        return notes


NO_PUBLISHED = Published()


def read_published(path: str | Path) -> Published:
    """Read the paper's tables from a reference_results.json.

    Args:
        path: A JSON file with the key `starbucks`; `~` is the home folder.

    Returns:
        The methods, ablations and sizes of the paper.

    Raises:
        UserError: There is no such file, or it has another content.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"no such file: {path}", "name a reference_results.json with --published")
    try:
        return _parse(read_json(path)["starbucks"])
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise UserError(
            f"{path} does not hold published figures: {type(error).__name__}: {error}",
            "--published takes a reference_results.json, with the key starbucks",
        ) from None


def _parse(paper: Mapping[str, Any]) -> Published:
    sizes = {alias: Size.parse(text.replace(",", ":")) for alias, text in paper["sizes"].items()}
    beir = paper.get("readme_tableA2", {})
    methods = []
    for label, by_alias in paper["table4"].items():
        sized = {}
        for alias, size in sizes.items():
            figures = _printed(by_alias[alias]) | _printed(beir.get(label, {}).get(alias, {}), "ndcg@10")
            sized.update({(key, size): value for key, value in figures.items()})
        methods.append(PublishedMethod(label, sized, _printed(paper["table1"].get(label, {}))))
    ablations = []
    for table, row, label in _ABLATIONS:
        tasks = {key: paper.get(table, {}).get(task, {}).get(row, {}) for task, key in _TASKS.items()}
        sized = {(key, sizes[c]): float(v) for key, figures in tasks.items() for c, v in figures.items() if c in sizes}
        averages = {key: float(figures[AVERAGE]) for key, figures in tasks.items() if AVERAGE in figures}
        ablations.append(PublishedMethod(label, sized, averages))
    return Published(tuple(methods), tuple(ablations), tuple(sizes.values()))


def _printed(figures: Mapping[str, float | None], metric: str | None = None) -> dict[Key, float]:
    """Return a printed row by key. Its `Average` is over the data sets of `metric`, by default of Spearman."""
    found: dict[Key, float] = {}
    for name, value in figures.items():
        key = dataset_key(name)
        if value is not None and name != AVERAGE:
            found[key, metric or _METRICS.get(key, "spearman")] = float(value)
    over = metric or "spearman"
    sets = frozenset(key for key, measure in found if measure == over and isinstance(key, str))
    if sets and figures.get(AVERAGE) is not None:
        found[sets, over] = float(figures[AVERAGE] or 0.0)
    return found


def _key(column: Column) -> Key:
    return dataset_key(column.dataset), measure_key(column.measure)


def _average_key(group: ColumnGroup) -> Key:
    return frozenset(dataset_key(column.dataset) for column in group.columns), measure_key(group.measure)


def _keys(groups: Sequence[ColumnGroup]) -> list[Key]:
    """Return the keys of the columns of a table, in order."""
    return [
        key
        for group in groups
        for key in (*map(_key, group.columns), *([_average_key(group)] if group.averaged else []))
    ]


def _rows(
    methods: Sequence[PublishedMethod], figures: Callable[[PublishedMethod], Sequence[float | None]]
) -> list[TableRow]:
    """Return a row for every method that has a score."""
    found = ((method, figures(method)) for method in methods)
    return [
        TableRow(method.label, tuple(map(TableCell, values)), published=True)
        for method, values in found
        if any(value is not None for value in values)
    ]
