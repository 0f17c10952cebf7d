"""The grid of semantic textual similarity, measured by `sts`."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from starbucks_retrieval.data import Passage
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid.arguments import EncodingArguments, GridArguments
from starbucks_retrieval.metrics.results import Results, write_results
from starbucks_retrieval.sentences.tasks import open_pair_sets
from starbucks_retrieval.sts import StsArguments, sts

_RETRIEVAL = ("dataset_path", "queries", "qrels", "depth", "asymmetric", "remove_identical_ids")
_SHARED = ("pooling", "normalize", "override", "dtype", "max_tokens_per_batch", "device")


def grid_of_pairs(arguments: GridArguments, encoding: EncodingArguments | None = None, seed: int = 42) -> Results:
    """Measure every (layer, dim) on sets of scored pairs, and write the result file.

    With `measure_cost`, sentences drawn by `seed` are timed alone (query_ms) and in batches (passage_ms).

    Args:
        arguments: The flags of `starbucks grid --task sts`.
        encoding: Flags of the encoding; None for the defaults.
        seed: Draws the sentences by which costs are measured.

    Returns:
        The content of the result file.

    Raises:
        UserError: A flag belongs to retrieval, or as `sts`.
    """
    encoding = encoding or EncodingArguments()
    pair_arguments = sts_arguments(arguments, encoding)
    results = sts(pair_arguments)
    if arguments.measure_cost:
        results = dataclasses.replace(
            results, more=results.more | _costs(arguments, encoding, pair_arguments, results, seed)
        )
        write_results(arguments.target, results)
    return results


def sts_arguments(arguments: GridArguments, encoding: EncodingArguments) -> StsArguments:
    """Return the flags of `sts` that measure the grid.

    Args:
        arguments: Model, sets, layers, dims, measure and result file.
        encoding: Pooling, precision, batch size and device.

    Raises:
        UserError: A flag belongs to retrieval, the model is missing, or the measure is not a correlation.

    Example:
        >>> found = sts_arguments(GridArguments("model", task="sts", layers="2,4"), EncodingArguments())
        >>> found.grid, found.layers, found.measure
        (True, '2,4', 'spearman')
    """
    defaults = GridArguments()
    for name in _RETRIEVAL:
        if getattr(arguments, name) != getattr(defaults, name):
            raise UserError(f"--{name} belongs to --task retrieval", "leave it out; --data names sets of scored pairs")
    if not arguments.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "name the model to measure")
    if arguments.measure_text not in ("spearman", "pearson"):
        raise UserError(f"--measures {arguments.measure_text} is no correlation", "take spearman or pearson")
    given = dataclasses.asdict(encoding)
    options: dict[str, Any] = {name: given[name] for name in _SHARED}
    if arguments.data:
        options["data"] = arguments.data
    return StsArguments(
        model_name_or_path=arguments.model_name_or_path,
        grid=True,
        layers=arguments.layers,
        dims=arguments.dims,
        label=arguments.label,
        measure="pearson" if arguments.measure_text == "pearson" else "spearman",
        output=str(arguments.target),
        **options,
    )


def _costs(
    arguments: GridArguments, encoding: EncodingArguments, pair_arguments: StsArguments, results: Results, seed: int
) -> dict[str, Any]:
    """`costs` of each size, and how they were measured, on sentences of the sets."""
    from starbucks_retrieval.grid.costs import PASSAGES, QUERIES, costs_of
    from starbucks_retrieval.grid.encoding import encode_arguments

    sides = itertools.chain.from_iterable(
        one.sentences for one in open_pair_sets(pair_arguments.data, pair_arguments.split)
    )
    texts = list(dict.fromkeys(itertools.chain.from_iterable(sides)))
    order = np.random.default_rng(seed).permutation(len(texts))
    alone, batched = (
        [Passage(str(i), "", texts[i]) for i in some] for some in (order[:QUERIES].tolist(), order[-PASSAGES:].tolist())
    )
    sizes = sorted({cell.size for cell in results.cells if cell.size is not None})
    return costs_of(encode_arguments(arguments, encoding), sizes, alone, batched)
