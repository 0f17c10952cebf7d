"""The two ways in which the demonstration makes a model for all sizes: fitting without labels, and training."""

from __future__ import annotations

import itertools
import logging
import shlex
import statistics
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import CommonArguments, parse_flags
from starbucks_retrieval.cli.words import command, program
from starbucks_retrieval.data import open_groups
from starbucks_retrieval.demo import Settings
from starbucks_retrieval.demo.pipeline import Backbone

log = logging.getLogger(__name__)


def fit_flags(folder: Path, data: Path, base: Backbone, settings: Settings) -> dict[str, Any]:
    """Return the flags of `fit`: projections of the passages and the training queries of `data`, without their labels.

    Args:
        folder: The model folder to write.
        data: The collection that `build_corpus` wrote.
        base: The model to fit, and the sizes that the folder stores.
        settings: Tokens of queries and passages.
    """
    return {
        "model_name_or_path": str(base.path),
        "dataset_path": [str(data)],
        "query_path": [str(data)],
        "query_split": "train",
        "sizes": str(base.sizes),
        "query_max_len": settings.query_max_len,
        "passage_max_len": settings.passage_max_len,
        "override": True,
        "output_dir": str(folder),
        "max_texts": settings.fit_texts,
        "dtype": "auto",
    }


def fit_model(flags: dict[str, Any]) -> dict[str, Any]:
    """Fit a model with the flags of `fit_flags`, and return the figures of `fit`."""
    from starbucks_retrieval.fit import FitArguments, fit

    return fit(FitArguments(**flags))


def steps_for(settings: Settings, speed: dict[str, Any], full: str, tokens_per_query: float) -> int:
    """Return the number of training steps that fit into `settings.train_seconds`.

    Args:
        settings: The time limit, the bounds of the number, and the cost of a step relative to encoding.
        speed: What `measure_speed` returned.
        full: The full size, whose speed is used.
        tokens_per_query: The mean length of a query.
    """
    tokens = settings.batch_queries * (speed["tokens_per_text"] + tokens_per_query)
    seconds = settings.step_over_encode * tokens / speed["tokens_per_second"][full] + settings.optimizer_seconds
    return max(settings.min_steps, min(settings.max_steps, int(settings.train_seconds / seconds)))


def train_flags(folder: Path, data: Path, base: Backbone, settings: Settings, speed: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of `train`: the train split of `data` with in-batch negatives.

    Args:
        folder: The model folder to write; it must be new.
        data: The collection that `build_corpus` wrote.
        base: The model to start from, and the sizes to train.
        settings: Time limit, batch size, learning rate and other settings of the training.
        speed: What `measure_speed` returned. It sets the number of steps and whether to train in bf16.
    """
    words = [len(group.query.split()) for group in itertools.islice(open_groups(str(data)), 200)]
    tokens_per_query = 1.4 * statistics.mean(words) + 2  # word pieces, [CLS], [SEP]
    steps = steps_for(settings, speed, str(base.sizes[-1]), tokens_per_query)
    shared = ("query_max_len", "passage_max_len", "dropout", "anchor_weight", "learning_rate", "seed")
    flags: dict[str, Any] = {
        "model_name_or_path": str(base.path),
        "dataset_path": str(data),
        "train_group_size": 1,
        "sizes": str(base.sizes),
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": settings.batch_queries,
        "save_strategy": "no",  # a few minutes need no checkpoints
        "logging_steps": max(1, steps // 4),
        "bf16": speed["precision"] == "bf16",
        **{name: getattr(settings, name) for name in shared},
    }
    if settings.dev_passages:
        flags |= {"eval_dataset_path": str(data), "eval_max_passages": settings.dev_passages}
        flags |= {"eval_steps": steps, "load_best_model_at_end": "false"}
    return flags


def train_model(flags: dict[str, Any]) -> dict[str, Any]:
    """Train a model.

    Args:
        flags: The flags of `train_flags`.

    Returns:
        The figures of `train`, and `planned_steps`, the number of steps that fit into the time limit.
    """
    from starbucks_retrieval.models.loading import quiet_transformers
    from starbucks_retrieval.train import TrainArguments, train
    from starbucks_retrieval.train.api import settings_of

    argv = shlex.split(command("train", flags))[len(program()) + 1 :]
    (args, common), rest = parse_flags([TrainArguments, CommonArguments], argv, "starbucks train", "", extra=True)
    common.quiet = not log.isEnabledFor(logging.INFO)
    with quiet_transformers():  # no warnings about a model that is trained on purpose
        return {**train(args, settings_of(rest, args, common)), "planned_steps": flags["max_steps"]}
