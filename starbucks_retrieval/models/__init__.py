"""The encoder that gives an embedding at any size, and its back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starbucks_retrieval.models.config import EncoderConfig
    from starbucks_retrieval.models.encoder import NestedEncoder

__all__ = ["EncoderConfig", "NestedEncoder"]


def __getattr__(name: str) -> Any:
    # On first use: the encoder imports torch, and `--help` of a command must not wait for that.
    if name == "EncoderConfig":
        from starbucks_retrieval.models.config import EncoderConfig

        return EncoderConfig
    if name == "NestedEncoder":
        from starbucks_retrieval.models.encoder import NestedEncoder

        return NestedEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
