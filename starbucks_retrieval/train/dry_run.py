"""The dry run of training: the plan, checked against a sample of the data, with steps, bytes and time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.cli.dry_run import Preview, duration
from starbucks_retrieval.data import Group, Passage, Records, ScoredPair, join_text
from starbucks_retrieval.data.records import SMALL_FILE, RecordCount, count_records
from starbucks_retrieval.data.sources import beir_folder, find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.fit_report import texts_needed
from starbucks_retrieval.models.texts import mixed, quotas
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.arrow_shard import check_first, check_inline, unknown_document
from starbucks_retrieval.train.build import chunks_of
from starbucks_retrieval.train.data import MissingCounts, check_rows
from starbucks_retrieval.train.mixture import DataSet, Mixture
from starbucks_retrieval.train.plan import (
    TrainPlan,
    count_texts,
    open_collection,
    open_texts,
    plan_training,
)
from starbucks_retrieval.train.speed import layer_seconds
from starbucks_retrieval.train.teacher import TeacherSource, too_few_texts
from starbucks_retrieval.trainer.settings import count_steps, dry_run_figures, dry_run_lines, rows_per_step

if TYPE_CHECKING:
    from transformers import TrainingArguments

SAMPLE = 100  # training rows, and passages of a corpus, that are read from a large collection


def preview(arguments: TrainArguments, settings: TrainingArguments) -> Preview:
    """Describe what `train` would do with the same flags. Nothing is written, and no weights are read.

    Rows are counted where that is cheap. The time is estimated from this device's speed with random weights and texts of
    the lengths in a sample; it does not include the optimizer, dev scores and saving.

    Args:
        arguments: Flags of `train`.
        settings: Flags of transformers, from `settings_of`.

    Returns:
        Lines for a terminal, and figures for JSON. `seconds` is None if the number of steps is unknown.

    Raises:
        UserError: `train` would refuse the flags, the backbone or the data that were read.
    """
    plan = plan_training(arguments, settings)
    samples = [sample_data(one, plan) for one in arguments.data_sets] if plan.labelled else []
    _check_dev_set(plan)
    rows = _total([sample.count for sample in samples]) if plan.labelled else _count_texts(plan)
    mixture = _mixture(samples, plan)
    steps = count_steps(settings, rows.number if mixture is None else len(mixture))
    parameters = plan.model.backbone_parameters(plan.objective.depth) + plan.projection_parameters
    shared = dry_run_figures(settings, parameters, steps, arguments.overwrite_output_dir)
    queries, passages = _lengths(samples[0], plan) if plan.labelled else (_lengths_of_texts(plan), [])
    query, passage = (statistics.fmean(lengths or [0]) for lengths in (queries, passages))
    tokens = shared["rows_per_step"] * (query + plan.group_size * passage)
    seconds = tokens / settings.world_size * _seconds_per_token(plan, _step(queries, passages, plan))
    if plan.teacher and rows.number is not None and rows.number < texts_needed(plan.teacher.width):
        raise too_few_texts(rows.number, plan.teacher.width)
    figures = {
        "model": arguments.model_name_or_path,
        "objective": arguments.objective,
        "sizes": str(plan.objective.sizes),
        "layers": plan.objective.depth,
        "projections": plan.projections,
        **({"teacher": plan.teacher.name} if plan.teacher else {}),
        "parameters": parameters,
        "rows": rows.number,
        "rows_exact": rows.exact,
        **({"shares": mixture.shares.round(4).tolist()} if mixture and len(samples) > 1 else {}),
        "group_size": plan.group_size,
        "mean_query_tokens": round(query, 1),
        "mean_passage_tokens": round(passage, 1),
        "tokens_per_step": round(tokens),
        **shared,
        "seconds_per_step": seconds,
        "seconds": None if steps is None else steps * seconds,
    }
    unsure = [name for name, sample in zip(arguments.collections, samples) if sample.no_negatives]
    return Preview(_lines(figures, plan, rows, unsure), figures)


def _mixture(samples: Sequence[DataSample], plan: TrainPlan) -> Mixture | None:
    """Return the mixture of data sets, None if a number of rows is unknown. Raises UserError as the run would."""
    counts = [sample.count.number for sample in samples if sample.count.number is not None]
    if not samples or len(counts) < len(samples):
        return None
    arguments = plan.arguments
    batch = rows_per_step(plan.settings) if arguments.same_source_batches else 0
    found = Mixture(counts, [one.weight for one in arguments.data_sets], arguments.sampling_exponent, batch)
    if all(sample.count.exact for sample in samples):
        found.check(arguments.collections)
    return found


def _check_dev_set(plan: TrainPlan) -> None:
    """Read the dev set as `train` would, if it is small and local."""
    path = plan.arguments.eval_dataset_path
    folder = beir_folder(path or "")
    files = [path] if folder is None else [str(file) for file in folder.glob("*.*") if file.is_file()]
    if path and Path(path).expanduser().exists() and all(_is_small(file) for file in files if file):
        from starbucks_retrieval.train.trainer import open_dev_set

        open_dev_set(plan)


def _total(counts: Sequence[RecordCount]) -> RecordCount:
    numbers = [count.number for count in counts if count.number is not None]
    if len(numbers) < len(counts):
        return RecordCount(None, False)
    return RecordCount(sum(numbers), all(count.exact for count in counts))


def _count_texts(plan: TrainPlan) -> RecordCount:
    shares = quotas([source.count for source in open_texts(plan, plan.config)], count_texts(plan))
    return _total([RecordCount(share, False) for share in shares])


def _lengths_of_texts(plan: TrainPlan) -> list[int]:
    """Return the tokens of the first texts, an equal number from each source."""
    sources = open_texts(plan, plan.config)
    first = list(itertools.islice(mixed(sources, [SAMPLE] * len(sources)), SAMPLE * len(sources)))
    if not first:
        raise UserError(f"{', '.join(plan.arguments.collections)} hold empty texts only", "check the files")
    of_queries, of_passages = plan.lengths
    return [plan.model.token_counts([text], of_queries if is_query else of_passages)[0] for text, is_query in first]


def _lengths(sample: DataSample, plan: TrainPlan) -> tuple[list[int], list[int]]:
    """Return the tokens of queries and of passages in a sample."""
    config = plan.config
    queries: list[str] = []
    passages: list[str] = []

    def text(passage: Passage) -> str:
        return join_text(passage, config.passage_field_separator, config.passage_prefix)

    for row in sample.first:
        if isinstance(row, ScoredPair):
            queries.append(row.sentence1)
            passages.append(row.sentence2)
        else:
            queries.append(row.query)
            passages += [text(passage) for passage in (row.passages or {}).values()]
    passages = passages or [text(passage) for passage in itertools.islice(sample.corpus or (), SAMPLE)]
    query_max, passage_max = config.query_max_len or 0, config.passage_max_len or 0
    lengths = plan.model.token_counts([(config.query_prefix + query).strip() for query in queries], query_max)
    return lengths, plan.model.token_counts(passages, passage_max) or [passage_max]


def _step(queries: Sequence[int], passages: Sequence[int], plan: TrainPlan) -> list[int]:
    """Return the tokens of the texts of a step of one process: a query and its passages, and so on."""
    pairs = zip(itertools.cycle(queries), *[itertools.cycle(passages)] * (plan.group_size if passages else 0))
    return list(itertools.chain(*itertools.islice(pairs, plan.settings.per_device_train_batch_size)))


def _seconds_per_token(plan: TrainPlan, step: Sequence[int]) -> float:
    """Return the seconds that a token of a training step takes on this device, in texts of these lengths."""
    import torch

    depth, settings = plan.objective.depth, plan.settings
    seconds = depth * layer_seconds(plan, step) if depth else 0.0
    forward_only = [(plan.model, depth if plan.anchor_weight else 0 if plan.labelled else plan.model.num_layers)]
    if plan.teacher is not None and plan.teacher.model is not None:
        forward_only.append((plan.teacher.model, plan.teacher.model.num_layers))
    dtype = torch.bfloat16 if settings.bf16 else torch.float16 if settings.fp16 else None
    budget = chunks_of(plan.arguments).budget(settings.device.type, padded=True)
    length = max(3, round(statistics.fmean(step)))
    return seconds + sum(
        layers * model.layer_seconds(length, budget, str(settings.device), dtype)
        for model, layers in forward_only
        if layers
    )


def _lines(figures: dict[str, Any], plan: TrainPlan, rows: RecordCount, unsure: list[str]) -> list[tuple[str, str]]:
    arguments, config = plan.arguments, plan.config
    steps = "an unknown number of" if figures["steps"] is None else f"{figures['steps']:,}"
    tokens = f"{figures['mean_query_tokens']:.0f} and {figures['mean_passage_tokens']:.0f} tokens on average"
    score = f"{'cosine' if config.normalize else 'dot product'}, temperature {config.temperature:g}"
    batch = f"{figures['rows_per_step']} queries with {figures['group_size']} passages each"
    data = f"{rows} rows from {', '.join(arguments.collections)}; queries and passages have {tokens}"
    if not plan.labelled:
        batch = f"{figures['rows_per_step']} texts each"
        mean = f"{figures['mean_query_tokens']:.0f} tokens on average"
        data = f"{rows} texts from {', '.join(arguments.collections)}; they have {mean}"
    shares = [f"{share:.0%} {name}" for name, share in zip(arguments.collections, figures.get("shares", []))]
    source = "; a step has rows of one of them" if arguments.same_source_batches else ""
    return [
        ("model", f"{figures['model']}: {figures['layers']} layers, {figures['parameters'] / 1e6:.1f} M parameters"),
        ("sizes", f"{figures['sizes']} by {figures['objective']}; {config.pooling} pooling, {score}"),
        *([("maps", _maps(plan))] if plan.projections != "none" else []),
        *([("teacher", _teacher(plan.teacher))] if plan.teacher else []),
        ("data", data),
        *([("shares", ", ".join(shares) + source)] if shares else []),
        *(
            ("negatives", f"none in the first {SAMPLE} rows of {name}: train refuses if no later row has any")
            for name in unsure
        ),
        ("steps", f"{steps} of {batch}, about {figures['tokens_per_step']:,} tokens a step"),
        *dry_run_lines(figures, "model", "activations"),
        ("time", f"{duration(figures['seconds'])}, {format_number(figures['seconds_per_step'], 2)} s a step"),
    ]


def _teacher(teacher: TeacherSource) -> str:
    kind = f"{teacher.model.num_layers} layers" if teacher.model else "stored embeddings"
    return f"{teacher.name}: {kind}, {teacher.width} numbers"


def _maps(plan: TrainPlan) -> str:
    layers = ", ".join(map(str, plan.config.projected_layers))
    origin = {"kept": "of the model", "fit": "fitted on the training texts first", "random": "random"}
    return f"of the layers {layers}, {origin[plan.projections]}; {plan.projection_parameters / 1e6:.1f} M weights"


@dataclass(frozen=True)
class DataSample:
    """A training collection and its first rows.

    Attributes:
        count: The number of rows.
        first: The first rows.
        corpus: The corpus that they refer to, or None.
        no_negatives: Training needs hard negatives, and no row that was read has any; later rows may have.
    """

    count: RecordCount
    first: list[Group | ScoredPair]
    corpus: Records[Passage] | None
    no_negatives: bool


def sample_data(one: DataSet, plan: TrainPlan) -> DataSample:
    """Read all rows of a small collection, or the first rows of a large one.

    Args:
        one: The data set.
        plan: The plan of the run: its kind of data, its group size, and whether it needs a teacher's scores.

    Raises:
        UserError: `train` would refuse a row that was read.
    """
    name, split = one.name, one.dataset_split or plan.arguments.dataset_split or "train"
    group_size = one.train_group_size or plan.group_size
    rows, corpus = open_collection(one, plan)
    judged = not plan.scored_pairs and (beir_folder(name) or find_ir(name, split))
    complete = bool(judged) or _is_small(rows.source)  # an opened collection of judgements is in memory
    stream = iter(rows if complete else itertools.islice(rows, SAMPLE))
    first = list(itertools.islice(stream, SAMPLE))
    if plan.scored_pairs:
        if not first:
            raise UserError(f"{name} holds no scored pairs", "check the path and the split")
        missing = MissingCounts(len(first) + sum(1 for _ in stream), 0, 0)
    else:
        missing = _check_groups(name, itertools.chain(first, stream), corpus, complete)
        check_rows(name, missing, group_size, plan.with_scores, complete)
    count = RecordCount(missing.rows, True) if complete else count_records(rows)
    no_negatives = group_size > 1 and not plan.scored_pairs and missing.negatives == missing.rows
    return DataSample(count, first, corpus, no_negatives)


def _is_small(source: str) -> bool:
    """Return whether a collection is a local file that is read in seconds: up to 64 MiB, or 16 MiB as .gz."""
    path = Path(source).expanduser()
    return path.is_file() and path.stat().st_size <= (SMALL_FILE // 4 if path.suffix == ".gz" else SMALL_FILE)


def _check_groups(name: str, groups: Iterable[Group], corpus: Records[Passage] | None, complete: bool) -> MissingCounts:
    rows = negatives = scores = 0
    inline, docids = False, None
    for group in groups:
        if not rows:
            inline = check_first(name, group, corpus).passages is not None
            if not inline and corpus is not None and complete and _is_small(corpus.source):
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
    return MissingCounts(rows, negatives, scores)
