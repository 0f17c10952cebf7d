"""Disturb commands of `commands` at moments. A process of its own, so that nothing else is forked.

`python -m attack.stages NAME,… FOLDER SEED MOMENTS`, with tests/ on the path and one thread for torch, prints a JSON line
for each: the number of moments that were tried and the problems that were found. MOMENTS is a number, or `every-3` for
every third operation. The commands are killed; with a fifth word, their writes fail.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from attack import io_errors, process_kills
from attack.commands import PAIRS, RECORDS, Run, make_inputs, trajectory
from attack.killing import contents, problems

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.locks import hold_until_exit, release_kept

WITHOUT_MODEL = ("mine",)  # and so without torch, whose import takes seconds


def moments(seed: int, wanted: str) -> Callable[[int], list[tuple[int, ...]]]:
    """Return a function that draws the operations at which runs are killed, from their number."""

    def draw(count: int) -> list[tuple[int, ...]]:
        every = [(at,) for at in range(1, count + 1)]
        if wanted.startswith("every"):
            return every[:: int(wanted.removeprefix("every-"))]
        rng = np.random.default_rng(seed)
        # The rerun is killed too, at another moment; it has fewer operations, where something was kept.
        pairs = [tuple(map(int, rng.integers(1, count + 1, 2))) for _ in range(int(wanted))]
        return [*every, *dict.fromkeys(pairs)] if int(wanted) > count else list(dict.fromkeys(pairs))

    return draw


def moments_of_two(seed: int, wanted: str) -> Callable[[Sequence[int]], list[tuple[int, int, str]]]:
    """Return the same for the processes of a job: which one kills at which of its operations, and whom."""

    def draw(counts: Sequence[int]) -> list[tuple[int, int, str]]:
        rng = np.random.default_rng(seed)
        ranks = rng.choice([rank for rank, count in enumerate(counts) if count], int(wanted))
        return [
            (int(rank), int(rng.integers(1, counts[rank] + 1)), process_kills.VICTIMS[number % 3])
            for number, rank in enumerate(ranks)
        ]

    return draw


def compared(folder: Path) -> dict[str, object]:
    """Return what of the folder of a training run must be equal: all files, of records the trajectory."""
    found: dict[str, object] = {}
    for path, digest in contents(folder).items():
        if Path(path).name not in RECORDS:
            found[path] = digest
        elif path.endswith(".json"):
            found[path] = trajectory(folder / path)
    return found


def main() -> None:
    """Disturb commands."""
    names, root, seed, wanted, *fault = sys.argv[1:]
    logging.disable(logging.WARNING)
    model = Path(root) / "model"
    if names not in WITHOUT_MODEL:
        from conftest import save_model

        save_model(model)
    runs = make_inputs(Path(root) / "inputs", model, names.split(","))
    for name in names.split(","):
        print(json.dumps(disturb(name, runs[name], Path(root) / name, int(seed), wanted, bool(fault))))


def disturb(name: str, disturbed: Run, runs: Path, seed: int, wanted: str, fault: bool) -> dict[str, object]:
    """Disturb one command in runs below a folder: what was tried, and the problems."""
    compare = compared if disturbed.command in ("train", "pretrain") else contents
    if name in PAIRS:
        tried, found = process_kills.problems(disturbed.job, runs, moments_of_two(seed, wanted), compare)
        return {"tried": tried, "problems": found}

    def command(folder: Path) -> Callable[[], int]:
        if not any(folder.iterdir()):
            disturbed.prepare(folder)

        def work() -> int:
            sys.argv[1:] = disturbed.argv(folder, rerun=True)
            hold_until_exit()  # as the command line does
            status = run_command(disturbed.main)
            if status == 0:
                release_kept()  # as at the end of a process
            return status

        return work

    if fault:

        def every(count: int) -> list[int]:
            drawn = np.random.default_rng(seed).permutation(count) + 1
            return sorted(map(int, drawn[: int(wanted)]))

        outcomes, found = io_errors.problems(command, runs, every, compare)
        return {"tried": sum(outcomes.values()) + len(found), "problems": found, "outcomes": outcomes}
    tried, found = problems(command, runs, moments(seed, wanted), compare)
    return {"tried": tried, "problems": found}


if __name__ == "__main__":
    main()
