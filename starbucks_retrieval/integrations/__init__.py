"""A model at one size in the form that other projects expect: embedding consumers."""

from typing import Any

from starbucks_retrieval.registry import Registry

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


def __getattr__(name: str) -> Any:
    # The models pull in torch; the registry must stay cheap to import.
    if name == "SizedModel":
        from starbucks_retrieval.integrations.base import SizedModel

        return SizedModel
    if name in ("BeirModel", "MtebModel"):
        return CONSUMERS[name.removesuffix("Model").lower()]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
