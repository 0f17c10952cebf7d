"""Mine hard negatives: passages that BM25, a model or a run ranks high for a query but that are not its positives."""

from typing import Any

__all__ = ["MineArguments", "mine"]


def __getattr__(name: str) -> Any:
    if name == "mine":
        from starbucks_retrieval.mine.api import mine

        return mine
    if name == "MineArguments":
        from starbucks_retrieval.mine.arguments import MineArguments

        return MineArguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
