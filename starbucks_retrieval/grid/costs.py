"""Measure what a query and a passage cost at every size: milliseconds to encode and to search, and bytes."""

from __future__ import annotations

import copy
import itertools
import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.cli import format_number, log, progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data import Passage, Query
from starbucks_retrieval.devices import default_batch_tokens
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.worker import texts_of
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.backends.selection import open_backend
from starbucks_retrieval.search import exact_search
from starbucks_retrieval.search.engines.float16_scan import hold
from starbucks_retrieval.search.machine import measure_machine
from starbucks_retrieval.search.stores import open_sizes
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore

SLOWDOWN = 1.5  # a repetition takes this many times the least one: others are using the machine
LOAD = 1.25  # processes that want to run, for each core; our own threads are one a core

_QUERIES, _PASSAGES = 50, 64
_ROUNDS = 3  # repetitions, of which the least counts
_WARM = 3  # queries whose time does not count


def least(repetitions: Sequence[Sequence[float]]) -> float:
    """Return the median over texts of each text's shortest time.

    Disturbances only make measurements longer.

    Args:
        repetitions: The times of each text, in one unit, which the result has too.
    """
    return statistics.median(min(times) for times in repetitions)


def slowdown(repetitions: Sequence[Sequence[float]]) -> float:
    """Return the median over texts of the ratio of a text's median time to its shortest.

    Args:
        repetitions: The times of each text.

    Returns:
        1 or more; near 1 on an idle machine.
    """
    return statistics.median(statistics.median(times) / max(min(times), 1e-9) for times in repetitions)


def busy_reason(slow: float, load: float | None, cores: int) -> str | None:
    """Return why measured times are unreliable; None if nothing suggests that they are.

    Args:
        slow: The `slowdown` of the measurement.
        load: The mean number of processes that want to run in the last minute; None where the system does not tell.
        cores: Cores that this process may use.
    """
    reasons = []
    if slow > SLOWDOWN:
        reasons.append(f"a repetition takes {slow:.1f} times the least one")
    if load is not None and load > LOAD * cores:
        reasons.append(f"{load:.1f} processes want to run on {cores} cores")
    return ", and ".join(reasons) or None


