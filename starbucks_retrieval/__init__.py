"""Train one text encoder and use its embedding at any size (layer, dim)."""

from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.version import __version__

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder

__all__ = ["NestedEncoder", "Size", "Sizes", "UserError", "__version__"]
__getattr__, __dir__ = lazy_exports(__name__, {"NestedEncoder": ".models"})
