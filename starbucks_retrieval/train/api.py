"""Training from flags to a model folder."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.files import write_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.plan import (
    TrainPlan,
    count_texts,
    open_collection,
    open_dev_set,
    open_texts,
    plan_training,
)
from starbucks_retrieval.trainer import CACHE, check_resume_config, locked_output_dir
from starbucks_retrieval.trainer.distributed import first_process
from starbucks_retrieval.trainer.settings import fixed_settings, parse_settings, recipe_of, rows_per_step

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.train.data import Collator, TrainingSet
    from starbucks_retrieval.train.module import TrainingModule
    from starbucks_retrieval.train.texts import TextCollator, TextSet

log = logging.getLogger(__name__)

# Flags that may change when a run is resumed.
_FREE = ("overwrite_output_dir", "override", "eval_max_passages", "max_tokens_per_chunk", "dry_run", "print_config")


def defaults_of(arguments: TrainArguments) -> dict[str, Any]:
    """Return the defaults of this stage for transformers' TrainingArguments.

    Args:
        arguments: Flags of `train`. A dev set is scored at the start and while training runs, and the checkpoint that
            is best in its first measure is loaded at the end.

    Returns:
        Name → value; they override the defaults that all stages that train share.
    """
    defaults: dict[str, Any] = {"warmup_steps": 0.1}
    if arguments.eval_dataset_path:
        defaults |= {
            "eval_strategy": "steps",
            "eval_on_start": True,
            "load_best_model_at_end": True,
            "metric_for_best_model": arguments.dev_measures.split()[0],
            "greater_is_better": True,
        }
    return defaults


def settings_of(argv: list[str], arguments: TrainArguments, common: CommonArguments) -> TrainingArguments:
    """Parse transformers' TrainingArguments over the defaults of this stage.

    Args:
        argv: The words of the command line that are not ours.
        arguments: Flags of `train`; `warmup_ratio`, if given, replaces the default of `warmup_steps`.
        common: The flags of every command; the seed comes from them.

    Raises:
        UserError: As `parse_settings`.
    """
    ratio = {} if arguments.warmup_ratio is None else {"warmup_steps": arguments.warmup_ratio}
    return parse_settings(argv, common, defaults_of(arguments) | ratio, TrainArguments)


def train(arguments: TrainArguments, settings: TrainingArguments) -> dict[str, Any]:
    """Train an encoder, and write the model folder `settings.output_dir`.

    Args:
        arguments: Our flags.
        settings: transformers' settings, from `settings_of`.

    Returns:
        JSON-ready figures about the run: steps, seconds, loss, dev scores.

    Raises:
        UserError: The data are bad, options contradict each other, a size does not fit the backbone, the loss becomes
            NaN, or the output folder holds other files.
    """
    with locked_output_dir(settings, arguments.overwrite_output_dir) as resume:
        return _train(arguments, settings, resume)


def _train(arguments: TrainArguments, settings: TrainingArguments, resume: str | None) -> dict[str, Any]:
    import torch
    from transformers import set_seed

    from starbucks_retrieval.train.save import write_card
    from starbucks_retrieval.train.trainer import StarbucksTrainer
    from starbucks_retrieval.trainer.trainer import train_and_save

    output = Path(str(settings.output_dir))
    set_seed(settings.seed)
    plan = plan_training(arguments)
    options = plan.objective.options
    log.info("objective %s; sizes: %s", arguments.objective, plan.objective.sizes)
    score = "cosine" if options.normalize else "dot product"
    log.info("pooling %s, %s, temperature %g", plan.config.pooling, score, options.temperature)
    dev = open_dev_set(arguments, settings.seed)
    # The processes of one machine share the data that its first process reads.
    cache = output / f"{CACHE}{os.environ.get('GROUP_RANK', 0)}"

    def record(_: Any) -> None:
        full = {"train": dataclasses.asdict(arguments), "transformers": settings.to_dict()}
        write_json(output / "training.json", {**describe(full), "history": trainer.state.log_history})

    def card(_: Any) -> None:
        recipe = {
            ("training queries" if plan.labelled else "training texts"): len(data),
            "steps": trainer.state.global_step,
            ("queries per step" if plan.labelled else "texts per step"): rows_per_step(settings),
            **({"passages per query": plan.group_size} if plan.labelled else {}),
            "dropout": "the backbone's" if arguments.dropout is None else arguments.dropout,
            **({"anchor weight": plan.anchor_weight} if plan.labelled else {}),
            **({"projections": plan.projections} if plan.projections != "none" else {}),
            **({"LoRA": f"rank {arguments.lora_r}, alpha {arguments.lora_alpha}"} if arguments.lora else {}),
            **recipe_of(settings),
        }
        write_card(output, arguments, plan.lengths, trainer.model, recipe, trainer.state.log_history)

    try:
        data = _training_set(arguments, settings, plan, cache)
        with _unsharded_loading(settings):
            encoder = _load_encoder(arguments, settings, plan, data, bool(resume))
        ours = {name: value for name, value in dataclasses.asdict(arguments).items() if name not in _FREE}
        configuration = ours | fixed_settings(settings) | {"training queries": len(data)}
        first_process(lambda: check_resume_config(output, configuration, bool(resume), arguments.override))
        trainer = StarbucksTrainer(
            model=_training_module(arguments, settings, plan, encoder),
            args=settings,
            train_dataset=data,
            data_collator=_collator(arguments, plan, encoder),
            dev=dev,
            projection_learning_rate=arguments.projection_learning_rate,
        )
        torch.manual_seed(settings.seed + settings.process_index)  # dropout differs between processes
        result = train_and_save(trainer, resume, record, card)
    finally:
        if settings.local_process_index == 0:
            shutil.rmtree(cache, ignore_errors=True)
    dev_scores = [entry for entry in trainer.state.log_history if any(key.startswith("eval_") for key in entry)]
    return {
        "output_dir": str(output),
        "objective": arguments.objective,
        "sizes": str(plan.objective.sizes),
        "steps": trainer.state.global_step,
        "queries": len(data),
        "seconds": round(result.metrics["train_runtime"], 1),
        "loss": result.training_loss,
        "dev": {key: value for key, value in (dev_scores or [{}])[-1].items() if key.startswith("eval_")},
    }


@contextlib.contextmanager
def _unsharded_loading(settings: TrainingArguments) -> Iterator[None]:
    """Load whole weights under ZeRO 3, which would shard each weight when it is created; its engine shards them later."""
    if not settings.deepspeed:
        yield
        return
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    # Without this setting ZeRO 3 saves its shards only, and no model folder.
    zero = settings.hf_deepspeed_config.config.setdefault("zero_optimization", {})
    zero["stage3_gather_16bit_weights_on_model_save"] = True
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(settings.hf_deepspeed_config)


def _load_encoder(
    arguments: TrainArguments, settings: TrainingArguments, plan: TrainPlan, data: TrainingSet | TextSet, resume: bool
) -> NestedEncoder:
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.train.projections import new_projections

    depth = None if plan.objective.depth == plan.model.num_layers else max(1, plan.objective.depth)
    if depth is not None:
        log.info("layers above %d are not loaded: no size uses them", depth)
    name = arguments.model_name_or_path
    encoder = NestedEncoder.from_pretrained(name, layers=depth, device="cpu", dropout=arguments.dropout)
    layers, found = plan.config.projected_layers, encoder.projections
    encoder.projections = None
    if plan.projections == "kept":
        assert found is not None
        encoder.projections = found.subset(layers)
    elif plan.projections != "none":

        def whole() -> NestedEncoder:
            loaded = NestedEncoder.from_pretrained(name, device=settings.device)
            loaded.config = plan.config
            return loaded

        output = Path(str(settings.output_dir))
        encoder.projections = new_projections(
            plan.projections, whole, layers, data.sample_texts, plan.lengths, output, resume, settings.seed
        )
    if set(model_layers := plan.model.config.projected_layers) - set(layers) and plan.projections == "kept":
        left = ", ".join(str(layer) for layer in model_layers if layer not in layers)
        log.warning("the maps of the layers %s are dropped: no size of this run uses them", left)
    encoder.config = plan.config
    if plan.objective.depth == 0:
        encoder.backbone.requires_grad_(False)  # only the token table is trained
    return encoder


def _training_module(
    arguments: TrainArguments, settings: TrainingArguments, plan: TrainPlan, encoder: NestedEncoder
) -> TrainingModule:
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.train.module import Chunks, TrainingModule
    from starbucks_retrieval.train.projections import frozen_copy
    from starbucks_retrieval.train.texts import DistilModule

    anchor = None
    if plan.anchor_weight > 0 or not plan.labelled:
        layers = plan.objective.largest.layer if plan.labelled else None
        anchor = NestedEncoder.from_pretrained(arguments.model_name_or_path, layers=layers, device="cpu")
        anchor.config, anchor.projections = encoder.config, frozen_copy(encoder.projections)
    chunks = Chunks(
        arguments.max_tokens_per_chunk, arguments.gc_q_chunk_size, arguments.gc_p_chunk_size, arguments.grad_cache
    )
    cross_device = arguments.negatives_x_device
    kind = TrainingModule if plan.labelled else DistilModule
    module = kind(encoder, plan.objective, chunks, anchor, plan.anchor_weight, cross_device)
    if arguments.lora:
        from starbucks_retrieval.train.save import add_lora

        add_lora(module, arguments)
    if settings.torch_compile:
        # Layers are compiled one by one; hooks, chunks of many lengths and the loss are not compiled.
        encoder.compile_layers()
        settings.torch_compile = False
    return module


def _collator(arguments: TrainArguments, plan: TrainPlan, encoder: NestedEncoder) -> Collator | TextCollator:
    from starbucks_retrieval.train.data import Collator
    from starbucks_retrieval.train.texts import TextCollator

    return (
        Collator(encoder, arguments.false_negatives == "mask") if plan.labelled else TextCollator(encoder, plan.lengths)
    )


def _training_set(
    arguments: TrainArguments, settings: TrainingArguments, plan: TrainPlan, cache: Path
) -> TrainingSet | TextSet:
    from starbucks_retrieval.train.data import TrainingSet
    from starbucks_retrieval.train.texts import TextSet

    if not plan.labelled:
        with settings.main_process_first(local=True, desc="reading the texts"):
            if settings.local_process_index == 0:
                sources = open_texts(arguments, plan.config)
                TextSet.write(sources, count_texts(arguments, settings, plan), cache)
            return TextSet(cache)
    config = plan.config
    affixes = (config.passage_field_separator, config.query_prefix, config.passage_prefix)
    data = TrainingSet(plan.group_size, settings.seed, *affixes, with_scores=plan.with_scores)
    with settings.main_process_first(local=True, desc="reading the training data"):
        for name in arguments.collections:
            rows, corpus = open_collection(name, arguments, plan.scored_pairs)
            data.add(name, rows, corpus, cache, plan.scored_pairs, read=settings.local_process_index == 0)
    return data
