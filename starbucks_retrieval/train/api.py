"""train(): from flags to a model folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import describe, write_json
from starbucks_retrieval.texts import open_corpus, open_groups
from starbucks_retrieval.train.arguments import TrainArguments

if TYPE_CHECKING:
    from transformers import TrainingArguments

log = logging.getLogger(__name__)
_CACHE = "data-cache-"


def hugging_face_arguments(argv: list[str], arguments: TrainArguments, seed: int, show_bar: bool) -> TrainingArguments:
    """transformers' own TrainingArguments from the flags that are not ours, with our defaults."""
    import torch
    from transformers import HfArgumentParser, TrainingArguments

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise UserError(message, "see train --help, and transformers' TrainingArguments for its flags")

    parser = Parser(TrainingArguments, allow_abbrev=False)
    defaults: dict[str, Any] = {
        "warmup_steps": 0.1 if arguments.warmup_ratio is None else arguments.warmup_ratio,
        "logging_steps": 10,
        "save_total_limit": 2,
        "report_to": "none",
        "use_cpu": not torch.accelerator.is_available(),  # --bf16 is refused on a CPU that was not asked for
        "seed": seed,
        "data_seed": seed,
        "disable_tqdm": not show_bar,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "label_names": [],
    }
    if arguments.eval_dataset_path:
        defaults |= {
            "eval_strategy": "steps",
            "eval_on_start": True,
            "load_best_model_at_end": True,
            "metric_for_best_model": arguments.eval_measures.split()[0],
            "greater_is_better": True,
        }
    parser.set_defaults(**defaults)
    try:
        (parsed,) = parser.parse_args_into_dataclasses(args=argv)
    except ValueError as error:
        raise UserError(" ".join(str(error).split()), "see transformers' TrainingArguments") from None
    if not parsed.output_dir:
        raise UserError("--output_dir is missing", "name the folder for the model")
    return parsed


def train(arguments: TrainArguments, settings: TrainingArguments) -> dict[str, Any]:
    """Train, and write the model folder that `settings.output_dir` names. Returns figures for a summary.

    Raises UserError for bad data, a ladder the backbone lacks, or an output folder that holds something else.
    """
    from transformers import set_seed

    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.models.encoder import token_limit
    from starbucks_retrieval.objectives.srl import teacher_of
    from starbucks_retrieval.train.card import write_card
    from starbucks_retrieval.train.collate import Collator
    from starbucks_retrieval.train.data import TrainingSet
    from starbucks_retrieval.train.dev import DevSet
    from starbucks_retrieval.train.module import SRLModule
    from starbucks_retrieval.train.trainer import SRLTrainer

    output = Path(str(settings.output_dir))
    resume = _claim(output, settings.resume_from_checkpoint, arguments.overwrite_output_dir)
    set_seed(settings.seed)
    encoder = NestedEncoder.from_pretrained(arguments.model_name_or_path, device="cpu", dropout=arguments.dropout)
    sizes = arguments.ladder(encoder.num_layers, encoder.hidden_size, encoder.config.sizes)
    teacher_of(sizes)
    options = arguments.options(encoder.config)
    encoder.config = arguments.encoder_config(encoder.config, sizes, options, token_limit(encoder))
    for is_query in (True, False):
        encoder.max_length(is_query)
    log.info("sizes: %s", sizes)
    log.info(
        "pooling %s, %s, temperature %g, %s of the sizes, KL weight %g over %s",
        encoder.config.pooling,
        "cosine" if options.normalize else "dot product",
        options.temperature,
        options.reduction,
        options.kl_weight * options.kl_multiplier,
        options.kl_space,
    )

    dev = None
    if arguments.eval_dataset_path:
        dev = DevSet(
            arguments.eval_dataset_path,
            arguments.eval_dataset_split,
            arguments.eval_measures,
            arguments.eval_max_passages,
            settings.seed,
        )
    cache = output / f"{_CACHE}{settings.process_index}"
    try:
        data = TrainingSet(
            arguments.train_group_size,
            settings.seed,
            encoder.config.passage_field_separator,
            encoder.config.query_prefix,
            encoder.config.passage_prefix,
        )
        for name in arguments.collections:
            data.add(name, *_open(name, arguments), folder=cache)
        anchor = None
        if arguments.anchor_weight > 0:
            anchor = NestedEncoder.from_pretrained(arguments.model_name_or_path, layers=sizes.full.layer, device="cpu")
            anchor.config = encoder.config
        module = SRLModule(encoder, sizes, options, arguments.max_tokens_per_chunk, anchor, arguments.anchor_weight)
        trainer = SRLTrainer(
            model=module,
            args=settings,
            train_dataset=data,
            data_collator=Collator(encoder, arguments.false_negatives == "mask"),
            dev=dev,
        )
        done = trainer.train(resume_from_checkpoint=resume)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    trainer.save_model()
    if settings.process_index == 0:
        recipe = _recipe(arguments, settings, len(data), trainer.state.global_step)
        history = trainer.state.log_history
        write_card(output, encoder, arguments.model_name_or_path, options, arguments.collections, recipe, history)
        configuration = {"train": dataclasses.asdict(arguments), "transformers": settings.to_dict()}
        write_json(output / "training.json", {**describe(configuration), "history": history})
    scores = [entry for entry in trainer.state.log_history if any(key.startswith("eval_") for key in entry)]
    return {
        "output_dir": str(output),
        "sizes": str(sizes),
        "steps": trainer.state.global_step,
        "queries": len(data),
        "seconds": round(done.metrics["train_runtime"], 1),
        "loss": done.training_loss,
        "dev": {key: value for key, value in (scores[-1] if scores else {}).items() if key.startswith("eval_")},
    }


