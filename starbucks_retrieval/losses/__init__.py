"""Losses over pooled taps, one file per method. They see tensors and sizes only."""

from __future__ import annotations

from typing import Any, NamedTuple

from starbucks_retrieval.losses import mrl, separate, srl, two_dmse, two_dmse_v2
from starbucks_retrieval.losses.base import Objective, Options
from starbucks_retrieval.losses.batch import Batch, Loss
from starbucks_retrieval.losses.contrastive import info_nce, positive_columns
from starbucks_retrieval.losses.mrl import MRL, MRLOptions
from starbucks_retrieval.losses.separate import Single, SingleOptions
from starbucks_retrieval.losses.srl import SRL, SRLOptions
from starbucks_retrieval.losses.two_dmse import TwoDMSE, TwoDMSEOptions
from starbucks_retrieval.losses.two_dmse_v2 import TwoDMSEv2, TwoDMSEv2Options

__all__ = [
    "METHODS",
    "MRL",
    "SRL",
    "Batch",
    "Loss",
    "MRLOptions",
    "Method",
    "Objective",
    "Options",
    "SRLOptions",
    "Single",
    "SingleOptions",
    "TwoDMSE",
    "TwoDMSEOptions",
    "TwoDMSEv2",
    "TwoDMSEv2Options",
    "info_nce",
    "positive_columns",
]


class Method(NamedTuple):
    """An objective, its published variants, the first of which is the paper's, and what model cards call it."""

    objective: type[Objective]
    variants: dict[str, Any]
    title: str


METHODS: dict[str, Method] = {
    "srl": Method(SRL, srl.VARIANTS, "Starbucks Representation Learning (arXiv 2410.13230)"),
    "mrl": Method(MRL, mrl.VARIANTS, "Matryoshka Representation Learning (arXiv 2205.13147)"),
    "2dmse": Method(TwoDMSE, two_dmse.VARIANTS, "2D Matryoshka training (arXiv 2402.14776v1)"),
    "2dmse-v2": Method(TwoDMSEv2, two_dmse_v2.VARIANTS, "2D Matryoshka training, second version (arXiv 2411.17299)"),
    "separate": Method(Single, separate.SEPARATE, "a contrastive loss at this size alone"),
    "full": Method(Single, separate.FULL, "a contrastive loss at its full size"),
}
