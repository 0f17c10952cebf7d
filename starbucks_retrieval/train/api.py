"""train(): from flags to a model folder."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments, format_number
from starbucks_retrieval.data import open_corpus, open_groups, open_pairs
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.build import build_objective, build_options
from starbucks_retrieval.trainer.checkpoints import CACHE, check_resume_config, locked_output_dir
from starbucks_retrieval.trainer.distributed import first_process
from starbucks_retrieval.trainer.settings import fixed_settings, parse_settings

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.losses.base import Objective
    from starbucks_retrieval.models import EncoderConfig, NestedEncoder
    from starbucks_retrieval.train.data import TrainingSet
    from starbucks_retrieval.train.dev import DevSet

log = logging.getLogger(__name__)

_FREE = (
    "overwrite_output_dir",
    "override",
    "quiet",
    "eval_max_passages",
    "max_tokens_per_chunk",
    "dry_run",
    "print_config",
)


def defaults_of(arguments: TrainArguments) -> dict[str, Any]:
    """Our defaults for transformers' TrainingArguments, beside those that all stages share."""
    defaults: dict[str, Any] = {"warmup_steps": 0.1}
    if arguments.eval_dataset_path:
        defaults |= {
            "eval_strategy": "steps",
            "eval_on_start": True,
            "load_best_model_at_end": True,
            "metric_for_best_model": _measures(arguments).split()[0],
            "greater_is_better": True,
        }
    return defaults


def settings_of(argv: list[str], arguments: TrainArguments, common: CommonArguments) -> TrainingArguments:
    """transformers' TrainingArguments from the flags that are not ours, with our defaults."""
    ratio = {} if arguments.warmup_ratio is None else {"warmup_steps": arguments.warmup_ratio}
    return parse_settings(argv, common, defaults_of(arguments) | ratio)


def train(arguments: TrainArguments, settings: TrainingArguments) -> dict[str, Any]:
    """Train, and write the model folder that `settings.output_dir` names. Returns figures for a summary.

    Raises UserError for bad data, contradicting options, a ladder the backbone lacks, or an output folder that holds
    something else.
    """
    with locked_output_dir(
        Path(str(settings.output_dir)), settings.resume_from_checkpoint, arguments.overwrite_output_dir
    ) as resume:
        return _train(arguments, settings, resume)


def _train(arguments: TrainArguments, settings: TrainingArguments, resume: str | None) -> dict[str, Any]:
    import torch
    from transformers import set_seed

    from starbucks_retrieval.train.card import write_card
    from starbucks_retrieval.train.data import Collator
    from starbucks_retrieval.train.trainer import StarbucksTrainer
    from starbucks_retrieval.trainer.trainer import train_and_save

    output = Path(str(settings.output_dir))
    set_seed(settings.seed)
    pairs = are_scored_pairs(arguments)
    with _whole_weights(settings):
        encoder, objective = _encoder_and_objective(arguments, pairs)
    options = objective.options
    log.info("objective %s; sizes: %s", arguments.objective, objective.sizes)
    log.info(
        "pooling %s, %s, temperature %g",
        encoder.config.pooling,
        "cosine" if options.normalize else "dot product",
        options.temperature,
    )
    group = group_size(arguments, pairs)
    dev = dev_set(arguments, settings.seed)
    # The processes of one machine share what its first one read.
    cache = output / f"{CACHE}{os.environ.get('GROUP_RANK', 0)}"

    def record(_: Any) -> None:
        full = {"train": dataclasses.asdict(arguments), "transformers": settings.to_dict()}
        write_json(output / "training.json", {**describe(full), "history": trainer.state.log_history})

    def card(_: Any) -> None:
        recipe = _recipe(arguments, settings, len(data), group, trainer.state.global_step)
        write_card(output, encoder, arguments, options, recipe, trainer.state.log_history)

    try:
        data = _training_set(arguments, settings, encoder.config, group, pairs, options.distil_weight > 0, cache)
        configuration = _configuration(arguments, settings, len(data))
        first_process(lambda: check_resume_config(output, configuration, bool(resume), arguments.override))
        module = _module(arguments, settings, encoder, objective)
        trainer = StarbucksTrainer(
            model=module,
            args=settings,
            train_dataset=data,
            data_collator=Collator(encoder, arguments.false_negatives == "mask"),
            dev=dev,
        )
        torch.manual_seed(settings.seed + settings.process_index)  # dropout differs between processes
        done = train_and_save(trainer, resume, record, card)
    finally:
        if settings.local_process_index == 0:
            shutil.rmtree(cache, ignore_errors=True)
    scores = [entry for entry in trainer.state.log_history if any(key.startswith("eval_") for key in entry)]
    return {
        "output_dir": str(output),
        "objective": arguments.objective,
        "sizes": str(objective.sizes),
        "steps": trainer.state.global_step,
        "queries": len(data),
        "seconds": round(done.metrics["train_runtime"], 1),
        "loss": done.training_loss,
        "dev": {key: value for key, value in (scores[-1] if scores else {}).items() if key.startswith("eval_")},
    }


