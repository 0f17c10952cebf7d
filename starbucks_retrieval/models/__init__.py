"""The encoder that gives an embedding at any size, and its back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.models.config import EncoderConfig
    from starbucks_retrieval.models.encoder import NestedEncoder

__all__ = ["EncoderConfig", "NestedEncoder"]
__getattr__, __dir__ = lazy_exports(__name__, {"EncoderConfig": ".config", "NestedEncoder": ".encoder"})
