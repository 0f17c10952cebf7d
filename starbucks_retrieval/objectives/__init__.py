"""Losses over pooled taps. They see tensors and sizes only."""

from starbucks_retrieval.objectives.contrastive import info_nce, positive_columns
from starbucks_retrieval.objectives.srl import PRESETS, Loss, SRLOptions, srl

__all__ = ["PRESETS", "Loss", "SRLOptions", "info_nce", "positive_columns", "srl"]
