"""Result files: one JSON for whatever was measured at sizes, written by the stages that score and read by `report`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.provenance import refuse_newer
from starbucks_retrieval.sizes import Size

FORMAT, VERSION = "starbucks-results", 1

# BEIR's one set that is twelve: queries and passages of each forum by themselves, and the mean over the forums.
_FORUM = re.compile(r"((?:.*/)?cqadupstack)[-_./:]([^/]+)")

Layout = Literal["grid", "list"]


@dataclass(frozen=True)
class Cell:
    """One figure: `measure` on the data set `dataset` at `size`, over `count` queries, pairs or texts.

    `size` is None where it is unknown (a run of another program). `passage_size` is set only where passages were
    embedded at another size than queries. `values`, the figure of each query by its id, may be left out; a test of
    significance between two files needs it for measures that are means over queries. `label` is set only where one
    file holds several methods (runs laid side by side): it is how tables call this cell's.
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
        """As it is written: sizes as `layer:dim`, absent fields left out, a value that is not finite as null."""
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

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Cell:
        """The reverse of `to_json`. Raises KeyError, TypeError, ValueError or UserError for anything else."""
        value, sizes = content["value"], [content.get(name) for name in ("size", "passage_size")]
        size, passage_size = (Size.parse(text) if text is not None else None for text in sizes)
        values, label = content.get("values"), content.get("label")
        return cls(
            str(content["dataset"]),
            str(content["measure"]),
            size,
            math.nan if value is None else float(value),
            int(content["count"]),
            passage_size,
            None if values is None else {str(key): float(one) for key, one in values.items()},
            None if label is None else str(label),
        )


@dataclass(frozen=True)
class Results:
    """What one stage measured of one model: `kind` names the stage (evaluate, sts, transfer, grid).

    `label` is how tables call the model or method. `more` holds further keys of the file, costs of sizes and
    provenance among them; they may not repeat the names of the fields. `layout` says what the sizes are: a grid of
    layers and dims, also where it has one layer only, or a list of sizes; None where the stage does not know.
    """

    kind: str
    label: str
    cells: list[Cell]
    more: dict[str, Any] = field(default_factory=dict)
    layout: Layout | None = None

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "kind": self.kind, "label": self.label}
        if self.layout:
            head["layout"] = self.layout
        return {**self.more, **head, "cells": [cell.to_json() for cell in self.cells]}

    def by_label(self) -> list[Results]:
        """One Results a method, in the order of the cells; cells without a label of their own are this one's."""
        parts: dict[str, list[Cell]] = {}
        for cell in self.cells:
            parts.setdefault(cell.label or self.label, []).append(replace(cell, label=None))
        return [replace(self, label=label, cells=cells) for label, cells in parts.items()]


def set_of(dataset: str) -> str:
    """The set that a data set counts for in an average: CQADupStack's forums are one, any other is its own.

    Forums are known by their names: `beir/cqadupstack/gis`, `cqadupstack-gis`.
    """
    forum = _FORUM.fullmatch(dataset)
    return forum[1] if forum else dataset


def sets_of_parts(datasets: Iterable[str]) -> dict[str, list[str]]:
    """The sets that data sets count for, each with its parts, in order of appearance; a part that is alone is a set."""
    parts: dict[str, list[str]] = {}
    for dataset in dict.fromkeys(datasets):
        parts.setdefault(set_of(dataset), []).append(dataset)
    return {some[0] if len(some) == 1 else name: some for name, some in parts.items()}


def macro_mean(figures: Mapping[str, float]) -> float:
    """The mean over sets of {data set: figure}, each part of a set weighing a share of its set."""
    means = [sum(figures[one] for one in parts) / len(parts) for parts in sets_of_parts(figures).values()]
    return sum(means) / len(means)


def dataset_name(path: Path) -> str:
    """How tables call a data set in a folder: the folder's name, and for a forum that of its set before it."""
    path = path.absolute()
    return (
        f"{path.parent.name}/{path.name}"
        if set_of(f"{path.parent.name}/{path.name}") == path.parent.name
        else path.name
    )


def write_results(path: str | Path, results: Results) -> None:
    """Write a result file, whole or not at all; missing folders are made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(path, results.to_json())


def read_results(path: str | Path) -> Results:
    """Read a result file. Raises UserError for a file that is missing, damaged, newer than this program or not one."""
    path = Path(path).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"no file {path}", "name a file that evaluate, sts, transfer or grid wrote with --output"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}", "write it again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not a result file", "name a file that evaluate, sts, transfer or grid wrote")
    refuse_newer(content.get("version"), VERSION, path, "measure again with this one")
    try:
        cells = [Cell.from_json(cell) for cell in content["cells"]]
        fields = {"format", "version", "kind", "label", "layout", "cells"}
        more = {name: content[name] for name in content.keys() - fields}
        return Results(str(content["kind"]), str(content["label"]), cells, more, _layout_of(content))
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(f"{path} is damaged: {type(error).__name__}: {error}", "measure again") from None


def _layout_of(content: Mapping[str, Any]) -> Layout | None:
    """What the file says its sizes are; of files before 0.2, which do not say it, what its stage and its flags tell."""
    said = content.get("layout")
    if said in get_args(Layout):
        return said
    if content["kind"] == "grid":
        return "grid"
    provenance = content.get("provenance")
    flags = provenance.get("configuration") if isinstance(provenance, Mapping) else None
    if content["kind"] in ("sts", "transfer") and isinstance(flags, Mapping):
        return "grid" if any(flags.get(name) for name in ("grid", "layers", "dims")) else "list"
    return None
