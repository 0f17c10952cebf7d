"""Train one text encoder and use its embedding at any size (layer, dim)."""

from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.version import __version__

if TYPE_CHECKING:
    from starbucks_retrieval.evaluate.in_memory import evaluate_run
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.search.arrays import search_vectors
    from starbucks_retrieval.search.searcher import Searcher
    from starbucks_retrieval.store.locate import open_store

__all__ = [
    "NestedEncoder",
    "Searcher",
    "Size",
    "Sizes",
    "UserError",
    "__version__",
    "evaluate_run",
    "open_store",
    "search_vectors",
]
# Not `evaluate` and `search`: these names are packages, and an import of one would replace the function.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "NestedEncoder": ".models",
        "Searcher": ".search.searcher",
        "evaluate_run": ".evaluate.in_memory",
        "open_store": ".store.locate",
        "search_vectors": ".search.arrays",
    },
)
