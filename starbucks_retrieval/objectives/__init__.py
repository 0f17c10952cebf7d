"""Losses over pooled taps, one file per method. They see tensors and sizes only."""

from __future__ import annotations

from typing import Any, NamedTuple

from starbucks_retrieval.objectives import mrl, single, srl, two_dmse, two_dmse_v2
from starbucks_retrieval.objectives.base import Objective, Options
from starbucks_retrieval.objectives.batch import Batch, Loss
from starbucks_retrieval.objectives.contrastive import info_nce, positive_columns
from starbucks_retrieval.objectives.mrl import MRL, MRLOptions
from starbucks_retrieval.objectives.single import Single, SingleOptions
from starbucks_retrieval.objectives.srl import SRL, SRLOptions
from starbucks_retrieval.objectives.two_dmse import TwoDMSE, TwoDMSEOptions
from starbucks_retrieval.objectives.two_dmse_v2 import TwoDMSEv2, TwoDMSEv2Options

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
    """An objective and its published variants; the first one is the paper's."""

    objective: type[Objective]
    variants: dict[str, Any]


METHODS: dict[str, Method] = {
    "srl": Method(SRL, srl.VARIANTS),
    "mrl": Method(MRL, mrl.VARIANTS),
    "2dmse": Method(TwoDMSE, two_dmse.VARIANTS),
    "2dmse-v2": Method(TwoDMSEv2, two_dmse_v2.VARIANTS),
    "separate": Method(Single, single.SEPARATE),
    "full": Method(Single, single.FULL),
}
