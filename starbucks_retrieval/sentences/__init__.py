"""What stages that measure sentences share: the flags of a model at many sizes, one encoding pass, tables by size."""

from starbucks_retrieval.sentences.arguments import SentenceArguments
from starbucks_retrieval.sentences.tables import size_table

__all__ = ["SentenceArguments", "size_table"]
