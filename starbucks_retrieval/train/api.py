"""Training from flags to a model folder."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.files import write_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.plan import TrainPlan, plan_training
from starbucks_retrieval.trainer import CACHE, check_resume_config, locked_output_dir
from starbucks_retrieval.trainer.distributed import first_process
from starbucks_retrieval.trainer.settings import fixed_settings, parse_settings, recipe_of, rows_per_step

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.train.distil import TeacherMap
    from starbucks_retrieval.train.teacher import Teacher
    from starbucks_retrieval.train.trainer import StarbucksTrainer

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
        plan = plan_training(arguments, settings)
        with _data_cache(plan) as cache:
            return _train(plan, resume, cache)


@contextlib.contextmanager
def _data_cache(plan: TrainPlan) -> Iterator[Path]:
    """Yield the folder in which the processes of one machine share the data that the first of them reads."""
    cache = plan.output / f"{CACHE}{os.environ.get('GROUP_RANK', 0)}"
    try:
        yield cache
    finally:
        if plan.settings.local_process_index == 0:
            shutil.rmtree(cache, ignore_errors=True)


def _train(plan: TrainPlan, resume: str | None, cache: Path) -> dict[str, Any]:
    import torch
    from transformers import set_seed

    from starbucks_retrieval.train import build
    from starbucks_retrieval.train.distil import record_of
    from starbucks_retrieval.train.teacher import Teacher
    from starbucks_retrieval.train.trainer import StarbucksTrainer, open_dev_set
    from starbucks_retrieval.trainer.trainer import train_and_save

    arguments, settings = plan.arguments, plan.settings
    set_seed(settings.seed)
    options = plan.objective.options
    log.info("objective %s; sizes: %s", arguments.objective, plan.objective.sizes)
    score = "cosine" if options.normalize else "dot product"
    log.info("pooling %s, %s, temperature %g", plan.config.pooling, score, options.temperature)
    dev = open_dev_set(plan)
    teacher: tuple[Teacher, TeacherMap] | None = None

    def record(_: Any) -> None:
        taught = {"teacher": record_of(*teacher)} if teacher else {}
        _write_record(plan, taught, trainer.state.log_history)

    def card(done: Any) -> None:
        _write_card(plan, trainer, len(data), shares, bool(done))

    data = build.training_set(plan, cache)
    with build.unsharded_loading(settings):
        encoder, start = build.load_encoder(plan, data, bool(resume))
        anchor = build.load_anchor(plan, encoder, start)
        taught = Teacher.load(plan.teacher, plan.lengths) if plan.teacher else None
        guide = Teacher.load(plan.guide, plan.lengths) if plan.guide else None
    first_process(lambda: _check_resumed(plan, len(data), {"teacher": taught, "guide": guide}, bool(resume)))
    if taught is not None and anchor is not None:
        teacher = taught, build.teacher_map(plan, data, taught, anchor, bool(resume))
    block = rows_per_step(settings) if arguments.same_source_batches else 0
    mixture = data.mixture(arguments.sampling_exponent, block)
    shares = _shares(arguments.collections, mixture.shares.tolist())
    trainer = StarbucksTrainer(
        model=build.training_module(plan, encoder, anchor, teacher, guide),
        args=settings,
        train_dataset=data,
        data_collator=build.collator(plan, encoder, taught, guide),
        mixture=mixture,
        dev=dev,
        projection_learning_rate=arguments.projection_learning_rate,
    )
    torch.manual_seed(settings.seed + settings.process_index)  # dropout differs between processes
    result = train_and_save(trainer, resume, record, card)
    _tell_best_step(trainer.state, settings)
    return {
        "output_dir": str(plan.output),
        "objective": arguments.objective,
        "sizes": str(plan.objective.sizes),
        "steps": trainer.state.global_step,
        "queries": len(data),
        "seconds": round(result.metrics["train_runtime"], 1),
        "loss": result.training_loss,
        "dev": _last_scores(trainer.state.log_history),
    }


def _write_record(plan: TrainPlan, taught: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
    """Write training.json: all flags and versions, what maps and teachers were fitted from, and the log."""
    from starbucks_retrieval.train import build

    flags = {"train": dataclasses.asdict(plan.arguments), "transformers": plan.settings.to_dict()}
    write_json(
        plan.output / "training.json", {**describe(flags), **build.fit_record(plan), **taught, "history": history}
    )


def _write_card(plan: TrainPlan, trainer: StarbucksTrainer, rows: int, shares: str, done: bool) -> None:
    """Write the model card; at the end of a run with the log up to the step whose weights are kept."""
    from starbucks_retrieval.train.save import write_card

    state, history = trainer.state, trainer.state.log_history
    if done:
        history = [entry for entry in history if entry.get("step", 0) <= _kept_step(state, plan.settings)]
    recipe = _recipe(plan, rows, state.global_step, shares)
    write_card(plan, trainer.model, recipe, history)


def _check_resumed(plan: TrainPlan, rows: int, models: Mapping[str, Teacher | None], resumes: bool) -> None:
    """Compare the flags, the number of rows and the weights of other models with those of the run to resume."""
    ours = {name: value for name, value in dataclasses.asdict(plan.arguments).items() if name not in _FREE}
    configuration = ours | fixed_settings(plan.settings) | {"training queries": rows}
    configuration |= {name: one.fingerprint for name, one in models.items() if one is not None}
    check_resume_config(plan.output, configuration, resumes, plan.arguments.override)


def _shares(collections: Sequence[str], shares: Sequence[float]) -> str:
    """Return the share of each of several data sets in the training rows."""
    if len(shares) < 2:
        return ""
    text = ", ".join(f"{Path(name).name} {share:.1%}" for name, share in zip(collections, shares))
    log.info("shares of the training rows: %s", text)
    return text


def _last_scores(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the dev scores that were logged last."""
    scored = [entry for entry in history if any(key.startswith("eval_") for key in entry)]
    return {key: value for key, value in (scored or [{}])[-1].items() if key.startswith("eval_")}


