"""Texts per second at every size, measured side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.sizes import Sizes


def measure_speed(model: Path, sizes: Sizes, texts: Sequence[str], rounds: int, max_length: int) -> dict[str, Any]:
    """Parameters, texts/s and tokens/s by size: the median of rounds in which the sizes take turns.

    Only the layers up to a size's own run, and the time counts the tokenizer. The speed of a model does not depend on
    its training.
    """
    from starbucks_retrieval.models import NestedEncoder, precision
    from starbucks_retrieval.train.card import parameters

    encoder = NestedEncoder.from_pretrained(model)
    dtype = precision.choose("auto", encoder.device)
    tokens = sum(map(len, encoder.tokenize(texts, max_length)))
    for size in sizes:  # first calls are slow
        encoder.embed(encoder.tokenize(texts[:8], max_length), Sizes([size]), dtype=dtype)
    seconds: dict[str, list[float]] = {str(size): [] for size in sizes}
    turns = [size for _ in range(rounds) for size in sizes]
    for size in progress(turns, len(turns), "turns", "texts/s at each size"):
        began = now()
        encoder.embed(encoder.tokenize(texts, max_length), Sizes([size]), max_tokens=4096, dtype=dtype)
        seconds[str(size)].append(seconds_since(began))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "precision": precision.name_of(dtype),
        "device": encoder.device.type,
        "tokens_per_text": tokens / len(texts),
        "parameters": {str(size): parameters(encoder, size) for size in sizes},
        "texts_per_second": {name: len(texts) / median for name, median in medians.items()},
        "tokens_per_second": {name: tokens / median for name, median in medians.items()},
    }
