"""The encoder that yields an embedding at any size."""

from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.encoder import NestedEncoder

__all__ = ["EncoderConfig", "NestedEncoder"]
