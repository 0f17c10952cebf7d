"""Train one text encoder and use its embedding at any size (layer, dim)."""

from typing import TYPE_CHECKING, Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.version import __version__

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder

__all__ = ["NestedEncoder", "Size", "Sizes", "UserError", "__version__"]


def __getattr__(name: str) -> Any:
    # NestedEncoder imports torch and transformers, which `--help` does not need.
    if name == "NestedEncoder":
        from starbucks_retrieval.models import NestedEncoder

        return NestedEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
