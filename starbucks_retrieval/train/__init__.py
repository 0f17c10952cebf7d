"""Training one encoder for every size."""

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.train.api import train
    from starbucks_retrieval.train.arguments import TrainArguments

__all__ = ["TrainArguments", "train"]
__getattr__, __dir__ = lazy_exports(__name__, {"TrainArguments": ".arguments", "train": ".api"})
