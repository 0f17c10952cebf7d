"""Transfer tasks: classes of sentences, told by logistic regression on frozen embeddings of every size."""

from starbucks_retrieval.transfer.api import transfer
from starbucks_retrieval.transfer.arguments import TransferArguments
from starbucks_retrieval.transfer.classify import cross_validate, train_and_test

__all__ = ["TransferArguments", "cross_validate", "train_and_test", "transfer"]
