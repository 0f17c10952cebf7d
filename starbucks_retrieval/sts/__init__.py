"""Semantic textual similarity: correlation of cosines with people's scores, at every size from one encoding pass."""

from starbucks_retrieval.sts.api import sts
from starbucks_retrieval.sts.arguments import StsArguments
from starbucks_retrieval.sts.cosines import nested_cosines

__all__ = ["StsArguments", "nested_cosines", "sts"]
