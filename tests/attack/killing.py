"""Kill a command at each of its operations on files, and run it again.

The operations are those that Python reports to audit hooks (files opened for writing, renames, removals, new folders), and
os.fsync, below one folder. Before the chosen one the process sends itself SIGKILL, so that neither handlers nor `finally`
run. A command does the same operations each time, so a number selects the moment.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

_EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def run(work: Callable[[], int], root: Path, kill_at: int = 0, log: Path | None = None) -> tuple[int, int]:
    """Run `work` in a forked process.

    Args:
        work: Returns an exit status.
        root: Operations on files below this folder count.
        kill_at: The number of the operation before which the process is killed; 0 for none.
        log: Where the output of the process goes.

    Returns:
        The exit status, negative for a signal, and the number of operations.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 70
        try:
            with open(log or os.devnull, "a", encoding="utf-8") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                sys.stdout = sys.stderr = output
                status = _counted(work, root, kill_at, writing)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as counts:
        number = int.from_bytes(counts.read()[-4:], "big")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), number


def _counted(work: Callable[[], int], root: Path, kill_at: int, writing: int) -> int:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    before_operations(root, step)
    status = work()
    os.write(writing, count.to_bytes(4, "big"))
    return status


def before_operations(root: Path, step: Callable[[], None]) -> None:
    """Call `step` before each operation of this process on files below a folder, from now on."""
    prefix, owner = os.path.realpath(root) + os.sep, os.getpid()

    def named(path: object) -> None:
        if os.getpid() != owner or not isinstance(path, (str, bytes, os.PathLike)):
            return
        if os.path.abspath(os.fsdecode(path)).startswith(prefix):
            step()

    def hook(event: str, arguments: tuple) -> None:
        if (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING) or event in _EVENTS:
            named(arguments[0])

    fsync = os.fsync

    def counted_fsync(descriptor: int) -> None:
        named(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    os.fsync = counted_fsync
    sys.addaudithook(hook)


def contents(folder: Path) -> dict[str, str]:
    """Return every file of a folder, hidden ones included, with a digest of its bytes, and every empty folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not any(path.iterdir()):
            found[str(path.relative_to(folder))] = "an empty folder"
    return found


def problems(
    command: Callable[[Path], Callable[[], int]],
    root: Path,
    moments: Callable[[int], Sequence[tuple[int, ...]]],
    compare: Callable[[Path], object] = contents,
) -> tuple[int, list[str]]:
    """Kill a command at moments, run it again until it ends, and compare its folder with that of an undisturbed run.

    Args:
        command: Returns the work for an output folder, which exists.
        root: An empty folder.
        moments: From the number of operations of an undisturbed run: at which ones to kill the first run, the second, …
        compare: What of a folder must be equal.

    Returns:
        The number of moments, and what went wrong at which of them.
    """
    whole = root / "whole"
    whole.mkdir(parents=True)
    status, count = run(command(whole), whole, log=root / "whole.log")
    assert status == 0, (root / "whole.log").read_text()
    expected, found = compare(whole), []
    tried = moments(count)
    for kills in tried:
        name = "-".join(map(str, kills))
        folder, log = root / f"at-{name}", root / f"at-{name}.log"
        folder.mkdir()
        statuses = []
        for at in kills:
            statuses.append(run(command(folder), folder, at, log)[0])
            if statuses[-1] == 0:  # it had fewer operations than that, and is done
                break
        last = 0 if statuses[-1] == 0 else run(command(folder), folder, log=log)[0]
        if any(status not in (0, -signal.SIGKILL) for status in statuses) or last != 0:
            tail = " / ".join(log.read_text(errors="replace").splitlines()[-2:])
            found.append(f"killed at {name} of {count}: statuses {statuses}, then {last}: {tail}")
        elif compare(folder) != expected:
            names = {str(key) for key in dict(expected).items() ^ dict(compare(folder)).items()}
            found.append(f"killed at {name} of {count}: other content: {sorted(names)[:4]}")
    return len(tried), found