def _open(name: str, arguments: TrainArguments) -> tuple[Any, Any]:
    groups = open_groups(name, config=arguments.dataset_config, split=arguments.dataset_split)
    named = arguments.corpus_path or arguments.corpus_name
    if named:
        return groups, open_corpus(named)
    # A BEIR folder is its own corpus.
    return groups, open_corpus(name) if Path(name).is_dir() else None


def _claim(output: Path, resume: Any, overwrite: bool) -> str | None:
    """Make sure that the output folder is ours to write. Returns what to resume from."""
    if isinstance(resume, str) and resume.lower() in ("true", "false"):
        resume = resume.lower() == "true"
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file", "name a folder with --output_dir")
    checkpoints = _whole_checkpoints(output)
    if isinstance(resume, str) and Path(resume).resolve() not in [path.resolve() for path in checkpoints]:
        names = ", ".join(path.name for path in checkpoints) or "none"
        raise UserError(f"{resume} is no whole checkpoint of this run", f"whole ones in {output}: {names}")
    if resume is True and not checkpoints:
        log.info("no checkpoint in %s yet: starting from the beginning", output)
    foreign = [path for path in output.iterdir() if not path.name.startswith(_CACHE)] if output.exists() else []
    if foreign and not resume and not overwrite:
        raise UserError(
            f"{output} is not empty",
            "continue with --resume_from_checkpoint true, start over with --overwrite_output_dir, or name another folder",
        )
    output.mkdir(parents=True, exist_ok=True)
    return str(checkpoints[-1]) if resume is True and checkpoints else resume or None


def _whole_checkpoints(output: Path) -> list[Path]:
    """Checkpoints in the order of their steps, without one that a kill left half-written: the trainer's state is last."""
    found = []
    for path in output.glob("checkpoint-*/trainer_state.json"):
        with contextlib.suppress(ValueError):
            found.append((json.loads(path.read_text())["global_step"], path.parent))
    return [path for _, path in sorted(found)]


def _recipe(arguments: TrainArguments, settings: TrainingArguments, queries: int, steps: int) -> dict[str, Any]:
    return {
        "training queries": queries,
        "steps": steps,
        "queries per step": settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size,
        "passages per query": arguments.train_group_size,
        "learning rate": settings.learning_rate,
        "schedule": f"{settings.lr_scheduler_type.value}, warm-up {settings.warmup_steps:g}",
        "weight decay": settings.weight_decay,
        "dropout": "the backbone's" if arguments.dropout is None else arguments.dropout,
        "anchor weight": arguments.anchor_weight,
        "precision": "bf16" if settings.bf16 else "fp16" if settings.fp16 else "fp32",
        "seed": settings.seed,
    }