@contextlib.contextmanager
def _whole_weights(settings: TrainingArguments) -> Iterator[None]:
    """Load models whole under ZeRO 3, which would cut each weight up as it is made; the engine does so later."""
    if not settings.deepspeed:
        yield
        return
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    # Without it ZeRO 3 would save its own shards only, and no model folder.
    zero = settings.hf_deepspeed_config.config.setdefault("zero_optimization", {})
    zero["stage3_gather_16bit_weights_on_model_save"] = True
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(settings.hf_deepspeed_config)


def _encoder_and_objective(arguments: TrainArguments, pairs: bool) -> tuple[NestedEncoder, Objective]:
    from starbucks_retrieval.models import NestedEncoder

    def load(layers: int | None = None) -> NestedEncoder:
        name = arguments.model_name_or_path
        return NestedEncoder.from_pretrained(name, layers=layers, device="cpu", dropout=arguments.dropout)

    def build(encoder: NestedEncoder) -> Objective:
        options = build_options(arguments, encoder.config, encoder.num_layers, pairs)
        return build_objective(arguments, sizes, Size(encoder.num_layers, encoder.hidden_size), options)

    encoder = load()
    sizes = arguments.model_sizes(encoder.num_layers, encoder.hidden_size, encoder.config.sizes)
    objective = build(encoder)
    if objective.depth < encoder.num_layers:
        log.info("layers above %d are left out: no size uses them", objective.depth)
        encoder = load(objective.depth)
        objective = build(encoder)
    encoder.config = arguments.encoder_config(encoder.config, sizes, objective.options, encoder.token_limit)
    for is_query in (True, False):
        encoder.max_length(is_query)
    return encoder, objective


def _module(
    arguments: TrainArguments, settings: TrainingArguments, encoder: NestedEncoder, objective: Objective
) -> Any:
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.train.module import Chunks, TrainingModule

    anchor = None
    if arguments.anchor_weight > 0:
        anchor = NestedEncoder.from_pretrained(
            arguments.model_name_or_path, layers=objective.largest.layer, device="cpu"
        )
        anchor.config = encoder.config
    chunks = Chunks(
        arguments.max_tokens_per_chunk, arguments.gc_q_chunk_size, arguments.gc_p_chunk_size, arguments.grad_cache
    )
    module = TrainingModule(encoder, objective, chunks, anchor, arguments.anchor_weight, arguments.negatives_x_device)
    if arguments.lora:
        from starbucks_retrieval.train.save import add_lora

        lora = (arguments.lora_r, arguments.lora_alpha, arguments.lora_dropout, arguments.lora_target_modules)
        add_lora(encoder.backbone, *lora)
        module.lora_scale = arguments.lora_alpha / arguments.lora_r
    if settings.torch_compile:
        # Each layer by itself: hooks, chunks of many lengths and the loss stay outside.
        encoder.compile_layers()
        settings.torch_compile = False
    return module


