"""Transfer tasks: classify sentences by logistic regression on frozen embeddings of every size."""

from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.transfer.api import TransferArguments, cross_validate, train_and_test, transfer

__all__ = ["TransferArguments", "cross_validate", "train_and_test", "transfer"]
__dir__ = public_names(__name__)
