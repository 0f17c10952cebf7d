"""Hours and bytes of jobs: from finished jobs of the same stage, else from the speed of the backbone on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.devices import default_batch_tokens
from starbucks_retrieval.reproduce.jobs import LIBRARY, Job
from starbucks_retrieval.reproduce.operations import GPU_DIM, QUERIES, forward, operations, texts_of, words_of
from starbucks_retrieval.reproduce.run import embeddings_of, figures_of, unfinished
from starbucks_retrieval.reproduce.schema import Scale
from starbucks_retrieval.sizes import Sizes

_GPU = 3e14  # operations a second of the scale that needs GPUs: one H100 at a third of its peak
_START = 8.0  # seconds in which a job starts, reads its model and writes its output
_WORDS = 30522  # rows of BERT's embedding table
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
        works.append(0.0 if store in stored else operations(job, scale))
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
        where = "assumed of an H100" if self.scale.full.dim >= GPU_DIM else "timed on this processor"
        speeds = " and ".join(f"{speed:.0e}{' (bf16)' if half else ''}" for half, speed in self.timed.items())
        found += [f"{'others ' if self.measured else ''}at {speeds} operations a second, {where}"] if self.timed else []
        return "; ".join(found)


def _speed(jobs: Sequence[Job], scale: Scale, half: bool) -> float:
    """Return the operations a second of a forward pass: of a GPU as assumed, else of the backbone's layer as timed here."""
    if scale.full.dim >= GPU_DIM:
        return _GPU
    import torch

    from starbucks_retrieval.models.batching import batch_tokens
    from starbucks_retrieval.models.info import model_info

    backbone = next(name for job in jobs if isinstance(name := job.flags.get("model_name_or_path"), str))
    dtype = torch.bfloat16 if half else None
    tokens = batch_tokens(default_batch_tokens("cpu"), "cpu")  # as encoding takes them
    info = model_info(backbone)  # trainings take most of the time
    seconds = info.layer_seconds(scale.tokens, tokens, "cpu", dtype, clock=time.process_time, encoding=False)
    return forward(scale, 1) / seconds


def _bytes(job: Job, scale: Scale) -> int:
    """Return the bytes of the output: a model or embeddings in float32, runs, or the scores of queries."""
    if job.output == "model":
        return 4 * (12 * scale.full.layer * scale.full.dim**2 + _WORDS * scale.full.dim)
    flags = job.flags
    if job.stage == "encode":
        return 4 * sum(size.dim for size in Sizes.parse(flags["sizes"])) * texts_of(job, scale)
    if job.stage == "search":
        return 45 * len(Sizes.parse(flags["sizes"])) * QUERIES * flags["depth"]
    cells = len(flags["run"].names) if "run" in flags else math.prod(len(flags[axis].split(",")) for axis in _AXES)
    return cells * len(words_of(flags.get("measures")) or [""]) * 1000 * 30


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
    parts = [f"{name} {' '.join(map(str, words_of(job.flags[name])))}" for name in names if name in job.flags]
    return f"{job.stage}: {', '.join(parts)}"
