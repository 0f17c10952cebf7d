"""Files of a few bytes, and lines and nesting without end, are refused in a limited memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from attack.faults import record

from starbucks_retrieval.parsing import MAX_BYTES, MAX_LINE

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 160 << 20  # bytes of memory that reading may take, besides what the process has at the start

_RUN = """
import os, resource, sys
from pathlib import Path
import pydantic, yaml
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.cli.config import load_config
from starbucks_retrieval.data import open_corpus
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.store.safe_pickle import load_embeddings
reader, path, limit = sys.argv[1:]
read = {
    "pickle": lambda _: load_embeddings(Path(path)),
    "json": lambda _: read_json(path),
    "yaml": lambda _: load_config(path),
    "corpus": lambda _: [None for _ in open_corpus(path)],
}[reader]
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + int(limit), used + int(limit)))
sys.exit(run_command(read, []))
"""


def refused(reader: str, path: Path, limit: int = LIMIT) -> str:
    """Read a file in a process with a limit of memory; what it prints, which must be two lines."""
    command = [sys.executable, "-c", textwrap.dedent(_RUN), reader, str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 2
    return done.stderr


_LENGTH = (3 << 30).to_bytes(8, "little")
PICKLES = {
    "bytes": b"\x80\x03B\xff\xff\xff\xbf",
    "bytes of 8 byte lengths": b"\x80\x04\x8e" + _LENGTH,
    "an array of bytes": b"\x80\x05\x96" + _LENGTH,
    "a frame": b"\x80\x04\x95" + _LENGTH,
    "text": b"\x80\x02X\xff\xff\xff\x7f",
    "an integer": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "a memo": b"\x80\x02Nr\xff\xff\xff\x0b.",
    "a memo in text": b"Np999999999\n.",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_small_pickles_take_little_memory(tmp_path):
    from starbucks_retrieval.errors import UserError
    from starbucks_retrieval.store.safe_pickle import load_embeddings

    (tmp_path / "a.pkl").write_bytes(PICKLES["bytes"])
    assert "it ends inside a value" in refused("pickle", tmp_path / "a.pkl")
    for name, content in PICKLES.items():  # the first has shown that memory is limited; these are as quick as it
        (tmp_path / "a.pkl").write_bytes(content)
        with pytest.raises(UserError):
            load_embeddings(tmp_path / "a.pkl")
        assert name


@pytest.mark.attack
@pytest.mark.parametrize("name", PICKLES)
def test_each_small_pickle_takes_little_memory(tmp_path, name):
    (tmp_path / "a.pkl").write_bytes(PICKLES[name])
    refused("pickle", tmp_path / "a.pkl")
    record("memory", f"a pickle: {name}", 0, 1, refused=1)


def test_ids_nested_100_000_deep(tmp_path):
    import numpy as np

    from starbucks_retrieval.cli import run_command
    from starbucks_retrieval.store.__main__ import main

    ids: list = []
    for _ in range(100_000):
        ids = [ids]
    deep = b"\x80\x02" + pickle.EMPTY_LIST * 100_000 + pickle.APPEND * 99_999
    vectors = pickle.dumps(np.ones((1, 2), np.float32), 2)[2:-1]
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02" + vectors + deep[2:] + pickle.TUPLE2 + b".")
    words = f"import {tmp_path}/a.pkl {tmp_path}/out --name m --layer 2 --quiet".split()
    assert run_command(main, words) == 2


@pytest.mark.attack
@pytest.mark.parametrize("reader", ["json", "yaml", "corpus"])
def test_a_line_of_400_mb(tmp_path, reader):
    path = tmp_path / {"json": "a.json", "yaml": "a.yaml", "corpus": "a.jsonl"}[reader]
    with open(path, "wb") as file:
        file.write(b'{"docid": "')
        for _ in range(400):
            file.write(b"a" * (1 << 20))
    assert MAX_LINE == MAX_BYTES == 64 << 20
    assert "more than 64 MB" in refused(reader, path)
    record("memory", f"a line of 400 MB: {reader}", 0, 1, refused=1)


@pytest.mark.parametrize("suffix", ["jsonl", "tsv", "csv", "txt"])
def test_a_line_without_end(tmp_path, monkeypatch, suffix):
    from starbucks_retrieval.data import formats, open_corpus
    from starbucks_retrieval.errors import UserError

    monkeypatch.setattr(formats, "MAX_LINE", 1000)
    (tmp_path / f"a.{suffix}").write_text("docid,text\n" * (suffix == "csv") + "a" * 1001 + "\n")
    with pytest.raises(UserError, match="a line of more than"):
        list(open_corpus(str(tmp_path / f"a.{suffix}")))


def test_a_file_that_is_read_whole_has_a_limit(tmp_path):
    from starbucks_retrieval.errors import UserError
    from starbucks_retrieval.parsing import read_text

    (tmp_path / "a.json").write_text("x" * 101)
    assert read_text(tmp_path / "a.json", 101) == "x" * 101
    with pytest.raises(UserError, match="more than"):
        read_text(tmp_path / "a.json", 100)
