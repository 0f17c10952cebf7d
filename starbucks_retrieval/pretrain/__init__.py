"""Pre-train backbones: masked auto-encoding at every size (SMAE), RetroMAE, and their ablations.

`PRETRAIN_OBJECTIVES` maps each value of `--objective` to a `PretrainObjective` (see `pretrain.options`). The flag's
choices and help and the text of the model card come from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.registry import Registry

if TYPE_CHECKING:
    from starbucks_retrieval.pretrain.api import pretrain
    from starbucks_retrieval.pretrain.arguments import PretrainArguments
    from starbucks_retrieval.pretrain.options import PretrainObjective

__all__ = ["PRETRAIN_OBJECTIVES", "PretrainArguments", "pretrain"]

PRETRAIN_OBJECTIVES: Registry[PretrainObjective] = Registry(
    "pretrain_objectives",
    "pre-training objective",
    {
        "smae": (
            "starbucks_retrieval.pretrain.options:SMAE",
            "encoder and decoder losses at every size (variants starbucks, starbucks-released)",
        ),
        "mlm-sizes": ("starbucks_retrieval.pretrain.options:MLM_SIZES", "the encoder loss at every size"),
        "mlm": ("starbucks_retrieval.pretrain.options:MLM", "the encoder loss at the full size"),
        "retromae": ("starbucks_retrieval.pretrain.options:RETROMAE", "enhanced decoding from the full size"),
        "retromae-basic": ("starbucks_retrieval.pretrain.options:RETROMAE_BASIC", "basic decoding from the full size"),
        "smae-enhanced": ("starbucks_retrieval.pretrain.options:SMAE_ENHANCED", "enhanced decoding from every size"),
    },
)

__getattr__, __dir__ = lazy_exports(__name__, {"PretrainArguments": ".arguments", "pretrain": ".api"})
