"""Training losses, one file per method. They depend on tensors and sizes only.

`LOSSES` maps each value of `--objective` to a `Method` (see `losses.base`). Reading its names does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.registry import Registry

if TYPE_CHECKING:
    from starbucks_retrieval.losses.base import Method

__all__ = ["LOSSES"]
__dir__ = public_names(__name__)

LOSSES: Registry[Method] = Registry(
    "losses",
    "objective",
    {
        "srl": (
            "starbucks_retrieval.losses.srl:METHOD",
            "every size of the model, aligned with the full size "
            "(variants starbucks, starbucks-released, starbucks-sampled, starbucks-sts-released)",
        ),
        "mrl": ("starbucks_retrieval.losses.mrl:METHOD", "several dims of the last layer"),
        "2dmse": (
            "starbucks_retrieval.losses.two_dmse:METHOD",
            "the full size and one sampled size a step (variants v1-paper, st-3.2, angle-0223, russian-doll)",
        ),
        "2dmse-v2": (
            "starbucks_retrieval.losses.two_dmse_v2:METHOD",
            "every layer at small dims (variants eq12, angle, retrieval, retrieval-score)",
        ),
        "separate": (
            "starbucks_retrieval.losses.separate:SEPARATE",
            "one size (variants separate, separate-sts-released)",
        ),
        "full": ("starbucks_retrieval.losses.separate:FULL", "the full size"),
        "distil": ("starbucks_retrieval.losses.distil:METHOD", "every size, on texts without labels"),
    },
)
