"""Imports tried in child processes: a package that crashes or hangs there is a finding, not the end of the check."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TIMEOUT = 60.0  # seconds a child may take on a busy machine; a healthy one takes two or three
_PROBE = "starbucks_retrieval.doctor.probe"


def try_imports(groups: Sequence[Sequence[str]], timeout: float = TIMEOUT) -> dict[str, dict[str, Any]]:
    """What probe.py says of each module, JSON-ready: `{"ok": True, …}` or `{"ok": False, "error": …}`.

    The groups are tried at once, a child process each; the modules of a group one after the other.
    """
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        for one in pool.map(lambda group: _try(list(group), timeout), groups):
            found |= one
    return found


def _try(modules: list[str], timeout: float) -> dict[str, dict[str, Any]]:
    """Try modules in one child, and those after one that killed it in another."""
    found: dict[str, dict[str, Any]] = {}
    while modules:
        answered, ending = _child(modules, timeout)
        found |= answered
        left = [module for module in modules if module not in answered]
        if left:  # the first of them was being imported when the child ended
            found[left[0]] = {"ok": False, "error": ending}
        modules = left[1:]
    return found


def _child(modules: Sequence[str], timeout: float) -> tuple[dict[str, dict[str, Any]], str]:
    """What a child said before it ended, and how it ended."""
    command = [sys.executable, "-m", _PROBE, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)
        output, complaints = done.stdout, done.stderr.strip().splitlines()
        ending = f"the import ended Python ({_status(done.returncode)})" + (f": {complaints[-1]}" if complaints else "")
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        ending = f"the import took more than {timeout:g} s"
    except OSError as error:
        output, ending = "", f"no child process could be started: {error}"
    answered = {}
    for line in output.splitlines():
        if line.startswith('{"module"'):  # libraries print what they like
            answer = json.loads(line)
            answered[answer.pop("module")] = answer
    return answered, ending


def _status(returncode: int) -> str:
    import signal

    if returncode < 0:
        try:
            return signal.Signals(-returncode).name
        except ValueError:
            return f"signal {-returncode}"
    return f"status {returncode}"
