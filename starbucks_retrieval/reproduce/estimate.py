"""Hours and bytes of jobs: from finished jobs of the same stage, else from the speed of the backbone on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from starbucks_retrieval.devices import default_batch_tokens
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
    stores = [embeddings_of(job, root) for job in jobs]
    works = [_operations(job, scale) for job in jobs]
    works = [
        0.0 if one and one in stores[:i] else work for i, (one, work) in enumerate(zip(stores, works, strict=True))
    ]
    done = [figures_of(job, root) for job in jobs]
    rates: dict[str, list[float]] = {}
    for job, work, figures in zip(jobs, works, done, strict=True):
        if work and figures and figures.get("processor_seconds") and job.stage != LIBRARY:
            rates.setdefault(job.stage, []).append(work / figures["processor_seconds"])
    measured = {stage: statistics.median(found) for stage, found in rates.items()}
    waiting = {job.id for job in unfinished(jobs, root)}
    timed: dict[bool, float] = {}
    found = []
    for job, work in zip(jobs, works, strict=True):
        seconds = 60.0 * job.flags.get("minutes", 0)
        stage = "train" if job.stage == LIBRARY else job.stage
        if stage in measured:
            seconds += work / measured[stage]
        elif not scale.child:
            seconds += 1  # made up: too small for anything but its start
        elif "minutes" not in job.flags:
            half = job.flags.get("bf16") is True or job.flags.get("dtype") == "bf16"
            if half not in timed:
                timed[half] = _speed(jobs, scale, half)
            seconds += work / timed[half] + _START
        found.append(JobEstimate(seconds / 3600, _bytes(job, scale), _what(job), job.id not in waiting))
    basis = [f"measured for {', '.join(measured)}, from finished jobs"] if measured else []
    where = "assumed of an H100" if scale.full.dim >= _GPU_DIM else "timed on this processor"
    speeds = " and ".join(f"{speed:.0e}{' (bf16)' if half else ''}" for half, speed in timed.items())
    basis += [f"{'others ' if measured else ''}at {speeds} operations a second, {where}"] if timed else []
    return Estimates(found, "; ".join(basis))


def _speed(jobs: Sequence[Job], scale: Scale, half: bool) -> float:
    """Return the operations a second of a forward pass: of a GPU as assumed, else of the backbone's layer as timed here."""
    if scale.full.dim >= _GPU_DIM:
        return _GPU
    import torch

    from starbucks_retrieval.models.info import model_info

    backbone = next(name for job in jobs if isinstance(name := job.flags.get("model_name_or_path"), str))
    dtype = torch.bfloat16 if half else None
    seconds = model_info(backbone).layer_seconds(
        scale.tokens, default_batch_tokens("cpu"), "cpu", dtype, clock=time.process_time
    )
    return _forward(scale, 1) / seconds


def _short(scale: Scale) -> int:
    """Return the tokens of a query or a sentence of a pair."""
    return min(_SHORT, scale.tokens)


def _forward(scale: Scale, layers: int) -> float:
    """Return the operations of a forward pass for a token: two a weight."""
    return 2.0 * 12 * layers * scale.full.dim**2


def _operations(job: Job, scale: Scale) -> float:
    """Return the floating-point operations: two a weight and token forward, three times as many with a backward pass."""
    flags = job.flags
    layers = max(map(int, flags["layers"].split(","))) if "layers" in flags else scale.full.layer
    if job.stage == LIBRARY:
        return _operations(flags["as_long_as"], scale) if "as_long_as" in flags else 0.0
    if job.stage in ("train", "pretrain"):
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
        return 3 * _forward(scale, layers) * steps * batch * tokens
    if job.stage == "search":
        dims = sum(size.dim for size in Sizes.parse(str(flags["sizes"])))
        return 2.0 * dims * _QUERIES * _texts(flags["passage_reps"], scale)
    texts = _texts(job, scale)
    return _forward(scale, layers) * texts * (_short(scale) if job.stage == "sts" else scale.tokens)


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
