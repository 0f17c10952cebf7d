"""What a size costs: bytes of a stored vector, and milliseconds of the encoder cut at each layer, measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.cli import log
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.worker import texts_of
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.runtime import Rows, Runtime, open_runtime
from starbucks_retrieval.numbers import plain
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.texts import Passage, Query

QUERIES, PASSAGES = 50, 64
_ROUNDS = 3  # of the passages
_WARM = 3  # queries whose time does not count


def bytes_of(sizes: Sequence[Size]) -> dict[str, dict[str, float]]:
    """`{size: {"bytes_per_passage": …}}`, what one vector takes as `encode` stores it unless told otherwise."""
    width = np.dtype(EncodeArguments.store_dtype).itemsize
    return {str(size): {"bytes_per_passage": size.dim * width} for size in sizes}


def measure_costs(
    arguments: EncodeArguments, layers: Sequence[int], queries: Sequence[Query], passages: Sequence[Passage]
) -> tuple[dict[int, dict[str, float]], dict[str, Any]]:
    """`{layer: {"query_ms": …, "passage_ms": …}}` of the encoder cut there, and how that was measured.

    query_ms: median time of one query alone, from text to embedding. passage_ms: time a passage in batches, median of
    three rounds over the same passages. Layers take turns, so that all see the same machine. Cutting to a dim costs
    nothing that could be measured.
    """
    encoder = NestedEncoder.from_pretrained(
        arguments.model_name_or_path,
        layers=max(layers),
        device=arguments.device,
        attn_implementation=arguments.attn_implementation,
    )
    encoder.config = arguments.configured(encoder.config)
    sizes = {layer: Sizes([Size(layer, encoder.hidden_size)]) for layer in layers}
    runtime = open_runtime("torch", encoder, Sizes(size for one in sizes.values() for size in one), arguments.dtype)
    max_tokens = arguments.max_tokens_per_batch or (65536 if encoder.device.type == "cuda" else 4096)
    texts = texts_of(list(queries), encoder.config)[1]
    laps: dict[int, list[float]] = {layer: [] for layer in layers}
    for number, text in enumerate(texts[:_WARM] + texts):
        for layer in layers:
            began = now()
            rows = encoder.tokenize([text], encoder.max_length(True))
            runtime.embed(rows, sizes[layer], max_tokens=max_tokens)
            if number >= len(texts[:_WARM]):
                laps[layer].append(seconds_since(began))
    rows = encoder.tokenize(texts_of(list(passages), encoder.config)[1], encoder.max_length(False))
    rates = _passage_seconds(runtime, rows, sizes, max_tokens)
    costs = {
        layer: {"query_ms": _ms(statistics.median(laps[layer])), "passage_ms": _ms(rates[layer])} for layer in layers
    }
    how = {
        "runtime": runtime.name,
        "device": str(encoder.device),
        "threads": torch.get_num_threads(),
        "queries": len(texts),
        "passages": len(rows),
        "tokens_per_passage": round(statistics.mean(map(len, rows)), 1),
    }
    for layer, cost in costs.items():
        told = (plain(value, 3) for value in cost.values())
        log.info("layer %d: %s ms a query alone, %s ms a passage in batches", layer, *told)
    return costs, how


def _passage_seconds(runtime: Runtime, rows: Rows, sizes: dict[int, Sizes], max_tokens: int) -> dict[int, float]:
    laps: dict[int, list[float]] = {layer: [] for layer in sizes}
    for number in range(_ROUNDS + 1):  # the first one warms up
        for layer, size in sizes.items():
            began = now()
            runtime.embed(rows, size, max_tokens=max_tokens)
            if number:
                laps[layer].append(seconds_since(began) / len(rows))
    return {layer: statistics.median(own) for layer, own in laps.items()}


def _ms(seconds: float) -> float:
    return float(f"{1000 * seconds:.4g}")
