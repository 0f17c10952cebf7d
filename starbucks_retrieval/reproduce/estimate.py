"""Hours and bytes of jobs: from jobs of the same stage that ran in the output folder, else from a rough rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from starbucks_retrieval.reproduce.jobs import LIBRARY, Job
from starbucks_retrieval.reproduce.run import figures_of, unfinished
from starbucks_retrieval.reproduce.schema import Scale
from starbucks_retrieval.sizes import Sizes

# Operations a second, where no job ran yet: one core of a server, and one H100 at a third of its peak.
_ROUGH = {True: 3e14, False: 3e10}
_WORDS = 30522  # rows of BERT's embedding table
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
        root: The output folder: jobs that are finished there give the rate of their stage.
    """
    works = [_operations(job, scale) for job in jobs]
    done = [figures_of(job, root) for job in jobs]
    rates: dict[str, list[float]] = {}
    for job, work, figures in zip(jobs, works, done, strict=True):
        if figures and figures.get("processor_seconds") and job.stage != LIBRARY:
            rates.setdefault(job.stage, []).append(work / figures["processor_seconds"])
    measured = {stage: statistics.median(found) for stage, found in rates.items()}
    rough = _ROUGH[scale.full.dim >= 768]
    waiting = {job.id for job in unfinished(jobs, root)}
    found = []
    for job, work in zip(jobs, works, strict=True):
        rate = measured.get("train" if job.stage == LIBRARY else job.stage, rough)
        hours = work / rate / 3600 + job.flags.get("minutes", 0) / 60
        found.append(JobEstimate(hours, _bytes(job, scale), _what(job), job.id not in waiting))
    device = "a GPU such as an H100" if rough > 1e12 else "one processor core"
    basis = f"rough, at {rough:.0e} operations a second of {device}"
    if measured:
        basis = f"measured for {', '.join(measured)}, from finished jobs; others {basis}"
    return Estimates(found, basis)


def _operations(job: Job, scale: Scale) -> float:
    """Return the floating-point operations: two a weight and token forward, six with a backward pass."""
    weights = 12 * scale.full.layer * scale.full.dim**2
    flags = job.flags
    if job.stage == LIBRARY:
        return _operations(flags["as_long_as"], scale) if "as_long_as" in flags else 0.0
    if job.stage in ("train", "pretrain"):
        task = "pretrain" if job.stage == "pretrain" else "sts" if "sts" in str(flags.get("preset")) else "retrieval"
        steps = int(flags.get("max_steps") or scale.steps.get(task, _STEPS))
        default, group = {"pretrain": (512, 1), "retrieval": (128, 9), "sts": (128, 3)}[task]
        if "train_group_size" in flags:
            group = 1 + int(flags["train_group_size"])
        rows = int(flags.get("per_device_train_batch_size") or default) * group
        tokens = int(flags.get("max_length") or 512) if task == "pretrain" else scale.tokens
        return 6.0 * weights * steps * rows * tokens
    if job.stage == "search":
        dims = sum(size.dim for size in Sizes.parse(str(flags["sizes"])))
        return 2.0 * dims * _QUERIES * _texts(flags["passage_reps"], scale)
    texts = _texts(job, scale)
    return 2.0 * weights * texts * scale.tokens


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
