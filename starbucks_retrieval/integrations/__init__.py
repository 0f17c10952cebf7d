"""A model at one size in the form that other projects expect: embedding consumers."""

from typing import TYPE_CHECKING, Any

from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.registry import Registry

if TYPE_CHECKING:
    from starbucks_retrieval.integrations.base import SizedModel
    from starbucks_retrieval.integrations.beir import BeirModel
    from starbucks_retrieval.integrations.mteb import MtebModel

#: Embedding consumers by name. Each entry is a class or function that takes a model and a size.
CONSUMERS: Registry[Any] = Registry(
    "consumers",
    "embedding consumer",
    {
        "beir": ("starbucks_retrieval.integrations.beir:BeirModel", "beir's DenseRetrievalExactSearch"),
        "mteb": ("starbucks_retrieval.integrations.mteb:MtebModel", "mteb.evaluate of mteb 2"),
    },
)

__all__ = ["CONSUMERS", "BeirModel", "MtebModel", "SizedModel"]
__getattr__, __dir__ = lazy_exports(__name__, {"BeirModel": ".beir", "MtebModel": ".mteb", "SizedModel": ".base"})