def _training_set(
    arguments: TrainArguments,
    settings: TrainingArguments,
    config: EncoderConfig,
    group: int,
    pairs: bool,
    with_scores: bool,
    cache: Path,
) -> TrainingSet:
    from starbucks_retrieval.train.data import TrainingSet

    affixes = (config.passage_field_separator, config.query_prefix, config.passage_prefix)
    data = TrainingSet(group, settings.seed, *affixes, with_scores=with_scores)
    with settings.main_process_first(local=True, desc="reading the training data"):
        for name in arguments.collections:
            groups, corpus = open_collection(name, arguments, pairs)
            data.add(name, groups, corpus, cache, pairs, read=settings.local_process_index == 0)
    return data


def group_size(arguments: TrainArguments, pairs: bool) -> int:
    """Passages per query."""
    return arguments.train_group_size or (8 if arguments.task == "retrieval" else 1 if pairs else 2)


def open_collection(name: str, arguments: TrainArguments, pairs: bool) -> tuple[Any, Any]:
    """Training rows, and the corpus that they refer to or None."""
    source = {"config": arguments.dataset_config, "split": arguments.dataset_split}
    if pairs:
        return open_pairs(name, **source), None
    groups = open_groups(name, **source)
    named = arguments.corpus_path or arguments.corpus_name
    if named:
        return groups, open_corpus(named)
    # A BEIR folder is its own corpus.
    return groups, open_corpus(name) if Path(name).is_dir() else None


def are_scored_pairs(arguments: TrainArguments) -> bool:
    """Whether the first collection holds scored pairs. Raises UserError when a similarity task has neither kind."""
    if arguments.task != "sts":
        return False
    name = arguments.collections[0]
    source = {"config": arguments.dataset_config, "split": arguments.dataset_split}
    try:
        pairs = list(itertools.islice(open_pairs(name, **source), 1))
    except UserError as error:
        try:
            next(iter(open_groups(name, **source)), None)
        except UserError:
            raise error from None
        return False
    return bool(pairs)


def dev_set(arguments: TrainArguments, seed: int) -> DevSet | None:
    """The dev set that is scored while training. Raises UserError for one that cannot be read or has no such measure."""
    from starbucks_retrieval.train.dev import DevPairs, DevRetrieval

    path, split = arguments.eval_dataset_path, arguments.eval_dataset_split
    if not path:
        return None
    measures = _measures(arguments)
    if arguments.task == "sts":
        if measures != "spearman":
            raise UserError(f"--eval_measures {measures}: similarity is measured by spearman", "drop the flag")
        return DevPairs(path, split)
    return DevRetrieval(path, split, measures, arguments.eval_max_passages, seed)


def _measures(arguments: TrainArguments) -> str:
    return arguments.eval_measures or ("spearman" if arguments.task == "sts" else "nDCG@10 RR@10")


def _configuration(arguments: TrainArguments, settings: TrainingArguments, queries: int) -> dict[str, Any]:
    """What a resumed run must agree in with the run it goes on with."""
    ours = {name: value for name, value in dataclasses.asdict(arguments).items() if name not in _FREE}
    return ours | fixed_settings(settings) | {"training queries": queries}


def _recipe(
    arguments: TrainArguments, settings: TrainingArguments, queries: int, group: int, steps: int
) -> dict[str, Any]:
    return {
        "training queries": queries,
        "steps": steps,
        "queries per step": settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size,
        "passages per query": group,
        "learning rate": settings.learning_rate,
        "schedule": f"{settings.lr_scheduler_type.value}, warm-up {format_number(settings.warmup_steps)}",
        "weight decay": settings.weight_decay,
        "dropout": "the backbone's" if arguments.dropout is None else arguments.dropout,
        "anchor weight": arguments.anchor_weight,
        "precision": "bf16" if settings.bf16 else "fp16" if settings.fp16 else "fp32",
        "processes": settings.world_size,
        **({"LoRA": f"rank {arguments.lora_r}, alpha {arguments.lora_alpha}"} if arguments.lora else {}),
        "seed": settings.seed,
    }
