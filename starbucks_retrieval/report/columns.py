"""The columns of tables: data sets by measures, grouped by measure, since no average may cross measures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
}
_MEASURES = {"spearmancosine": "spearman", "mrr@10": "rr@10"}


class Column(NamedTuple):
    """What one column of a table measures: a data set by a measure."""

    dataset: str
    measure: str


class ColumnGroup(NamedTuple):
    """The columns of one measure."""

    measure: str
    columns: tuple[Column, ...]

    @property
    def averaged(self) -> bool:
        """Whether the measure has an Average column."""
        return len(self.columns) > 1


def grouped(columns: Iterable[Column]) -> list[ColumnGroup]:
    """Columns by measure, as they appear, but the papers' data sets and their measures first, in the papers' order."""
    by_measure: dict[str, list[Column]] = {}
    for column in columns:
        by_measure.setdefault(column.measure, []).append(column)
    place = {name: i for i, name in enumerate(_ORDER)}

    def rank(column: Column) -> int:
        return place.get(dataset_key(column.dataset), len(place))

    found = [ColumnGroup(measure, tuple(sorted(some, key=rank))) for measure, some in by_measure.items()]
    return sorted(found, key=lambda group: rank(group.columns[0]))


def measure_name(measure: str) -> str:
    """How tables print a measure: ir-measures' names as they are, correlations with a capital."""
    return measure.capitalize() if measure in ("spearman", "pearson") else measure


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None if any value is missing or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def dataset_key(name: str) -> str:
    """One spelling of a data set's name: `STS-B`, `stsb` and `sts/stsb-test` are the same."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower().rsplit("/", 1)[-1])
    return _DATASETS.get(plain, plain)


def measure_key(name: str) -> str:
    """One spelling of a measure's name: `MRR@10` and `RR@10` are the same."""
    plain = re.sub(r"[^a-z0-9@]", "", name.lower())
    return _MEASURES.get(plain, plain)
