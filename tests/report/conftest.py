"""Result files that the tests make themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.sizes import Size


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """write("a.json", cells, label=…, kind=…, layout=…, **more): a result file, its path as text."""

    def write(name: str, cells: list[Cell], label="ours", kind: str = "evaluate", layout=None, **more: object) -> str:
        path = tmp_path / name
        write_results(path, Results(kind, label, cells, more, layout))
        return str(path)

    return write


@pytest.fixture
def two_methods(write) -> list[str]:
    """`new` and `old` at 2:8 and 4:16 on one STS set and two retrieval sets; `old` lacks docs at 4:16.

    On web, `new` - `old` is .1, .2, .3, .4 at 2:8: t = sqrt(15), p = 0.0305; and .1, -.1, .1, -.1 at 4:16: p = 1.
    """
    old = [0.5, 0.5, 0.5, 0.5]
    new = {Size(2, 8): [0.6, 0.7, 0.8, 0.9], Size(4, 16): [0.6, 0.4, 0.6, 0.4]}
    files = []
    for label in ("new", "old"):
        cells = []
        for size in new:
            figures = new[size] if label == "new" else old
            values = {f"q{i}": value for i, value in enumerate(figures)}
            cells.append(Cell("web", "nDCG@10", size, round(sum(figures) / 4, 6), 4, values=values))
            if label == "new" or size.layer == 2:
                cells.append(Cell("docs", "nDCG@10", size, 0.25, 10))
            cells.append(Cell("STS-B", "spearman", size, 0.8 if label == "new" else 0.7, 1000))
        files.append(write(f"{label}.json", cells, label))
    return files


def grid(base: float, layers=(1, 2, 3), dims=(8, 16, 32)) -> list[Cell]:
    """A full grid of figures that grow with layer and dim."""
    return [
        Cell("site", "nDCG@10", Size(layer, dim), base + 0.1 * layer + dim / 1000, 4)
        for layer in layers
        for dim in dims
    ]


def costs(layers=(1, 2, 3), dims=(8, 16, 32)) -> dict[str, dict[str, float]]:
    """Costs as grid writes them: a layer takes 2 ms a query and 1 ms a passage, a dim two bytes."""
    return {
        f"{layer}:{dim}": {"query_ms": 2.0 * layer, "passage_ms": 1.0 * layer, "bytes_per_passage": 2 * dim}
        for layer in layers
        for dim in dims
    }
