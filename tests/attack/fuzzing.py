"""Damage files, read them, and count what happens; run it to see failures: `python tests/attack/fuzzing.py --cases 100`.

A case passes if its reader succeeds or refuses in two lines with exit code 2. Everything else is a failure: a traceback,
a longer message, a process that ends (crash), or one that takes longer than 20 seconds (hang).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import logging
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ["HF_HUB_OFFLINE"] = "1"

from attack import faults  # noqa: E402
from attack.further_targets import TARGETS  # noqa: E402
from attack.mutations import damage  # noqa: E402
from attack.targets import Target  # noqa: E402

from starbucks_retrieval.cli import run_command  # noqa: E402

SECONDS = 20
MEMORY = 2 << 30  # bytes a case may take besides what the process has at the start
_LONGEST = 2000  # characters of a line of a message
PASSED = ("read", "refused")


class Prepared:
    """A target with its valid input on disk."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self._valid = folder / "valid"
        self._case = folder / "case"
        self._valid.mkdir(parents=True)
        target.make(self._valid)
        shutil.copytree(self._valid, self._case)

    def attempt(self, seed: str) -> tuple[str, str]:
        """Damage the file with one seed and read it; return the outcome and, of a failure, a description."""
        if self.target.writes:
            shutil.rmtree(self._case)
            shutil.copytree(self._valid, self._case)
        file = self._case / self.target.file
        file.write_bytes((self._valid / self.target.file).read_bytes())
        damage(file, self.target.kind, random.Random(seed))
        return self.outcome()

    def outcome(self) -> tuple[str, str]:
        """Read the input as it is, as a command would."""
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                code = run_command(lambda _: self.target.read(self._case), [])
            except BaseException as error:
                return "traceback", _describe(error)
        if code == 0:
            return "read", ""
        lines = printed.getvalue()
        lines = lines[lines.rfind("error: ") :].splitlines()
        if code != 2 or len(lines) != 2 or max(map(len, lines)) > _LONGEST:
            return (
                "long",
                f"exit {code}, {len(lines)} lines, {max(map(len, lines), default=0)} characters: {str(lines)[:300]}",
            )
        return "refused", ""


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/starbucks_retrieval/" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    where = f"{last.filename.rpartition('/starbucks_retrieval/')[2]}:{last.lineno}"
    message = re.sub(r"\d{3,}|/tmp/\S+", "…", " ".join(str(error).split()))[:110]
    return f"{where} {type(error).__name__}: {message}"


def run_isolated(prepared: Prepared, seeds: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (seed, outcome, description) of cases that run in child processes with a limit of memory and of time."""
    left = list(seeds)
    while left:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            with contextlib.suppress(BaseException):
                _child(prepared, left, writer)
            os._exit(0)
        os.close(writer)
        pending, outcome = b"", "crash"
        while True:
            ready, _, _ = select.select([reader], [], [], 3 * SECONDS)
            block = os.read(reader, 1 << 16) if ready else b""
            if not block:
                if not ready:
                    outcome = "hang"
                    os.kill(child, signal.SIGKILL)
                break
            pending += block
            *lines, pending = pending.split(b"\n")
            for line in lines:
                yield (left.pop(0), *json.loads(line))
        os.close(reader)
        _, status = os.waitpid(child, 0)
        if left:
            yield left.pop(0), outcome, f"status {status}"


def _child(prepared: Prepared, seeds: Sequence[str], writer: int) -> None:
    with open("/proc/self/statm", "rb") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        outcome = prepared.attempt(seed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(writer, json.dumps(outcome).encode() + b"\n")


def seeds_of(target: Target, position: int, cases: int, seed: int) -> list[str]:
    """Return the seeds of the cases of a target; equal arguments give equal damage."""
    return [f"{seed}/{position}/{target.name}/{case}" for case in range(cases)]


def run_and_record(prepared: Prepared, position: int, cases: int, seed: int) -> list[tuple[str, str, str]]:
    """Run cases of a target and add their counts to the record; return those that failed."""
    target, counts, failed = prepared.target, collections.Counter[str](), []
    for case in run_isolated(prepared, seeds_of(target, position, cases, seed)):
        counts[case[1]] += 1
        if case[1] not in PASSED:
            failed.append(case)
    lost = [f"{outcome} {of}: {description}" for of, outcome, description in failed]
    faults.record("files", _subject(target), seed, counts.total(), lost, **counts)
    return failed


def _subject(target: Target) -> str:
    return f"{target.name} ({target.read.__name__.strip('_')})"


def try_again(folder: Path) -> None:
    """Try the lost cases of the record again, and note those that pass now as mended."""
    entries = faults.read()
    for entry in entries:
        if entry["part"] == "files" and entry["lost"]:
            seeds = [re.match(r"\w+ (\d+/\d+/.*?/\d+): ", text)[1] for text in entry["lost"]]  # type: ignore[index]
            position = int(seeds[0].split("/")[1])
            prepared = Prepared(TARGETS[position], folder / str(position))
            assert _subject(prepared.target) == entry["subject"], f"targets have changed since: {entry['subject']}"
            outcomes = [outcome for _, outcome, _ in run_isolated(prepared, seeds)]
            tried = list(zip(entry["lost"], outcomes, strict=True))
            entry["mended"] = [*entry.get("mended", []), *(text for text, outcome in tried if outcome in PASSED)]
            entry["lost"] = [text for text, outcome in tried if outcome not in PASSED]
    faults.write(faults.RECORD, entries)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression of targets")
    parser.add_argument("--show", type=int, default=400, help="groups of failures to print")
    parser.add_argument(
        "--again", action="store_true", help="try the lost cases of faults.json, and note which are mended"
    )
    parser.add_argument("--one", help="the seed of one case to run with its traceback")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failures = collections.defaultdict[str, list[str]](list)
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["STARBUCKS_CACHE"] = f"{temporary}/cache"
        if options.again:
            try_again(Path(temporary))
            return 0
        for position, target in enumerate(TARGETS):
            if not re.search(options.only, f"{target.name} {target.read.__name__}"):
                continue
            if options.one:
                if options.one not in seeds_of(target, position, 10**5, options.seed):
                    continue
                prepared = Prepared(target, Path(temporary) / str(position))
                damage(prepared._case / target.file, target.kind, random.Random(options.one))
                print((prepared._case / target.file).read_bytes()[:3000])
                return run_command(lambda _: target.read(prepared._case), [])  # noqa: B023
            prepared = Prepared(target, Path(temporary) / str(position))
            if (whole := prepared.outcome())[0] != "read":
                print(f"{target.name}: the valid input is not read: {whole}", flush=True)
            found = run_and_record(prepared, position, options.cases, options.seed)
            print(f"{target.name} {target.read.__name__}: {options.cases} cases, {len(found)} failed", flush=True)
            for seed, outcome, description in found:
                failures[f"{outcome} [{target.area}: {target.read.__name__}] {description}"].append(seed)
    for name, found in sorted(failures.items(), key=lambda item: -len(item[1]))[: options.show]:
        print(f"{len(found):5d} {name}   e.g. {found[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
