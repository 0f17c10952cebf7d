"""What `grid` would do: texts, stores, cells, bytes, and about how long the encoding takes."""

from __future__ import annotations

import itertools
from typing import Any

from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.encode.dry_run import preview as preview_encode
from starbucks_retrieval.grid.api import prepare
from starbucks_retrieval.grid.arguments import EncodingArguments, GridArguments
from starbucks_retrieval.grid.encoding import tap_jobs
from starbucks_retrieval.store.info import readable

_SAMPLE = 200  # sentences whose tokens are counted


def preview(asked: GridArguments, encoding: EncodingArguments) -> Preview:
    """Say what `grid` would do with the same flags; nothing is written, and no weights are read.

    The time is that of the encoding, as `encode --dry_run` estimates it; scoring and measuring costs are not
    estimated. Raises UserError as `grid` would for flags, model and data that a look can tell are wrong.
    """
    return _of_pairs(asked, encoding) if asked.task == "sts" else _of_retrieval(asked, encoding)


def _of_retrieval(asked: GridArguments, encoding: EncodingArguments) -> Preview:
    plan = prepare(asked, encoding)
    texts: list[dict[str, Any]] = []
    lines = [("model", f"{asked.model_name_or_path}: layers {_list(plan.layers)}; dims {_list(plan.dims)}")]
    for dataset, name in plan.names.items():
        jobs = tap_jobs(plan.base, asked, dataset, asked.work_folder / name, plan.layers, plan.dims[-1])
        for kind, job in zip(("queries", "passages"), jobs):
            found = preview_encode(job).figures
            there = all(store["state"].startswith("complete") for store in found["stores"])
            own = {key: found[key] for key in ("texts", "texts_exact", "mean_tokens", "bytes")}
            texts.append({"dataset": name, "kind": kind, "seconds": 0.0 if there else found["seconds"], **own})
            count = "an unknown number of" if found["rows"] is None else f"{found['rows']:,}"
            held = "" if found["bytes"] is None else f", {readable(found['bytes'])} of embeddings"
            kept = " (there already: kept if they are of this job)" if there else ""
            lines.append((kind, f"{count} of {name}, {found['mean_tokens']:.0f} tokens on average{held}{kept}"))
    pairs = len(plan.layers) * len(plan.dims) * (len(plan.layers) if asked.asymmetric else 1)
    stays = "kept" if asked.keeps_work else "removed at the end"
    figures: dict[str, Any] = {
        "texts": texts,
        "work_dir": str(asked.work_folder),
        "bytes": _sum(texts, "bytes"),
        "kept": asked.keeps_work,
        "seconds": _sum(texts, "seconds"),
        **_common(asked, plan.layers, plan.dims, pairs * len(plan.measures) * len(plan.names)),
    }
    free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
    taken = "embeddings" if figures["bytes"] is None else readable(figures["bytes"])
    lines.append(("meanwhile", f"{taken} in {asked.work_folder}, {stays}{free}"))
    return Preview([*lines, *_ending(asked, figures)], figures)


def _of_pairs(asked: GridArguments, encoding: EncodingArguments) -> Preview:
    import torch

    from starbucks_retrieval.grid.pairs import sts_arguments
    from starbucks_retrieval.models.info import check_length, model_info
    from starbucks_retrieval.models.precision import autocast_dtype
    from starbucks_retrieval.sts.sets import open_pair_sets

    arguments = sts_arguments(asked, encoding)
    model = model_info(asked.model_name_or_path)
    config = arguments.configured(model.config)
    sizes = arguments.selected_sizes(model.num_layers, model.hidden_size, model.sizes)
    sets = open_pair_sets(arguments.data, arguments.split)
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(side for one in sets for side in one.sentences)))
    length = check_length(config.passage_max_len or model.token_limit, model.token_limit)
    tokens = model.mean_tokens([(config.passage_prefix + text).strip() for text in sentences[:_SAMPLE]], length)
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    budget = arguments.max_tokens_per_batch or (65536 if device.startswith("cuda") else 4096)
    dtype = autocast_dtype(arguments.dtype, torch.device(device))  # type: ignore[arg-type]
    each = model.layer_seconds(max(3, round(tokens)), budget, device, dtype)
    layers, dims = ({getattr(size, name) for size in sizes} for name in ("layer", "dim"))
    pairs = {one.name: len(one.numbers) for one in sets}
    figures = {
        "pairs": pairs,
        "sentences": len(sentences),
        "mean_tokens": round(tokens, 1),
        "bytes": 0,
        "seconds": len(sentences) * tokens * max(layers) * each,
        **_common(asked, sorted(layers), sorted(dims), len(sizes) * len(sets)),
    }
    lines = [
        ("model", f"{asked.model_name_or_path}: layers {_list(layers)}; dims {_list(dims)}"),
        ("pairs", ", ".join(f"{count:,} of {name}" for name, count in pairs.items())),
        ("sentences", f"{len(sentences):,} distinct ones, {tokens:.0f} tokens on average, {length} at most"),
    ]
    return Preview([*lines, *_ending(asked, figures)], figures)


def _common(asked: GridArguments, layers: Any, dims: Any, cells: int) -> dict[str, Any]:
    return {
        "layers": list(layers),
        "dims": list(dims),
        "cells": cells,
        "output": str(asked.target),
        "exists": asked.target.exists(),
        "measure_cost": asked.measure_cost,
        "free_bytes": free_bytes(asked.work_folder),
    }


def _ending(asked: GridArguments, figures: dict[str, Any]) -> list[tuple[str, str]]:
    there = ", which is replaced" if figures["exists"] else ""
    more = "scoring comes on top"
    if asked.measure_cost:
        more = "scoring and timing (--measure_cost) come on top"
    return [
        ("writes", f"{figures['cells']:,} cells to {asked.target}{there}"),
        ("time", f"{duration(figures['seconds'])}, to encode; {more}"),
    ]


def _sum(parts: list[dict[str, Any]], name: str) -> Any:
    values = [part[name] for part in parts]
    return None if None in values else sum(values)


def _list(numbers: Any) -> str:
    return ", ".join(map(str, sorted(numbers)))
