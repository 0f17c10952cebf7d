"""The speed of training, measured on a device before a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starbucks_retrieval import clock

if TYPE_CHECKING:
    from starbucks_retrieval.train.plan import TrainPlan

_CPU_TOKENS = 2048  # of the texts that are timed on a CPU; more take as long each


def layer_seconds(plan: TrainPlan, lengths: Sequence[int]) -> float:
    """Measure the seconds that a step takes per layer and token, forward and backward, with random weights.

    Texts are encoded as in training: in the same chunks, with padding or without, with the same dropout, and recomputed where
    the plan says so.

    Args:
        plan: The plan of the run.
        lengths: Tokens of the texts of a step; the first ones are timed.
    """
    import torch

    from starbucks_retrieval.models import EncoderConfig, NestedEncoder
    from starbucks_retrieval.train.build import chunks_of, compute_without_padding
    from starbucks_retrieval.train.module import TrainingModule

    arguments, settings = plan.arguments, plan.settings
    device = settings.device
    backbone = plan.model.random_backbone(arguments.dropout)
    encoder = NestedEncoder(backbone, plan.model.tokenizer, EncoderConfig(pooling=plan.config.pooling)).to(device)
    module = TrainingModule(encoder, plan.objective, chunks_of(arguments)).train()
    if device.type == "cpu" and not settings.torch_compile:
        compute_without_padding(encoder)
    if settings.gradient_checkpointing:
        module.activation_checkpointing_enable()
    budget = _CPU_TOKENS if device.type == "cpu" else module.chunks.budget(device.type, padded=True)
    before = itertools.accumulate(lengths, initial=0)
    rows = [[5] * length for length, tokens in zip(lengths, before) if not tokens or tokens + length <= budget]
    dtype = torch.bfloat16 if settings.bf16 else torch.float16

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=settings.bf16 or settings.fp16):
            pooled = module.pooled_layers(encoder, rows, (encoder.num_layers,), device)
        pooled[encoder.num_layers].sum().backward()
        module.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return clock.fastest(step) / (sum(map(len, rows)) * encoder.num_layers)
