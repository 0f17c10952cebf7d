"""Kill processes of a job of two at operations on files, and run the job again.

Each process counts its own operations (`hooked/sitecustomize.py` calls `watch`), so a number selects the moment. At the
chosen one of the chosen process SIGKILL ends that process, the one that started it, or the whole job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attack.killing import before_operations, contents

VICTIMS = ("itself", "its parent", "all")
_SECONDS = 300  # for a job to end, killed or not
_TESTS = Path(__file__).parents[1]


def watch(rank: int) -> None:
    """Count the operations of this process of a job, in a file, and kill at the chosen one."""
    log = os.open(Path(os.environ["KILL_LOG"]) / str(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    at, victim = int(os.environ["KILL_AT"]), os.environ["KILL_VICTIM"]
    count, chosen = 0, rank == int(os.environ["KILL_RANK"])

    def step() -> None:
        nonlocal count
        count += 1
        os.write(log, b".")
        if chosen and count == at:
            parent = os.getppid()
            siblings = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            others = [int(one) for one in siblings if int(one) != os.getpid()] if victim == "all" else []
            for process in [*others, *([parent] if victim != "itself" else [])]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if victim != "its parent":
                os.kill(os.getpid(), signal.SIGKILL)

    before_operations(Path(os.environ["KILL_ROOT"]), step)


def run(words: Sequence[str], root: Path, log: Path, kill: tuple[int, int, str] = (0, 0, "itself")) -> int | None:
    """Run a job to the end of all its processes; return its status, or None where some did not end in time.

    Args:
        words: The command.
        root: Operations on files below this folder count.
        log: A new folder for the counts of the processes.
        kill: The rank of a process, the number of the operation before which it kills (0: never), and whom, of VICTIMS.
    """
    log.mkdir()
    paths = os.pathsep.join(map(str, (_TESTS / "attack" / "hooked", _TESTS, _TESTS.parent)))
    own = {"KILL_LOG": str(log), "KILL_ROOT": str(root), "KILL_RANK": str(kill[0])}
    own |= {"KILL_AT": str(kill[1]), "KILL_VICTIM": kill[2], "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with open(log / "output", "wb") as output:
        job = subprocess.Popen(words, env={**os.environ, **own}, stdout=output, stderr=output)
        deadline = time.monotonic() + _SECONDS
        while job.poll() is None or _of_job(log):
            if time.monotonic() > deadline:
                for process in _of_job(log):
                    os.kill(process, signal.SIGKILL)
                job.wait()
                return None
            time.sleep(0.1)
    return job.returncode


def _of_job(log: Path) -> list[int]:
    """Return the processes of a job, by their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"KILL_LOG={log}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def problems(
    job: Callable[[Path], list[str]],
    root: Path,
    moments: Callable[[Sequence[int]], Sequence[tuple[int, int, str]]],
    compare: Callable[[Path], dict] = contents,
) -> tuple[int, list[str]]:
    """Kill processes of a job at moments, run it again, and compare its folder with that of an undisturbed run.

    Args:
        job: Returns the command for an output folder, which exists.
        root: An empty folder.
        moments: From the numbers of operations of the processes of an undisturbed run: the `kill` of each trial.
        compare: What of a folder must be equal.

    Returns:
        The number of moments, and what went wrong at which of them.
    """
    whole, found = root / "whole", []
    whole.mkdir(parents=True)
    assert run(job(whole), whole, root / "whole.log") == 0, (root / "whole.log" / "output").read_text()
    expected = compare(whole)
    counts = [(root / "whole.log" / str(rank)).stat().st_size for rank in range(2)]
    tried = moments(counts)
    for number, kill in enumerate(tried):
        folder, logs = root / f"at-{number}", [root / f"at-{number}.log", root / f"at-{number}.again"]
        folder.mkdir()
        name = f"{kill[2]} killed at {kill[1]} of {counts[kill[0]]} of process {kill[0]}"
        statuses = [run(job(folder), folder, logs[0], kill), run(job(folder), folder, logs[1])]
        if None in statuses or statuses[1] != 0:
            tail = " / ".join((logs[1] / "output").read_text(errors="replace").splitlines()[-2:])
            found.append(f"{name}: statuses {statuses}: {tail}")
        elif (left := compare(folder)) != expected:
            other = sorted({key for key in {*expected, *left} if expected.get(key) != left.get(key)})
            found.append(f"{name}: other content: {other[:4]}")
    return len(tried), found
