"""Hours and bytes of jobs: from finished jobs of the same stage, else from the speed of the backbone on this machine."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import join_text, open_corpus
from starbucks_retrieval.devices import default_batch_tokens
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.reproduce.jobs import LIBRARY, Job
from starbucks_retrieval.reproduce.run import embeddings_of, figures_of, unfinished
from starbucks_retrieval.reproduce.schema import Scale
from starbucks_retrieval.sizes import Sizes

_GPU = 3e14  # operations a second of the scale that needs GPUs: one H100 at a third of its peak
_START = 8.0  # seconds in which a job starts, reads its model and writes its output
_GPU_DIM = 768  # width of the backbones at that scale
_WORDS = 30522  # rows of BERT's embedding table
_SHORT = 24  # tokens of a query or a sentence, padded
_STEPS = 1000  # of a training whose length is not known
_QUERIES = 4000  # of a set that is searched
_SAMPLE = 200  # passages whose tokens are counted
_AXES = ("layers", "dims")


@dataclass(frozen=True)
class JobEstimate:
    """The time and the disk space of a job.

    Attributes:
        hours: Hours of the whole job, also of a finished one.
        bytes: The bytes of the files that it leaves.
        what: The stage and its main flags.
        finished: Whether an earlier run finished it.
    """

    hours: float
    bytes: int
    what: str
    finished: bool


@dataclass(frozen=True)
class Estimates:
    """The estimates of several jobs.

    Attributes:
        jobs: One for each job, in their order.
        basis: A sentence about where the rates come from.
    """

    jobs: list[JobEstimate]
    basis: str


def estimate(jobs: Sequence[Job], scale: Scale, root: Path) -> Estimates:
    """Estimate the time and the disk space of jobs.

    Args:
        jobs: The jobs.
        scale: Their scale.
        root: The output folder: jobs that are finished there give the rate of their stage. Of other stages, a layer of the
            backbone is timed here, unless the scale needs a GPU or is made up.
    """
    works = _works(jobs, scale, root)
    speeds = _Speeds(jobs, scale, _measured_speeds(jobs, works, root))
    waiting = {job.id for job in unfinished(jobs, root)}
    found = [
        JobEstimate(speeds.seconds(job, work) / 3600, _bytes(job, scale), _what(job), job.id not in waiting)
        for job, work in zip(jobs, works, strict=True)
    ]
    return Estimates(found, speeds.basis())


def _works(jobs: Sequence[Job], scale: Scale, root: Path) -> list[float]:
    """Return the operations of each job; a grid that finds the embeddings of an earlier one has none."""
    works, stored = [], set[Path]()
    for job in jobs:
        store = embeddings_of(job, root)
        works.append(0.0 if store in stored else _operations(job, scale))
        if store:
            stored.add(store)
    return works


def _measured_speeds(jobs: Sequence[Job], works: Sequence[float], root: Path) -> dict[str, float]:
    """Return the operations a second of each stage that has finished jobs: their median."""
    found: dict[str, list[float]] = {}
    for job, work in zip(jobs, works, strict=True):
        figures = figures_of(job, root) if work and job.stage != LIBRARY else None
        if figures and figures.get("processor_seconds"):
            found.setdefault(job.stage, []).append(work / figures["processor_seconds"])
    return {stage: statistics.median(speeds) for stage, speeds in found.items()}


class _Speeds:
    """The operations a second of jobs: measured for a stage, else timed when the first job needs it."""

    def __init__(self, jobs: Sequence[Job], scale: Scale, measured: Mapping[str, float]) -> None:
        self.jobs, self.scale, self.measured = jobs, scale, measured
        self.timed: dict[bool, float] = {}  # by whether it is bf16

    def seconds(self, job: Job, work: float) -> float:
        """Return the seconds that a job takes for its operations, and for its start where its stage was not measured."""
        given = 60.0 * job.flags.get("minutes", 0)
        stage = "train" if job.stage == LIBRARY else job.stage
        if stage in self.measured:
            return given + work / self.measured[stage]
        if not self.scale.child:
            return given + 1  # made up: too small for anything but its start
        if "minutes" in job.flags:
            return given
        half = job.flags.get("bf16") is True or job.flags.get("dtype") == "bf16"
        if half not in self.timed:
            self.timed[half] = _speed(self.jobs, self.scale, half)
        return work / self.timed[half] + _START

    def basis(self) -> str:
        """Return a sentence about where the speeds come from."""
        found = [f"measured for {', '.join(self.measured)}, from finished jobs"] if self.measured else []
        where = "assumed of an H100" if self.scale.full.dim >= _GPU_DIM else "timed on this processor"
        speeds = " and ".join(f"{speed:.0e}{' (bf16)' if half else ''}" for half, speed in self.timed.items())
        found += [f"{'others ' if self.measured else ''}at {speeds} operations a second, {where}"] if self.timed else []
        return "; ".join(found)


def _speed(jobs: Sequence[Job], scale: Scale, half: bool) -> float:
    """Return the operations a second of a forward pass: of a GPU as assumed, else of the backbone's layer as timed here."""
    if scale.full.dim >= _GPU_DIM:
        return _GPU
    import torch

    from starbucks_retrieval.models.batching import batch_tokens
    from starbucks_retrieval.models.info import model_info

    backbone = next(name for job in jobs if isinstance(name := job.flags.get("model_name_or_path"), str))
    dtype = torch.bfloat16 if half else None
    tokens = batch_tokens(default_batch_tokens("cpu"), "cpu")  # as encoding takes them
    seconds = model_info(backbone).layer_seconds(scale.tokens, tokens, "cpu", dtype, clock=time.process_time)
    return _forward(scale, 1) / seconds


