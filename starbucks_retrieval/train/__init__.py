"""Training one encoder for every size."""

from typing import Any

__all__ = ["TrainArguments", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from starbucks_retrieval.train.api import train

        return train
    if name == "TrainArguments":
        from starbucks_retrieval.train.arguments import TrainArguments

        return TrainArguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
