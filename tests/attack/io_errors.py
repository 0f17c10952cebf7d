"""Let writing and flushing of files fail with EIO or EDQUOT at operations of a command, and run it again.

`io_errors.c`, compiled and loaded with LD_PRELOAD, counts the system calls of Python and of native libraries.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from attack.killing import contents, run

CODES = (errno.EIO, errno.EDQUOT)
_SOURCE = Path(__file__).with_name("io_errors.c")


def preloaded(folder: Path) -> dict[str, str]:
    """Compile the library into a folder and return the environment of a process that loads it."""
    library = folder / "io_errors.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def problems(
    command: Callable[[Path], Callable[[], int]],
    root: Path,
    moments: Callable[[int], Sequence[int]],
    compare: Callable[[Path], dict] = contents,
) -> tuple[dict[str, int], list[str]]:
    """Let a command fail at moments, run it again, and compare its folder with that of an undisturbed run.

    Args:
        command: Returns the work for an output folder, which exists.
        root: An empty folder.
        moments: From the number of operations of an undisturbed run: at which ones to fail. Each is tried with every
            code, once alone and once with all later operations failing too.
        compare: What of a folder must be equal.

    Returns:
        How many runs `completed` or were `refused`, and what went wrong at which moment.
    """
    library, counted = ctypes.CDLL(os.environ["LD_PRELOAD"]), root / "operations"

    def disturbed(folder: Path, code: int, at: int, once: bool) -> Callable[[], int]:
        work = command(folder)

        def disturbed_work() -> int:
            library.io_errors(os.fsencode(os.path.realpath(folder)), code, at, int(once))
            status = work()
            counted.write_text(str(ctypes.c_long(library.io_operations()).value))
            return status

        return disturbed_work

    whole, found, outcomes = root / "whole", [], {"completed": 0, "refused": 0}
    whole.mkdir(parents=True)
    assert run(disturbed(whole, 0, 0, False), whole, log=root / "whole.log")[0] == 0, (root / "whole.log").read_text()
    count, expected = int(counted.read_text()), compare(whole)
    for at in moments(count):
        for code in CODES:
            for once in (True, False):
                name = f"{errno.errorcode[code]} {'once' if once else 'from then on'} at {at} of {count}"
                folder, log = root / f"{at}-{code}-{int(once)}", root / f"{at}-{code}-{int(once)}.log"
                folder.mkdir()
                status, _ = run(disturbed(folder, code, at, once), folder, log=log)
                lines = log.read_text(errors="replace").splitlines()[-2:]
                told = len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("  try: ")
                again = 0 if status == 0 else run(command(folder), folder, log=log)[0]
                if status not in (0, 2) or (status == 2 and not told) or again != 0:
                    found.append(f"{name}: status {status}, then {again}: {' / '.join(lines)[-300:]}")
                elif (left := compare(folder)) != expected:
                    other = sorted({key for key in {*expected, *left} if expected.get(key) != left.get(key)})
                    found.append(f"{name}: status {status}, other content: {other[:4]}")
                else:
                    outcomes["refused" if status else "completed"] += 1
    return outcomes, found