def _short(scale: Scale) -> int:
    """Return the tokens of a query or a sentence of a pair."""
    return min(_SHORT, scale.tokens)


def _forward(scale: Scale, layers: int) -> float:
    """Return the operations of a forward pass for a token: two a weight."""
    return 2.0 * 12 * layers * scale.full.dim**2


def _operations(job: Job, scale: Scale) -> float:
    """Return the floating-point operations of a job: two a weight and token forward, three times as many with backward."""
    return _OPERATIONS.get(job.stage, _no_operations)(job, scale)


def _of_training(job: Job, scale: Scale) -> float:
    flags = job.flags
    task = "pretrain" if job.stage == "pretrain" else "sts" if "sts" in str(flags.get("preset")) else "retrieval"
    steps = int(flags.get("max_steps") or scale.steps.get(task, _STEPS))
    # Queries of a step, and texts of each: the query and its passages.
    default, group = {"pretrain": (512, 1), "retrieval": (128, 9), "sts": (128, 3)}[task]
    if "train_group_size" in flags:
        group = 1 + int(flags["train_group_size"])
    batch = int(flags.get("per_device_train_batch_size") or default)
    if task == "pretrain":
        tokens = int(flags.get("max_length") or 512)
    else:
        passage = scale.tokens if task == "retrieval" else _short(scale)
        tokens = _short(scale) + (group - 1) * passage
    return 3 * _forward(scale, _layers(job, scale)) * steps * batch * tokens


def _of_library(job: Job, scale: Scale) -> float:
    return _operations(job.flags["as_long_as"], scale) if "as_long_as" in job.flags else 0.0


def _of_search(job: Job, scale: Scale) -> float:
    dims = sum(size.dim for size in Sizes.parse(str(job.flags["sizes"])))
    return 2.0 * dims * _QUERIES * _texts(job.flags["passage_reps"], scale)


def _of_pairs(job: Job, scale: Scale) -> float:
    return _forward(scale, _layers(job, scale)) * _texts(job, scale) * _short(scale)


def _of_passages(job: Job, scale: Scale) -> float:
    return _forward(scale, _layers(job, scale)) * _texts(job, scale) * _tokens(job, scale)


def _no_operations(job: Job, scale: Scale) -> float:
    return 0.0


_OPERATIONS: dict[str, Callable[[Job, Scale], float]] = {
    "pretrain": _of_training,
    "train": _of_training,
    LIBRARY: _of_library,
    "search": _of_search,
    "sts": _of_pairs,
    **dict.fromkeys(("fit", "grid", "encode"), _of_passages),
}


def _layers(job: Job, scale: Scale) -> int:
    """Return the layers that a job computes."""
    return max(map(int, job.flags["layers"].split(","))) if "layers" in job.flags else scale.full.layer


def _tokens(job: Job, scale: Scale) -> float:
    """Return the mean tokens of a passage: of the first ones where they can be read here, else those of the scale."""
    local = [str(word) for word in _words(job.flags.get("dataset_path")) if Path(str(word)).exists()]
    backbone = _backbone(job)
    if not local or backbone is None or not scale.child or scale.full.dim >= _GPU_DIM:
        return scale.tokens
    return _mean_tokens(backbone, local[0], job.flags.get("passage_max_len")) or scale.tokens


def _backbone(job: Job) -> str | None:
    """Return the folder or hub name of the backbone that a job, or those before it, begins with."""
    model = job.flags.get("model_name_or_path")
    return _backbone(model) if isinstance(model, Job) else model


@cache
def _mean_tokens(backbone: str, path: str, limit: int | None) -> float | None:
    """Return the mean tokens of the first passages of a collection; None where they cannot be read."""
    from starbucks_retrieval.models.info import model_info

    try:
        model = model_info(backbone)
        texts = [join_text(passage) for passage in itertools.islice(open_corpus(path), _SAMPLE)]
    except UserError:  # the job tells
        return None
    longest = min(limit or model.config.passage_max_len or model.token_limit, model.token_limit)
    return model.mean_tokens(texts, longest) if texts else None


def _texts(job: Job, scale: Scale) -> int:
    named = [str(word) for key in ("dataset_path", "data") for word in _words(job.flags.get(key))]
    for one in scale.sets.values():
        if any(fnmatch(word, f"*{one.path.removeprefix('./')}") for word in named):
            return one.texts or 100
    return int(job.flags.get("max_texts") or 5000)


def _bytes(job: Job, scale: Scale) -> int:
    """Return the bytes of the output: a model or embeddings in float32, runs, or the scores of queries."""
    if job.output == "model":
        return 4 * (12 * scale.full.layer * scale.full.dim**2 + _WORDS * scale.full.dim)
    flags = job.flags
    if job.stage == "encode":
        return 4 * sum(size.dim for size in Sizes.parse(flags["sizes"])) * _texts(job, scale)
    if job.stage == "search":
        return 45 * len(Sizes.parse(flags["sizes"])) * _QUERIES * flags["depth"]
    cells = len(flags["run"].names) if "run" in flags else math.prod(len(flags[axis].split(",")) for axis in _AXES)
    return cells * len(_words(flags.get("measures")) or [""]) * 1000 * 30


def _what(job: Job) -> str:
    names = (
        "preset",
        "loss",
        "objective",
        "sizes",
        "seed",
        "dataset_name",
        "dataset_path",
        "data",
        "answers",
        "layers",
        "dims",
    )
    parts = [f"{name} {' '.join(map(str, _words(job.flags[name])))}" for name in names if name in job.flags]
    return f"{job.stage}: {', '.join(parts)}"


def _words(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
