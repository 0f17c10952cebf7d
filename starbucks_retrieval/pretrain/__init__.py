"""Pre-training: masked auto-encoding at every size (SMAE), RetroMAE, and their ablations."""

from typing import Any

__all__ = ["PretrainArguments", "pretrain"]


def __getattr__(name: str) -> Any:
    if name == "pretrain":
        from starbucks_retrieval.pretrain.api import pretrain

        return pretrain
    if name == "PretrainArguments":
        from starbucks_retrieval.pretrain.arguments import PretrainArguments

        return PretrainArguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
