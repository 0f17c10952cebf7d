"""No test depends on how fast this machine is at the moment: what these rules forbid fails where others work too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FORBIDDEN = {
    r"\b(perf_counter|monotonic|process_time)(_ns)?\(": "reads a clock: take the fixture `ticking`, or inject what is measured",
    r"\btime\.time(_ns)?\(": "reads a clock: take the fixture `ticking`, or inject what is measured",
    r"\bsleep\(": "waits for a time: wait for the thing, with tests/waiting.py",
    r"^\s*sleep \d": "waits for a time: wait for the thing",
    r"\btimeout=(?!timeout\b)": "a deadline: the one of pytest, in pyproject.toml, is enough",
}
# What stays: a helper that looks again, threads that are given the chance to meet, a hang that is to be noticed.
ALLOWED = {
    ("waiting.py", "time.sleep(0.005)"),
    ("search/test_searcher.py", "time.sleep(0.001)"),
    ("doctor/test_doctor.py", "found = try_imports(list(errors), timeout=3)"),
    ("attack/process_kills.py", "deadline = time.monotonic() + _SECONDS"),
    ("attack/process_kills.py", "if time.monotonic() > deadline:"),
    ("attack/process_kills.py", "time.sleep(0.1)"),
    ("search/test_milvus.py", 'load_stores(stores[0], "http://user:secret@127.0.0.1:9", "c", timeout=8)'),
}


def complaints(name: str, text: str) -> list[str]:
    return [
        f"tests/{name}:{number}: {why}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, why in FORBIDDEN.items()
        if re.search(pattern, line) and not any(name == file and allowed in line for file, allowed in ALLOWED)
    ]


def test_no_test_depends_on_measured_time():
    found = [
        complaint
        for path in sorted(TESTS.rglob("*.py"))
        if path != Path(__file__)
        for complaint in complaints(path.relative_to(TESTS).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "    assert time.monotonic() - began < 5",
        "began = perf_counter()",
        "        time.sleep(1)",
        "subprocess.run(command, timeout=30)",
        "sleep 1",
    ],
)
def test_lines_that_depend_on_time_are_found(line):
    assert complaints("test_x.py", line)
    assert complaints("waiting.py", line)