def machine_load() -> tuple[float | None, int]:
    """Return the load average of the last minute, None if unknown, and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (os.getloadavg()[0] if hasattr(os, "getloadavg") else None), cores


def bytes_of(sizes: Sequence[Size]) -> dict[str, dict[str, float]]:
    """Return the bytes of one passage's vector at each size, as `encode` stores it by default.

    Example:
        >>> bytes_of([Size(2, 32), Size(6, 128)])
        {'2:32': {'bytes_per_passage': 64}, '6:128': {'bytes_per_passage': 256}}
    """
    width = np.dtype(EncodeArguments.store_dtype).itemsize
    return {str(size): {"bytes_per_passage": size.dim * width} for size in sizes}


def costs_of(
    arguments: EncodeArguments,
    sizes: Sequence[Size],
    queries: list[Query] | list[Passage],
    passages: list[Passage],
    seed: int,
) -> dict[str, Any]:
    """Measure the costs of each size on some of the texts, and return them as a result file holds them.

    Args:
        arguments: Flags of `encode`: model, device, precision and batch size.
        sizes: The sizes. Times are measured once for each of their layers.
        queries: 50 of them are timed one at a time; passages for sentences of pairs.
        passages: 64 of them are timed in batches.
        seed: Draws the texts that are timed.

    Returns:
        `costs`, {size: {"bytes_per_passage": …, "query_ms": …, "passage_ms": …}}, both times in milliseconds for
        one text; and `costs_measured`, the device, counts and load of the machine during the measurement.
    """
    rng, costs = np.random.default_rng(seed), bytes_of(sizes)
    alone = [queries[i] for i in rng.permutation(len(queries))[:_QUERIES]]
    batched = [passages[i] for i in rng.permutation(len(passages))[:_PASSAGES]]
    by_layer, how = measure_costs(arguments, sorted({size.layer for size in sizes}), alone, batched)
    for size in sizes:
        costs[str(size)] |= by_layer[size.layer]
    return {"costs": costs, "costs_measured": how}


def measure_costs(
    arguments: EncodeArguments,
    layers: Sequence[int],
    queries: list[Query] | list[Passage],
    passages: Sequence[Passage],
    clock: Callable[[], float] = now,
) -> tuple[dict[int, dict[str, float]], dict[str, Any]]:
    """Measure how long the encoder takes for a text when it is cut at a layer.

    Layers take turns, so that all see the same machine; a busy one is warned of. Cutting to a dim costs nothing that
    could be measured.

    Args:
        arguments: Flags of `encode`: model, device, precision and batch size.
        layers: The layers.
        queries: Timed one at a time; all queries, or all passages for sentences of pairs. At least one.
        passages: Timed in batches. At least one.
        clock: Returns seconds.

    Returns:
        {layer: {"query_ms": …, "passage_ms": …}} in milliseconds, and how that was measured, where `busy` says why
        the machine was busy, or is None. query_ms is one query alone, from text to embedding: the median over queries
        of the least of three repetitions. passage_ms is the time per passage: the least of three rounds over the same
        passages.
    """
    load, cores = machine_load()  # before this program makes a load of its own
    encoder = NestedEncoder.from_pretrained(
        arguments.model_name_or_path,
        layers=max(layers),
        device=arguments.device,
        attn_implementation=arguments.attn_implementation,
    )
    encoder.config = arguments.configured(encoder.config)
    sizes = {layer: Sizes([Size(layer, encoder.hidden_size)]) for layer in layers}
    runtime = open_backend("torch", encoder, Sizes(size for one in sizes.values() for size in one), arguments.dtype)
    max_tokens = arguments.max_tokens_per_batch or default_batch_tokens(encoder.device.type)
    texts = texts_of(queries, encoder.config)[1]
    length = encoder.max_length(isinstance(queries[0], Query))
    rows = encoder.tokenize(texts_of(list(passages), encoder.config)[1], encoder.max_length(False))

    alone = [partial(encoder.tokenize, [text], length) for text in texts]  # a query's time includes its tokens

    def lap(token_rows: Callable[[], list[list[int]]], layer: int) -> float:
        began = clock()
        runtime.embed(token_rows(), sizes[layer], max_tokens=max_tokens)
        return clock() - began

    log.info("timing %d queries and %d passages at %d layers", len(texts), len(rows), len(layers))
    for query in alone[:_WARM]:
        warm = [lap(query, layer) for layer in layers]
    seconds = _ROUNDS * (len(texts) * sum(warm) + sum(lap(lambda: rows, layer) for layer in layers))
    log.info("timing takes about %.0f s", max(1, seconds))
    of_queries = _take_turns(lap, alone, layers, "queries", "timing queries")
    of_passages = _take_turns(lap, [lambda: rows], layers, "rounds", "timing passages")
    costs = {
        layer: {"query_ms": _ms(least(of_queries[layer])), "passage_ms": _ms(min(of_passages[layer][0]) / len(rows))}
        for layer in layers
    }
    for layer, cost in costs.items():
        milliseconds = (format_number(value, 3) for value in cost.values())
        log.info("layer %d: %s ms a query alone, %s ms a passage in batches", layer, *milliseconds)
    slow = slowdown([times for laps in of_queries.values() for times in laps])
    busy = busy_reason(slow, load, cores)
    if busy:
        log.warning("the machine is busy: %s\n  try: measure again when it is quiet; the times are too long", busy)
    return costs, {
        "runtime": runtime.name,
        "device": str(encoder.device),
        "threads": torch.get_num_threads(),
        "queries": len(texts),
        "passages": len(rows),
        "tokens_per_passage": round(statistics.mean(map(len, rows)), 1),
        "repetitions": _ROUNDS,
        "slowdown": round(slow, 2),
        "load": None if load is None else round(load, 2),
        "cores": cores,
        "busy": busy,
    }


def _take_turns(
    lap: Callable[[Any, int], float], items: Sequence[Any], layers: Sequence[int], units: str, label: str
) -> dict[int, list[list[float]]]:
    """Return the times of every item at each layer, [items, repetitions]; layers take turns, so that all see one machine."""
    times: dict[int, list[list[float]]] = {layer: [[] for _ in items] for layer in layers}
    turns = list(itertools.product(range(len(items)), range(_ROUNDS), layers))
    for number, _, layer in progress(turns, len(turns), units, label, every=10):
        times[layer][number].append(lap(items[number], layer))
    return times


def search_costs(
    queries: EmbeddingStore,
    passages: EmbeddingStore,
    sizes: Sequence[Size],
    depth: int,
    *,
    max_memory: int,
    seed: int,
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Measure how long exact search takes for a query alone at each dim, with the vectors in memory if they fit.

    Args:
        queries: A store of queries at the widest dim; 50 of them are searched, one at a time.
        passages: A store of passages at that dim.
        sizes: The sizes. Their layers do not matter: sizes of one dim take equally long.
        depth: Passages per query.
        max_memory: Bytes for vectors.
        seed: Draws the queries.

    Returns:
        {size: {"search_ms": …, "search_ms_per_million": …}}: milliseconds over these passages, the median over queries
        of the least of three repetitions; and what every further million of passages adds, measured on made-up vectors
        that no cache holds. And how that was measured.

    Raises:
        UserError: FAISS is not installed.
    """
    rows = np.random.default_rng(seed).permutation(queries.count)[:_QUERIES]
    vectors = queries.vectors(rows).astype(np.float32)
    layer, dims = passages.spec.size.layer, sorted({size.dim for size in sizes})
    log.info("timing exact search of %d queries over %d passages", len(rows), passages.count)
    machine = measure_machine(1.0, depth=depth, batches=(1,), seed=seed)
    by_dim = {}
    for dim, store in zip(dims, open_sizes(passages, [Size(layer, dim) for dim in dims]).values()):
        held = copy.copy(store)  # so that its memory is given back
        hold(held, max_memory // 2, 1)

        def lap(query: np.ndarray, held: EmbeddingStore = held) -> float:
            began = now()
            list(exact_search(query[None], held, depth, max_memory=max_memory))
            return seconds_since(began)

        lap(vectors[0, :dim])
        seconds = least([[lap(vector[:dim]) for _ in range(_ROUNDS)] for vector in vectors])
        more = machine.rates[1].scan(dim) * 1e6
        by_dim[dim] = {"search_ms": _ms(seconds), "search_ms_per_million": _ms(more)}
    how = {"passages": passages.count, "depth": depth, "queries": len(rows)}
    return {str(size): by_dim[size.dim] for size in sizes}, how


def _ms(seconds: float) -> float:
    return float(f"{1000 * seconds:.4g}")