def _recipe(plan: TrainPlan, rows: int, steps: int, shares: str) -> dict[str, Any]:
    """Return the entries of the model card about the training; `shares` is empty for one data set."""
    arguments, unit = plan.arguments, "queries" if plan.labelled else "texts"
    return {
        f"training {unit}": rows,
        "steps": steps,
        f"{unit} per step": rows_per_step(plan.settings),
        **({"passages per query": plan.group_size} if plan.labelled else {}),
        "dropout": "the backbone's" if arguments.dropout is None else arguments.dropout,
        **({"anchor weight": plan.anchor_weight} if plan.labelled else {}),
        **({"shares of the data": shares} if shares else {}),
        **({"projections": plan.projections} if plan.projections != "none" else {}),
        **({"teacher": plan.teacher.name} if plan.teacher else {}),
        **({"LoRA": f"rank {arguments.lora_r}, alpha {arguments.lora_alpha}"} if arguments.lora else {}),
        **recipe_of(plan.settings),
    }


def _kept_step(state: Any, settings: TrainingArguments) -> int:
    """Return the step whose weights a finished run keeps: that of the best checkpoint, else the last one."""
    best = state.best_model_checkpoint if settings.load_best_model_at_end else None
    return int(Path(best).name.rpartition("-")[2]) if best else int(state.global_step)


def _tell_best_step(state: Any, settings: TrainingArguments) -> None:
    """Say it if the dev set was best after a step that no checkpoint kept."""
    best = state.best_global_step
    if settings.load_best_model_at_end and best and best != _kept_step(state, settings):
        log.info(
            "dev %s was best after step %d (%.4f), the model is that of step %d; --save_steps %d would keep more of them",
            *(settings.metric_for_best_model.removeprefix("eval_"), best, state.best_metric),
            *(_kept_step(state, settings), state.eval_steps),
        )
