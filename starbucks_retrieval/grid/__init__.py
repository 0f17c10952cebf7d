"""Measure every (layer, dim) of a model from one encoding pass, and compare two such grids."""

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.grid.all_dims import search_all_dims
    from starbucks_retrieval.grid.api import GridMeasurement, grid
    from starbucks_retrieval.grid.arguments import GridArguments
    from starbucks_retrieval.grid.tables import deltas

__all__ = ["GridArguments", "GridMeasurement", "deltas", "grid", "search_all_dims"]
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "GridArguments": ".arguments",
        "GridMeasurement": ".api",
        "deltas": ".tables",
        "grid": ".api",
        "search_all_dims": ".all_dims",
    },
)
