"""SRL for as many steps as the time allows."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.demo.commands import command
from starbucks_retrieval.demo.settings import Settings
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.texts import open_groups

log = logging.getLogger(__name__)


def steps_for(settings: Settings, speed: dict[str, Any], full: str, tokens_per_query: float) -> int:
    """Training steps that fit into `settings.train_seconds`, judged by the speed of encoding at the full size."""
    tokens = settings.batch_queries * (speed["tokens_per_text"] + tokens_per_query)
    seconds = settings.step_over_encode * tokens / speed["tokens_per_second"][full] + settings.optimizer_seconds
    return max(settings.min_steps, min(settings.max_steps, int(settings.train_seconds / seconds)))


def train_model(
    folder: Path, data: Path, backbone: str, sizes: Sizes, settings: Settings, speed: dict[str, Any]
) -> dict[str, Any]:
    """Train on the train split of `data` with in-batch negatives; write the model into `folder`, which must be new."""
    from starbucks_retrieval.train.api import settings_of, train
    from starbucks_retrieval.train.arguments import TrainArguments

    words = [len(group.query.split()) for group in itertools.islice(open_groups(str(data)), 200)]
    steps = steps_for(settings, speed, str(sizes[-1]), 1.4 * sum(words) / len(words) + 2)  # word pieces, [CLS], [SEP]
    flags: dict[str, Any] = {
        "model_name_or_path": backbone,
        "dataset_path": [str(data)],
        "train_group_size": 1,
        "sizes": str(sizes),
        "query_max_len": settings.query_max_len,
        "passage_max_len": settings.passage_max_len,
        "dropout": settings.dropout,
        "anchor_weight": settings.anchor_weight,
    }
    trainer_flags = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": settings.batch_queries,
        "learning_rate": settings.learning_rate,
        "save_strategy": "no",  # a few minutes need no checkpoints
        "logging_steps": max(1, steps // 4),
    }
    if settings.dev_passages:
        flags |= {"eval_dataset_path": str(data), "eval_max_passages": settings.dev_passages}
        trainer_flags |= {"eval_steps": steps, "load_best_model_at_end": "false"}
    if speed["precision"] == "bf16":
        trainer_flags["bf16"] = "true"
    more = [word for name, value in trainer_flags.items() for word in (f"--{name}", str(value))]
    log.info("$ %s", command("train", flags, [*more, "--seed", str(settings.seed)]))
    arguments = TrainArguments(**flags)
    with _calm_transformers():
        common = CommonArguments(seed=settings.seed, quiet=not log.isEnabledFor(logging.INFO))
        figures = train(arguments, settings_of(more, arguments, common))
    return {**figures, "planned_steps": steps}


@contextlib.contextmanager
def _calm_transformers() -> Iterator[None]:
    """No bars for writing files, no warnings about a model that is trained on purpose."""
    from transformers.utils import logging as transformers_logging

    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
