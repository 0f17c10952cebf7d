"""Measure every (layer, dim) of a model from one encoding pass, and compare two such grids."""

from typing import Any

__all__ = ["GridArguments", "GridMeasurement", "deltas", "grid", "search_all_dims"]


def __getattr__(name: str) -> Any:
    if name in ("grid", "GridMeasurement"):
        from starbucks_retrieval.grid import api

        return getattr(api, name)
    if name == "GridArguments":
        from starbucks_retrieval.grid.arguments import GridArguments

        return GridArguments
    if name == "deltas":
        from starbucks_retrieval.grid.tables import deltas

        return deltas
    if name == "search_all_dims":
        from starbucks_retrieval.grid.all_dims import search_all_dims

        return search_all_dims
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
