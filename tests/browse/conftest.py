"""A small set with two runs, and a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> & 'quotes' \"too\" </details>"


@pytest.fixture
def small_set(tmp_path) -> Path:
    """A BEIR folder: q1 gains a relevant passage, q2 loses one, q3 stays, q4 was not searched."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"d{i}", "title": f"title {i}", "text": f"text {i} " + "word " * i} for i in range(30)]
    passages.append({"_id": "evil", "title": HOSTILE, "text": HOSTILE})
    queries = [("q1", "zebra crossing"), ("q2", f"apple {HOSTILE}"), ("q3", "plain question"), ("q4", "not searched")]
    lines = [json.dumps(row) + "\n" for row in passages]
    (folder / "corpus.jsonl").write_text("".join(lines))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in queries))
    judged = [("q1", "d1", 2), ("q1", "d2", 1), ("q2", "d3", 1), ("q3", "d5", 1), ("q3", "d6", 0), ("q4", "d9", 1)]
    rows = "".join(f"{q}\t{d}\t{g}\n" for q, d, g in judged)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    runs = {
        "small": {"q1": ["d7", "d1", "d8", "d2"], "q2": ["d3", "evil", "d10"], "q3": ["d6", "d5", "d11"]},
        "big": {"q1": ["d1", "d2", "d7"], "q2": ["d12", "d13", "d3"], "q3": ["d6", "d5", "d11"]},
    }
    for (name, run), size in zip(runs.items(), ("2:32", "12:768")):
        text = "".join(
            f"{q} Q0 {d} {rank} {10 - rank} starbucks-{size}\n"
            for q, found in run.items()
            for rank, d in enumerate(found, 1)
        )
        (tmp_path / f"{name}.trec").write_text(text)
    return folder


@pytest.fixture
def chromium(tmp_path):
    """Opens an address in headless Chromium: its DOM after scripts have run, and what it wrote to the console."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if program is None:
        pytest.skip("needs Chromium on PATH (Debian: apt-get install chromium)")

    def open_page(address: str, *flags: str) -> tuple[str, list[str]]:
        command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,900"),
            *(*flags, "--dump-dom", address),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout, done.stderr[-2000:]
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return open_page
