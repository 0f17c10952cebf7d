"""Semantic textual similarity: correlate cosines with human scores at every size, from one encoding pass."""

from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.sts.api import StsArguments, nested_cosines, sts

__all__ = ["StsArguments", "nested_cosines", "sts"]
__dir__ = public_names(__name__)
