"""Decide what `grid` will encode and score; `--dry_run` prints the plan, otherwise `grid` runs it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import read_qrels
from starbucks_retrieval.devices import default_batch_tokens, resolve_device
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.plan import plan_encoding
from starbucks_retrieval.errors import UserError, refuse_folder
from starbucks_retrieval.grid import EncodingArguments, GridArguments
from starbucks_retrieval.grid.layers import Scoring, encode_arguments
from starbucks_retrieval.metrics.measures import Qrels, parse_measures
from starbucks_retrieval.metrics.results import dataset_name
from starbucks_retrieval.models.info import check_length, model_info
from starbucks_retrieval.models.precision import autocast_dtype
from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.sentences import grid_axes
from starbucks_retrieval.sentences.tasks import open_pair_sets
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.sts import StsArguments

_RETRIEVAL = ("dataset_path", "queries", "qrels", "depth", "asymmetric", "remove_identical_ids")
_SHARED = ("pooling", "normalize", "override", "dtype", "max_tokens_per_batch", "device")
_SAMPLE = 200  # sentences whose tokens are averaged


@dataclasses.dataclass(frozen=True)
class GridPlan:
    """Everything that is known before anything is encoded.

    Attributes:
        arguments: What is measured, and where the results go.
        encoding: Flags of the encoding.
        names: {data set: its name in cells}.
        qrels: {data set: its relevance judgements}.
        layers: Ascending.
        scoring: Dims, measures and depth, and how cells are scored.
    """

    arguments: GridArguments
    encoding: EncodingArguments
    names: dict[str, str]
    qrels: Mapping[str, Qrels]
    layers: list[int]
    scoring: Scoring

    def jobs(self, dataset: str) -> tuple[EncodeArguments, EncodeArguments]:
        """Return the flags of `encode` for the queries and for the passages of a data set, at the widest dim.

        Stored vectors are not normalised, so that truncating one gives exactly the embedding of a smaller size.
        """
        arguments, folder = self.arguments, self.arguments.work_folder / self.names[dataset]
        sizes = Sizes(Size(layer, self.scoring.dims[-1]) for layer in self.layers)
        base = encode_arguments(arguments, self.encoding)
        pooled_layers = dataclasses.replace(base, sizes=str(sizes), normalize=False, override=True)
        split = arguments.query_split
        queries, passages = folder / (f"queries-{split}" if split else "queries"), folder / "passages"
        of_queries = dataclasses.replace(
            pooled_layers,
            dataset_path=arguments.queries or dataset,
            dataset_split=split,
            encode_is_query=True,
            encode_output_path=str(queries),
        )
        return of_queries, dataclasses.replace(pooled_layers, dataset_path=dataset, encode_output_path=str(passages))


def plan_grid(arguments: GridArguments, encoding: EncodingArguments) -> GridPlan:
    """Check the flags and read the model's configuration and the judgements.

    Args:
        arguments: What to measure, and where the results go.
        encoding: Flags of the encoding.

    Returns:
        Everything that is known before encoding.

    Raises:
        UserError: A flag, the model or the judgements are wrong.
    """
    if arguments.data:
        raise UserError("--data names sets of scored pairs", "add --task sts, or name the data with --dataset_path")
    device = resolve_device(encoding.device)
    base = encode_arguments(arguments, encoding)
    names = _dataset_names(arguments)
    measures, depth = parse_measures(arguments.measure_text), arguments.kept()
    parse_bytes(arguments.max_memory)
    refuse_folder(arguments.target)
    model = model_info(arguments.model_name_or_path)
    layers, dims = grid_axes(arguments.layers, arguments.dims, model)
    scoring = Scoring(
        dims=dims,
        measures=measures,
        depth=depth,
        normalize=base.configured(model.config).normalize,
        asymmetric=arguments.asymmetric,
        remove_identical_ids=arguments.remove_identical_ids,
        max_memory=arguments.max_memory,
        device=scoring_device(device),
    )
    qrels = {dataset: read_qrels(arguments.qrels or dataset, split=arguments.split) for dataset in names}
    return GridPlan(arguments, encoding, names, qrels, layers, scoring)


def scoring_device(model: torch.device) -> str:
    """Return the device that scores passages.

    Args:
        model: The device of the encoder.

    Returns:
        The name of that device if it is a CPU or a CUDA GPU, such as `cuda:1`; else `cpu`.
    """
    return str(model) if model.type in ("cpu", "cuda") else "cpu"


def _dataset_names(arguments: GridArguments) -> dict[str, str]:
    """{data set: its name in cells}. Raises UserError if two data sets share a name."""
    if not arguments.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "name the model to measure")
    if not arguments.dataset_path:
        raise UserError("--dataset_path is missing", "name a BEIR folder, or a short name such as beir/scifact")
    if len(arguments.dataset_path) > 1 and (arguments.queries or arguments.qrels):
        raise UserError("--queries and --qrels belong to one data set", "measure one data set at a time")
    names = {}
    for dataset in arguments.dataset_path:  # the names that evaluate gives
        path = Path(dataset).expanduser()
        names[dataset] = dataset_name(path) if path.is_dir() else dataset.removeprefix("ir:")
    if len(set(names.values())) < len(arguments.dataset_path):
        raise UserError(
            f"two data sets have the same name: {' '.join(arguments.dataset_path)}", "measure them one by one"
        )
    return names


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


def preview(arguments: GridArguments, encoding: EncodingArguments) -> Preview:
    """Return the lines and figures of `--dry_run`; nothing is written, and no weights are read.

    The time is that of the encoding, as `encode --dry_run` estimates it, without scoring and measuring costs.

    Args:
        arguments: What to measure. Its `task` decides between retrieval and pairs.
        encoding: Flags of the encoding.

    Raises:
        UserError: A flag, the model or the data are wrong.
    """
    return _of_pairs(arguments, encoding) if arguments.task == "sts" else _of_retrieval(arguments, encoding)


def _of_retrieval(arguments: GridArguments, encoding: EncodingArguments) -> Preview:
    plan = plan_grid(arguments, encoding)
    texts: list[dict[str, Any]] = []
    lines = [("model", f"{arguments.model_name_or_path}: layers {_list(plan.layers)}; dims {_list(plan.scoring.dims)}")]
    for dataset, name in plan.names.items():
        for kind, job in zip(("queries", "passages"), plan.jobs(dataset)):
            found = plan_encoding(job).preview().figures
            complete = all(store["state"].startswith("complete") for store in found["stores"])
            counts = {key: found[key] for key in ("texts", "texts_exact", "mean_tokens", "bytes")}
            texts.append({"dataset": name, "kind": kind, "seconds": 0.0 if complete else found["seconds"], **counts})
            count = "an unknown number of" if found["rows"] is None else f"{found['rows']:,}"
            held = "" if found["bytes"] is None else f", {readable(found['bytes'])} of embeddings"
            kept = " (complete already: used if they come from this job)" if complete else ""
            lines.append((kind, f"{count} of {name}, {found['mean_tokens']:.0f} tokens on average{held}{kept}"))
    pairs = len(plan.layers) * len(plan.scoring.dims) * (len(plan.layers) if arguments.asymmetric else 1)
    stays = "kept" if arguments.keeps_work else "removed at the end"
    figures: dict[str, Any] = {
        "texts": texts,
        "work_dir": str(arguments.work_folder),
        "bytes": _sum(texts, "bytes"),
        "kept": arguments.keeps_work,
        "seconds": _sum(texts, "seconds"),
        **_common(arguments, plan.layers, plan.scoring.dims, pairs * len(plan.scoring.measures) * len(plan.names)),
    }
    free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
    taken = "embeddings" if figures["bytes"] is None else readable(figures["bytes"])
    lines.append(("meanwhile", f"{taken} in {arguments.work_folder}, {stays}{free}"))
    return Preview([*lines, *_ending(arguments, figures)], figures)


def _of_pairs(arguments: GridArguments, encoding: EncodingArguments) -> Preview:
    pair_arguments = sts_arguments(arguments, encoding)
    model = model_info(arguments.model_name_or_path)
    config = pair_arguments.configured(model.config)
    sizes = pair_arguments.selected_sizes(model)
    sets = open_pair_sets(pair_arguments.data, pair_arguments.split)
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(side for one in sets for side in one.sentences)))
    length = check_length(config.passage_max_len or model.token_limit, model.token_limit)
    sample = [(config.passage_prefix + text).strip() for text in sentences[:_SAMPLE]]
    tokens = model.mean_tokens(sample, length)
    device = pair_arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    budget = pair_arguments.max_tokens_per_batch or default_batch_tokens(device)
    dtype = autocast_dtype(pair_arguments.dtype, torch.device(device))
    layers, dims = ({getattr(size, name) for size in sizes} for name in ("layer", "dim"))
    each = model.seconds_per_text(max(layers), sample, length, budget, device, dtype)
    pairs = {one.name: len(one.numbers) for one in sets}
    figures = {
        "pairs": pairs,
        "sentences": len(sentences),
        "mean_tokens": round(tokens, 1),
        "bytes": 0,
        "seconds": len(sentences) * each,
        **_common(arguments, sorted(layers), sorted(dims), len(sizes) * len(sets)),
    }
    lines = [
        ("model", f"{arguments.model_name_or_path}: layers {_list(layers)}; dims {_list(dims)}"),
        ("pairs", ", ".join(f"{count:,} of {name}" for name, count in pairs.items())),
        ("sentences", f"{len(sentences):,} distinct ones, {tokens:.0f} tokens on average, {length} at most"),
    ]
    return Preview([*lines, *_ending(arguments, figures)], figures)


def _common(arguments: GridArguments, layers: Any, dims: Any, cells: int) -> dict[str, Any]:
    return {
        "layers": list(layers),
        "dims": list(dims),
        "cells": cells,
        "output": str(arguments.target),
        "exists": arguments.target.exists(),
        "measure_cost": arguments.measure_cost,
        "free_bytes": free_bytes(arguments.work_folder),
    }


def _ending(arguments: GridArguments, figures: dict[str, Any]) -> list[tuple[str, str]]:
    there = ", which is replaced" if figures["exists"] else ""
    more = "without scoring"
    if arguments.measure_cost:
        more = "without scoring and timing (--measure_cost)"
    return [
        ("writes", f"{figures['cells']:,} cells to {arguments.target}{there}"),
        ("time", f"{duration(figures['seconds'])}, to encode; {more}"),
    ]


def _sum(parts: list[dict[str, Any]], name: str) -> Any:
    values = [part[name] for part in parts]
    return None if None in values else sum(values)


def _list(numbers: Any) -> str:
    return ", ".join(map(str, sorted(numbers)))
