"""What `train` would do: sizes, data, steps, bytes and time, from the backbone's configuration and a look at the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.loop.dry_run import (
    SINGLE,
    STATES,
    count_checkpoints,
    count_steps,
    output_state,
    rows_per_step,
)
from starbucks_retrieval.models.cost import check_length, outline
from starbucks_retrieval.numbers import plain
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.info import readable
from starbucks_retrieval.texts import Group, Passage, ScoredPair, join_text, read_qrels
from starbucks_retrieval.texts.count import SMALL, Count, count_records
from starbucks_retrieval.texts.sources import beir_folder
from starbucks_retrieval.train.api import are_scored_pairs, group_size, open_collection
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.build import build_objective, build_options

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.models.cost import Outline

_SAMPLE = 100  # training rows, and passages of a corpus, whose tokens are counted
_BACKWARD = 2.0  # a backward pass takes about twice a forward one


def preview(arguments: TrainArguments, settings: TrainingArguments) -> Preview:
    """Say what `train` would do with the same flags; nothing is written, and no weights are read.

    Rows are counted where that is cheap. The time is an estimate from this device's speed at layers of this shape with
    random weights, for the texts' own lengths; it leaves out the optimizer, dev scores and saving. Raises UserError as
    `train` would for flags, backbone and data that a look can tell are wrong.
    """
    import torch

    model = outline(arguments.model_name_or_path)
    pairs = are_scored_pairs(arguments)
    sizes = arguments.ladder(model.num_layers, model.hidden_size, model.config.sizes)
    options = build_options(arguments, model.config, model.num_layers, pairs)
    objective = build_objective(arguments, sizes, Size(model.num_layers, model.hidden_size), options)
    config = arguments.encoder_config(model.config, sizes, options, model.token_limit)
    lengths = [
        check_length(length or 0, model.token_limit) for length in (config.query_max_len, config.passage_max_len)
    ]
    group = group_size(arguments, pairs)
    count = _counted(arguments, pairs)
    at_once = rows_per_step(settings)
    steps = count_steps(settings, count.number)
    parameters = model.parameters(objective.depth)
    query, passage = _tokens(arguments, model, config, pairs, lengths)
    tokens = at_once * (query + group * passage)
    device = settings.device
    dtype = torch.bfloat16 if settings.bf16 else torch.float16 if settings.fp16 else None
    mean = max(3, round((query + group * passage) / (1 + group)))
    chunk = arguments.max_tokens_per_chunk or (16384 if device.type == "cuda" else 1024)
    each = model.layer_seconds(mean, chunk, str(device), dtype)
    again = (1.0 if arguments.grad_cache else 0.0) + (1.0 if arguments.anchor_weight else 0.0)
    step = tokens / settings.world_size * objective.depth * each * (1 + _BACKWARD + again)
    kept = count_checkpoints(settings, steps)
    weights = parameters * SINGLE
    figures = {
        "model": arguments.model_name_or_path,
        "objective": arguments.objective,
        "sizes": str(objective.sizes),
        "layers": objective.depth,
        "parameters": parameters,
        "rows": count.number,
        "rows_exact": count.exact,
        "group_size": group,
        "rows_per_step": at_once,
        "steps": steps,
        "mean_query_tokens": round(query, 1),
        "mean_passage_tokens": round(passage, 1),
        "tokens_per_step": round(tokens),
        "device": str(device),
        "processes": settings.world_size,
        "checkpoints": kept,
        "bytes": weights * (1 + kept * STATES),
        "memory": weights * (STATES + 1),
        "seconds_per_step": step,
        "seconds": None if steps is None else steps * step,
        "output_dir": str(settings.output_dir),
        "state": output_state(settings, arguments.overwrite_output_dir),
        "free_bytes": free_bytes(str(settings.output_dir)),
    }
    return Preview(_lines(figures, arguments, config), figures)


def _counted(arguments: TrainArguments, pairs: bool) -> Count:
    """Training rows of all collections."""
    counts = [_count(name, arguments, pairs) for name in arguments.collections]
    numbers = [count.number for count in counts if count.number is not None]
    if len(numbers) < len(counts):
        return Count(None, False)
    return Count(sum(numbers), all(count.exact for count in counts))


def _count(name: str, arguments: TrainArguments, pairs: bool) -> Count:
    folder = beir_folder(name)
    if folder is not None and not pairs:
        qrels = read_qrels(name, split=arguments.dataset_split or "train")
        return Count(sum(max(grades.values()) > 0 for grades in qrels.values()), True)
    return count_records(open_collection(name, arguments, pairs)[0])


def _tokens(
    arguments: TrainArguments, model: Outline, config: EncoderConfig, pairs: bool, lengths: list[int]
) -> tuple[float, float]:
    """Tokens of a query and of a passage on average, from the first rows of the first collection."""
    rows, corpus = open_collection(arguments.collections[0], arguments, pairs)
    if beir_folder(arguments.collections[0]) and _bytes(arguments.collections[0]) > SMALL:
        # Its rows are put together from whole files; the queries' share of the work is small.
        return float(lengths[0]), _passages(model, config, corpus, lengths[1])
    first = list(itertools.islice(rows, _SAMPLE))
    if not first:
        raise UserError(f"{rows.name} holds no training rows", "check the file and the split")
    queries, passages = [], []
    for row in first:
        if isinstance(row, ScoredPair):
            queries.append(row.sentence1)
            passages.append(row.sentence2)
        elif isinstance(row, Group):
            queries.append(row.query)
            passages += [_joined(passage, config) for passage in (row.passages or {}).values()]
    query = model.mean_tokens([(config.query_prefix + text).strip() for text in queries], lengths[0])
    if passages:
        return query, model.mean_tokens(passages, lengths[1])
    return query, _passages(model, config, corpus, lengths[1])


def _passages(model: Outline, config: EncoderConfig, corpus: Iterable[Passage] | None, length: int) -> float:
    first = [_joined(passage, config) for passage in itertools.islice(corpus or (), _SAMPLE)]
    return model.mean_tokens(first, length) if first else float(length)


def _joined(passage: Passage, config: EncoderConfig) -> str:
    return join_text(passage, config.passage_field_separator, config.passage_prefix)


def _bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).expanduser().glob("*.*") if path.is_file())


def _lines(figures: Mapping[str, Any], arguments: TrainArguments, config: EncoderConfig) -> list[tuple[str, str]]:
    rows = Count(figures["rows"], figures["rows_exact"])
    steps = "an unknown number of" if figures["steps"] is None else f"{figures['steps']:,}"
    free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
    processes = f" in {figures['processes']} processes" if figures["processes"] > 1 else ""
    tokens = f"{figures['mean_query_tokens']:.0f} and {figures['mean_passage_tokens']:.0f} tokens on average"
    cosine = "cosine" if config.normalize else "dot product"
    saved = f"{figures['checkpoints']} checkpoints beside the model" if figures["checkpoints"] else "no checkpoints"
    return [
        ("model", f"{figures['model']}: {figures['layers']} layers, {figures['parameters'] / 1e6:.1f} M parameters"),
        (
            "sizes",
            f"{figures['sizes']} by {figures['objective']}; {config.pooling} pooling, {cosine}, temperature {config.temperature:g}",
        ),
        ("data", f"{rows} rows from {', '.join(arguments.collections)}; queries and passages have {tokens}"),
        (
            "steps",
            f"{steps} of {figures['rows_per_step']} queries with {figures['group_size']} passages each, about {figures['tokens_per_step']:,} tokens a step",
        ),
        ("device", f"{figures['device']}{processes}"),
        (
            "writes",
            f"about {readable(figures['bytes'])} with {saved}, to {figures['output_dir']} ({figures['state']}){free}",
        ),
        ("memory", f"{readable(figures['memory'])} for weights, gradients and optimizer; activations come on top"),
        ("time", f"{duration(figures['seconds'])}, {plain(figures['seconds_per_step'], 2)} s a step"),
    ]
