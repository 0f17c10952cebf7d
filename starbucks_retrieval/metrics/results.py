"""Result files: figures at sizes as JSON, written by evaluate, sts, transfer and grid, and read by report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.parsing import Count, parse_json, read_text
from starbucks_retrieval.provenance import refuse_newer
from starbucks_retrieval.sizes import Size

FORMAT, VERSION = "starbucks-results", 1
MAX_RESULTS = 1 << 30  # bytes of a result file, which can hold the figures of every query

# CQADupStack, one set of BEIR, has twelve forums with their own queries and passages; its figure is their mean.
_FORUM = re.compile(r"((?:.*/)?cqadupstack)[-_./:]([^/]+)")

Layout = Literal["grid", "list"]


@dataclass(frozen=True)
class Cell:
    """One figure of a result file.

    Attributes:
        dataset: Name of the data set.
        measure: Name of the measure.
        size: Size of the embeddings, None if unknown (a run of another program).
        value: The figure.
        count: Number of queries, pairs or texts behind it.
        passage_size: Size of the passages, only if it differs from that of the queries.
        values: query id → value. Optional; tests of significance between two files need it.
        label: Name of the method in tables, only if the file holds several methods.
    """

    dataset: str
    measure: str
    size: Size | None
    value: float
    count: int
    passage_size: Size | None = None
    values: Mapping[str, float] | None = None
    label: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the cell as it is written: sizes as `layer:dim`, no absent fields, null for a value that is not finite."""
        content: dict[str, Any] = {
            "dataset": self.dataset,
            "measure": self.measure,
            "value": self.value if math.isfinite(self.value) else None,
            "count": self.count,
        }
        optional = {
            "size": self.size and str(self.size),
            "passage_size": self.passage_size and str(self.passage_size),
            "values": self.values and dict(self.values),
            "label": self.label,
        }
        return content | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True)
class Results:
    """The content of a result file.

    Attributes:
        kind: The stage that measured: `evaluate`, `sts`, `transfer` or `grid`.
        label: Name of the model or method in tables.
        cells: The figures.
        more: Further keys of the file, such as costs of sizes and provenance; not the names of these attributes.
        layout: `grid` if the sizes are all combinations of layers and dims, `list` otherwise, None if unknown.

    Example:
        >>> results = Results("evaluate", "ours", [Cell("scifact", "nDCG@10", Size(6, 128), 0.61, 300)])
        >>> results.to_json()["cells"]
        [{'dataset': 'scifact', 'measure': 'nDCG@10', 'value': 0.61, 'count': 300, 'size': '6:128'}]
    """

    kind: str
    label: str
    cells: list[Cell]
    more: dict[str, Any] = field(default_factory=dict)
    layout: Layout | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "kind": self.kind, "label": self.label}
        if self.layout:
            head["layout"] = self.layout
        return {**self.more, **head, "cells": [cell.to_json() for cell in self.cells]}

    def without_values(self) -> Results:
        """Return the results without the figures of single queries, pairs and texts."""
        return replace(self, cells=[replace(cell, values=None) for cell in self.cells])

    def by_label(self) -> list[Results]:
        """Return one Results per method, in the order of the cells; cells without a label belong to `self.label`."""
        parts: dict[str, list[Cell]] = {}
        for cell in self.cells:
            parts.setdefault(cell.label or self.label, []).append(replace(cell, label=None))
        return [replace(self, label=label, cells=cells) for label, cells in parts.items()]


def model_of(more: Mapping[str, Any], dataset: str) -> str:
    """Return the fingerprint of the model whose scores on a data set a file holds, "" if the file does not tell.

    Args:
        more: The keys of the file besides its cells: `fingerprint` of one model, or `fingerprints` by data set.
        dataset: The data set.
    """
    by_set = more.get("fingerprints")
    found = by_set.get(dataset) if isinstance(by_set, Mapping) else more.get("fingerprint")
    return found if isinstance(found, str) else ""


def set_of(dataset: str) -> str:
    """Return the set that a data set counts for in an average: its forum's set for CQADupStack, else itself.

    Example:
        >>> set_of("beir/cqadupstack/gis"), set_of("cqadupstack-gis"), set_of("beir/fiqa")
        ('beir/cqadupstack', 'cqadupstack', 'beir/fiqa')
    """
    forum = _FORUM.fullmatch(dataset)
    return forum[1] if forum else dataset


