"""Runs jobs, each in a folder of its own, and keeps those that an earlier run finished."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.words import flag_words
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_text
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.reproduce.jobs import LIBRARY, RECORDS, Job
from starbucks_retrieval.steps import Steps

log = logging.getLogger(__name__)
_LOG = "log.txt"
_SPENT = "processor_seconds.txt"  # of the runs of a training so far
_WAIT = 60  # seconds that a stopped stage has to write its checkpoint
_JUDGEMENTS = ("split", "measures", "measure_cost")  # flags of grid that do not change its embeddings
_RUNS = {"pretrain", "train"}  # stages that leave checkpoints


class Stopped(Exception):
    """The time that the user gave is over."""


def is_done(job: Job, root: Path) -> bool:
    """Return whether an earlier run finished a job, and its output is as it was written."""
    return figures_of(job, root) is not None


def figures_of(job: Job, root: Path) -> dict[str, Any] | None:
    """Return what a finished job recorded.

    Args:
        job: The job.
        root: The output folder of all jobs.

    Returns:
        `files`, {path under the job's output: bytes}, and `processor_seconds`. None if no run finished the job, or a
        file is missing, damaged or of another length: the job has to run.
    """
    folder = job.folder(root)
    try:
        figures = read_json(folder / RECORDS / f"{job.stage}.json")["figures"]
        if _files(folder / job.output) != figures["files"]:
            return None
        if job.output.endswith(".json"):
            read_results(folder / job.output)
    except (UserError, OSError, KeyError, TypeError):
        return None
    return figures


def unfinished(jobs: Sequence[Job], root: Path) -> list[Job]:
    """Return the jobs that have to run: those that nothing needs and that are not finished, and what they need.

    Args:
        jobs: Each after those that it needs.
        root: The output folder of all jobs.
    """
    wanted = {job.id for job in jobs} - {needed.id for job in jobs for needed in job.needs}
    found = []
    for job in reversed(jobs):
        if job.id in wanted and not is_done(job, root):
            found.append(job)
            wanted |= {needed.id for needed in job.needs}
    return found[::-1]


def run_jobs(jobs: Sequence[Job], root: Path, child: bool, minutes: float | None) -> None:
    """Run the jobs that are not finished, in order.

    Args:
        jobs: Each after those that it needs.
        root: The output folder.
        child: Whether each stage runs in a process of its own, whose output goes to log.txt in the job's folder.
        minutes: Stop after this time; None for no limit.

    Raises:
        Stopped: The time is over. A training that was running goes on from its last checkpoint in the next run.
        UserError: A stage failed, and the message names its log; or sentence-transformers is needed and missing.
    """
    began = now()
    for job in jobs:
        _drop_searched(job, root)  # where an earlier run was killed before it did
    waiting = unfinished(jobs, root)
    log.info("%d jobs, of which %d are finished", len(jobs), len(jobs) - len(waiting))
    if any(job.stage == LIBRARY for job in waiting) and importlib.util.find_spec("sentence_transformers") is None:
        raise UserError(
            "a row is trained by sentence-transformers, which is not installed",
            "pip install sentence-transformers, or name other rows with --only",
        )
    for number, job in enumerate(waiting, 1):
        left = None if minutes is None else 60 * minutes - seconds_since(began)
        if left is not None and left <= 0:
            raise Stopped
        folder = job.folder(root)
        folder.mkdir(parents=True, exist_ok=True)
        embeddings = embeddings_of(job, root)
        others = embeddings is not None and any(embeddings_of(other, root) == embeddings for other in waiting[number:])
        shared = embeddings if others or (embeddings and embeddings.exists()) else None
        with Steps.open(folder, {job.stage: [job.output]}, {"job": job.id}, "reproduce") as steps:
            if not is_done(job, root):
                _forget(folder, job)
                title = f"[{number}/{len(waiting)}] {job.command(root)}"
                work = functools.partial(_work, job, root, child, left, shared)
                steps.run(job.stage, title, work, resumes=True)
        _drop_searched(job, root)
        if shared and not others:
            shutil.rmtree(shared, ignore_errors=True)


def embeddings_of(job: Job, root: Path) -> Path | None:
    """Return the folder of a grid's embeddings, which is that of the same model's grids on other judgements of the set."""
    if job.stage != "grid" or "task" in job.flags:
        return None
    same = {name: value for name, value in job.flags.items() if name not in _JUDGEMENTS}
    return root / "jobs" / replace(job, flags=same).id.replace("grid", "embeddings")


def _drop_searched(job: Job, root: Path) -> None:
    """Remove the embeddings of a finished search: nothing else reads them, and they can be larger than all the rest."""
    if job.stage == "search" and is_done(job, root):
        for stores in job.needs:
            shutil.rmtree(stores.folder(root) / stores.output, ignore_errors=True)


def _forget(folder: Path, job: Job) -> None:
    """Remove the record and a damaged output of a job; of a training, its checkpoints stay."""
    record = folder / RECORDS / f"{job.stage}.json"
    finished, output = record.exists(), folder / job.output
    record.unlink(missing_ok=True)
    if output.is_file():
        output.unlink()
    elif (output / "training.json").exists() or (finished and output.is_dir()):
        shutil.rmtree(output)


def _work(job: Job, root: Path, child: bool, left: float | None, embeddings: Path | None = None) -> dict[str, Any]:
    """Run a stage, and return the sizes of its files and the processor time that it took, in all its runs."""
    folder = job.folder(root)
    flags, resumes = {**job.typed(root), "quiet": True}, False
    if job.stage in _RUNS:
        flags["disable_tqdm"] = "true"
        resumes = any((folder / job.output).glob("checkpoint-*/trainer_state.json"))
        flags |= {"resume_from_checkpoint": "true"} if resumes else {"overwrite_output_dir": True}
    elif job.stage == "fit":
        flags["overwrite_output_dir"] = True
    if embeddings:
        flags["work_dir"] = str(embeddings)
    words = flag_words(flags)
    spent = folder / _SPENT
    before = _processor_seconds() - (float(spent.read_text()) if resumes and spent.is_file() else 0.0)
    try:
        if child:
            _run_child(job, folder, words, left)
        else:
            with _quiet_stage():
                own = "" if job.stage == LIBRARY else ".__main__"
                importlib.import_module(f"starbucks_retrieval.{job.stage}{own}").main(words)
    finally:
        seconds = round(_processor_seconds() - before, 1)
        write_text(spent, f"{seconds}\n")
    for checkpoint in (folder / job.output).glob("checkpoint-*"):  # of no use after the end
        shutil.rmtree(checkpoint)
    return {"files": _files(folder / job.output), "processor_seconds": seconds}


def _run_child(job: Job, folder: Path, words: Sequence[str], left: float | None) -> None:
    with open(folder / _LOG, "ab") as out:
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", f"starbucks_retrieval.{job.stage}", *words], stdout=out, stderr=out
        )
        try:
            status = process.wait(left)
        except BaseException as error:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_WAIT)
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Stopped from None
            raise
    if status:
        lines = (folder / _LOG).read_text("utf-8", "replace").splitlines()
        reason = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")
        raise UserError(
            f"{job.stage} failed with exit code {status}: {reason}", f"read {folder / _LOG}, and run it again"
        )


@contextlib.contextmanager
def _quiet_stage() -> Iterator[None]:
    """Keep the printing of a stage that runs in this process, and restore the log of this command after it."""
    package = logging.getLogger("starbucks_retrieval")
    handlers, level, propagate = package.handlers[:], package.level, package.propagate
    try:
        with open(os.devnull, "w", encoding="utf-8") as out, contextlib.redirect_stdout(out):
            yield
    finally:
        package.handlers[:], package.propagate = handlers, propagate
        package.setLevel(level)


def _files(output: Path) -> dict[str, int]:
    """Return the bytes of every file of an output, without checkpoints."""
    if output.is_file():
        return {output.name: output.stat().st_size}
    found = (one for one in output.rglob("*") if one.is_file() and not one.name.endswith(".lock"))
    return {one.relative_to(output).as_posix(): one.stat().st_size for one in sorted(found)}


def _processor_seconds() -> float:
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system
