"""The dry run of training: sizes, data, steps, bytes and time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.cli.dry_run import Preview, duration
from starbucks_retrieval.data import Group, Passage, Records, ScoredPair, join_text
from starbucks_retrieval.data.scan import SMALL_FILE, RecordCount, count_records
from starbucks_retrieval.data.sources import beir_folder, find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.info import check_length, model_info
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.info import readable
from starbucks_retrieval.train.api import are_scored_pairs, dev_set, group_size, open_collection
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.arrow_shard import Lacking, check_first, check_inline, check_rows, unknown_document
from starbucks_retrieval.train.build import build_objective, build_options
from starbucks_retrieval.train.save import require_peft
from starbucks_retrieval.trainer.settings import count_steps, dry_run_figures

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.models.info import ModelInfo

SAMPLE = 100  # training rows, and passages of a corpus, that are looked at of a large collection


@dataclass(frozen=True)
class DataSample:
    """A collection: its rows, the first of them, and its corpus or None.

    no_negatives: none of the rows looked at has hard negatives, and training asks for some that later rows may have.
    """

    count: RecordCount
    first: list[Group | ScoredPair]
    corpus: Records[Passage] | None
    no_negatives: bool


def sample_data(name: str, arguments: TrainArguments, pairs: bool, group_size: int, with_scores: bool) -> DataSample:
    """Look at a collection. Raises UserError for what `train` would refuse, as far as the rows looked at show it."""
    rows, corpus = open_collection(name, arguments, pairs)
    judged = not pairs and (beir_folder(name) or find_ir(name, arguments.dataset_split or "train"))
    whole = bool(judged) or is_small(rows.source)  # judged rows lie in memory once they are open
    seen = iter(rows if whole else itertools.islice(rows, SAMPLE))
    first = list(itertools.islice(seen, SAMPLE))
    if pairs:
        if not first:
            raise UserError(f"{name} holds no scored pairs", "check the path and the split")
        found = Lacking(len(first) + sum(1 for _ in seen), 0, 0)
    else:
        found = _check(name, itertools.chain(first, seen), corpus, whole)
        check_rows(name, found, group_size, with_scores, whole)
    count = RecordCount(found.rows, True) if whole else count_records(rows)
    return DataSample(count, first, corpus, group_size > 1 and not pairs and found.negatives == found.rows)


def is_small(source: str) -> bool:
    """Whether a local file is read in seconds."""
    path = Path(source).expanduser()
    return path.is_file() and path.stat().st_size <= (SMALL_FILE // 4 if path.suffix == ".gz" else SMALL_FILE)


def _check(name: str, groups: Iterable[Group], corpus: Records[Passage] | None, whole: bool) -> Lacking:
    rows = negatives = scores = 0
    inline, docids = False, None
    for group in groups:
        if not rows:
            inline = check_first(name, group, corpus).passages is not None
            if not inline and corpus is not None and whole and is_small(corpus.source):
                docids = {passage.docid for passage in corpus}
        rows += 1
        negatives += not group.negative_ids
        scores += group.scores is None
        if inline:
            check_inline(name, group)
        elif docids is not None:
            for docid in (*group.positive_ids, *group.negative_ids):
                if docid not in docids:
                    raise unknown_document(group, docid, corpus)
    if not rows:
        check_first(name, None, corpus)
    return Lacking(rows, negatives, scores)


_BACKWARD = 2.0  # a backward pass takes about twice a forward one


def preview(arguments: TrainArguments, settings: TrainingArguments) -> Preview:
    """Say what `train` would do with the same flags; nothing is written, and no weights are read.

    Rows are counted where that is cheap. The time is an estimate from this device's speed at layers of this shape with
    random weights, for the texts' own lengths; it leaves out the optimizer, dev scores and saving. Raises UserError as
    `train` would for flags, backbone and data that a look can tell are wrong.
    """
    import torch

    model = model_info(arguments.model_name_or_path)
    pairs = are_scored_pairs(arguments)
    sizes = arguments.model_sizes(model.num_layers, model.hidden_size, model.config.sizes)
    options = build_options(arguments, model.config, model.num_layers, pairs)
    objective = build_objective(arguments, sizes, Size(model.num_layers, model.hidden_size), options)
    config = arguments.encoder_config(model.config, sizes, options, model.token_limit)
    lengths = [
        check_length(length or 0, model.token_limit) for length in (config.query_max_len, config.passage_max_len)
    ]
    group = group_size(arguments, pairs)
    looks = [sample_data(name, arguments, pairs, group, options.distil_weight > 0) for name in arguments.collections]
    _check_dev(arguments, settings.seed)
    if arguments.lora:
        require_peft()
    count = _counted(looks)
    parameters = model.parameters(objective.depth)
    steps = count_steps(settings, count.number)
    shared = dry_run_figures(settings, parameters, steps, arguments.overwrite_output_dir)
    query, passage = _tokens(looks[0], model, config, lengths)
    tokens = shared["rows_per_step"] * (query + group * passage)
    device = settings.device
    dtype = torch.bfloat16 if settings.bf16 else torch.float16 if settings.fp16 else None
    mean = max(3, round((query + group * passage) / (1 + group)))
    chunk = arguments.max_tokens_per_chunk or (16384 if device.type == "cuda" else 1024)
    each = model.layer_seconds(mean, chunk, str(device), dtype)
    again = (1.0 if arguments.grad_cache else 0.0) + (1.0 if arguments.anchor_weight else 0.0)
    step = tokens / settings.world_size * objective.depth * each * (1 + _BACKWARD + again)
    figures = {
        "model": arguments.model_name_or_path,
        "objective": arguments.objective,
        "sizes": str(objective.sizes),
        "layers": objective.depth,
        "parameters": parameters,
        "rows": count.number,
        "rows_exact": count.exact,
        "group_size": group,
        "mean_query_tokens": round(query, 1),
        "mean_passage_tokens": round(passage, 1),
        "tokens_per_step": round(tokens),
        **shared,
        "seconds_per_step": step,
        "seconds": None if steps is None else steps * step,
    }
    unsure = [name for name, look in zip(arguments.collections, looks) if look.no_negatives]
    return Preview(_lines(figures, arguments, config, unsure), figures)


def _counted(looks: Iterable[DataSample]) -> RecordCount:
    """Training rows of all collections."""
    counts = [look.count for look in looks]
    numbers = [count.number for count in counts if count.number is not None]
    if len(numbers) < len(counts):
        return RecordCount(None, False)
    return RecordCount(sum(numbers), all(count.exact for count in counts))


def _tokens(look: DataSample, model: ModelInfo, config: EncoderConfig, lengths: list[int]) -> tuple[float, float]:
    """Tokens of a query and of a passage on average, from the first rows of a collection."""
    queries, passages = [], []
    for row in look.first:
        if isinstance(row, ScoredPair):
            queries.append(row.sentence1)
            passages.append(row.sentence2)
        else:
            queries.append(row.query)
            passages += [_joined(passage, config) for passage in (row.passages or {}).values()]
    query = model.mean_tokens([(config.query_prefix + text).strip() for text in queries], lengths[0])
    if passages:
        return query, model.mean_tokens(passages, lengths[1])
    return query, _passages(model, config, look.corpus, lengths[1])


def _passages(model: ModelInfo, config: EncoderConfig, corpus: Iterable[Passage] | None, length: int) -> float:
    first = [_joined(passage, config) for passage in itertools.islice(corpus or (), SAMPLE)]
    return model.mean_tokens(first, length) if first else float(length)


def _joined(passage: Passage, config: EncoderConfig) -> str:
    return join_text(passage, config.passage_field_separator, config.passage_prefix)


def _check_dev(arguments: TrainArguments, seed: int) -> None:
    """Read the dev set as `train` would, where it is small and lies here."""
    path = arguments.eval_dataset_path
    folder = beir_folder(path or "")
    files = [path] if folder is None else [str(file) for file in folder.glob("*.*") if file.is_file()]
    if path and Path(path).expanduser().exists() and all(is_small(file) for file in files if file):
        dev_set(arguments, seed)


def _lines(
    figures: Mapping[str, Any], arguments: TrainArguments, config: EncoderConfig, unsure: list[str]
) -> list[tuple[str, str]]:
    rows = RecordCount(figures["rows"], figures["rows_exact"])
    steps = "an unknown number of" if figures["steps"] is None else f"{figures['steps']:,}"
    free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
    processes = f" in {figures['processes']} processes" if figures["processes"] > 1 else ""
    tokens = f"{figures['mean_query_tokens']:.0f} and {figures['mean_passage_tokens']:.0f} tokens on average"
    cosine = "cosine" if config.normalize else "dot product"
    saved = f"{figures['checkpoints']} checkpoints beside the model" if figures["checkpoints"] else "no checkpoints"
    doubt = [
        ("negatives", f"none in the first {SAMPLE} rows of {name}: train refuses if no later row has any")
        for name in unsure
    ]
    return [
        ("model", f"{figures['model']}: {figures['layers']} layers, {figures['parameters'] / 1e6:.1f} M parameters"),
        (
            "sizes",
            f"{figures['sizes']} by {figures['objective']}; {config.pooling} pooling, {cosine}, temperature {config.temperature:g}",
        ),
        ("data", f"{rows} rows from {', '.join(arguments.collections)}; queries and passages have {tokens}"),
        *doubt,
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
        ("time", f"{duration(figures['seconds'])}, {format_number(figures['seconds_per_step'], 2)} s a step"),
    ]