def sets_of_parts(datasets: Iterable[str]) -> dict[str, list[str]]:
    """Group data sets by `set_of`, in order of appearance; a single forum is a set under its own name.

    Args:
        datasets: Names of data sets; a repeated name counts once.

    Returns:
        Set → its data sets.

    Example:
        >>> sets_of_parts(["cqadupstack-gis", "quora", "cqadupstack-tex"])
        {'cqadupstack': ['cqadupstack-gis', 'cqadupstack-tex'], 'quora': ['quora']}
    """
    parts: dict[str, list[str]] = {}
    for dataset in dict.fromkeys(datasets):
        parts.setdefault(set_of(dataset), []).append(dataset)
    return {found[0] if len(found) == 1 else name: found for name, found in parts.items()}


def macro_mean(figures: Mapping[str, float]) -> float:
    """Return the mean over sets of {data set: figure}; the figure of CQADupStack is the mean over its forums.

    Example:
        >>> macro_mean({"cqadupstack-gis": 0.25, "cqadupstack-tex": 0.75, "quora": 1.0})
        0.75
    """
    means = [sum(figures[one] for one in parts) / len(parts) for parts in sets_of_parts(figures).values()]
    return sum(means) / len(means)


def dataset_name(path: Path) -> str:
    """Return the name of a data set in a folder: the folder's name, with `cqadupstack/` before it for a forum.

    Example:
        >>> dataset_name(Path("beir/scifact")), dataset_name(Path("beir/cqadupstack/gis"))
        ('scifact', 'cqadupstack/gis')
    """
    path = path.absolute()
    return (
        f"{path.parent.name}/{path.name}"
        if set_of(f"{path.parent.name}/{path.name}") == path.parent.name
        else path.name
    )


def write_results(path: str | Path, results: Results) -> None:
    """Write a result file; it appears complete or not at all.

    Args:
        path: The JSON file. Missing folders are created.
        results: The figures, which `read_results` reads back.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(path, results.to_json())


def read_results(path: str | Path) -> Results:
    """Read a result file.

    Args:
        path: A file that `write_results` wrote; `~` is expanded.

    Returns:
        The figures. A file without a layout, as before 0.2, gets the one that its stage and flags imply, if any.

    Raises:
        UserError: The file is missing, damaged, written by a newer version, or of another kind.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"no file {path}", "name a file that evaluate, sts, transfer or grid wrote with --output")
    text = read_text(path, MAX_RESULTS)
    content = parse_json(text, Any, path, "write it again", "cannot be read as JSON")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not a result file", "name a file that evaluate, sts, transfer or grid wrote")
    refuse_newer(content.get("version"), VERSION, path, "measure again with this one")
    written = parse_json(text, _Written, path, "measure again", "is damaged")
    fields = {"format", "version", "kind", "label", "layout", "cells"}
    more = {name: content[name] for name in content.keys() - fields}
    return Results(written.kind, written.label, list(map(_cell, written.cells)), more, _layout_of(content))


@dataclass(frozen=True)
class _WrittenCell:
    dataset: str
    measure: str
    value: float | None
    count: Count
    size: Size | None = None
    passage_size: Size | None = None
    values: dict[str, float] | None = None
    label: str | None = None


@dataclass(frozen=True)
class _Written:
    kind: str
    label: str
    cells: list[_WrittenCell]


def _cell(written: _WrittenCell) -> Cell:
    return Cell(**(vars(written) | {"value": math.nan if written.value is None else written.value}))


def _layout_of(content: Mapping[str, Any]) -> Layout | None:
    """Return the layout in the file; files before 0.2 do not have it, so derive it from their stage and flags."""
    layout = content.get("layout")
    if layout in get_args(Layout):
        return layout
    if content["kind"] == "grid":
        return "grid"
    provenance = content.get("provenance")
    flags = provenance.get("configuration") if isinstance(provenance, Mapping) else None
    if content["kind"] in ("sts", "transfer") and isinstance(flags, Mapping):
        return "grid" if any(flags.get(name) for name in ("grid", "layers", "dims")) else "list"
    return None
