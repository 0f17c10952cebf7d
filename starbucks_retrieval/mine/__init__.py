"""Mine hard negatives: passages that BM25, a model or a run ranks high for a query but that are not its positives."""

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.mine.api import mine
    from starbucks_retrieval.mine.arguments import MineArguments

__all__ = ["MineArguments", "mine"]
__getattr__, __dir__ = lazy_exports(__name__, {"MineArguments": ".arguments", "mine": ".api"})
