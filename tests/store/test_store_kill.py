"""kill -9 at every step of writing a store, and at arbitrary moments; then the same command again."""

import json
import signal
import subprocess
import sys
import time

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import EmbeddingStore

# Writes a store of three shards. With a step number it dies of SIGKILL just before that call of fsync or replace, and
# what was not flushed by then is torn, as after a power cut. With a pause every call takes that long.
SCRIPT = """
import json, os, signal, sys, time
import numpy as np
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter

def job(folder, die_at=0, pause=0.0):
    calls = 0
    def step(real):
        def call(*args):
            nonlocal calls
            calls += 1
            time.sleep(pause)
            if calls == die_at:
                if real is fsync and not os.path.isdir(f"/proc/self/fd/{args[0]}"):
                    os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)
        return call
    fsync, replace = os.fsync, os.replace
    os.fsync, os.replace = step(fsync), step(replace)
    spec = StoreSpec(
        kind="passages", size=Size(6, 16), pooling="cls", normalize=True, prefix="", separator=" ", max_length=196,
        fingerprint="f00d", compute_dtype="fp32", store_dtype="float16", data_digest="da7a", data_count=90,
        shard_size=40,
    )
    vectors = np.random.default_rng(0).standard_normal((90, 16)).astype(np.float32)
    with StoreWriter.open(folder, spec) as writer:
        for shard in writer.missing_shards():
            start, stop = spec.shard_rows(shard)
            writer.write_shard(shard, [f"é{row}" for row in range(start, stop)], vectors[start:stop])
        writer.finish()
    return calls

def forked(*args):
    child = os.fork()
    if child == 0:
        job(*args)
        os._exit(0)
    return os.waitpid(child, 0)[1]
"""

EVERY_STEP = (
    SCRIPT
    + """
root = sys.argv[1]
calls = job(root + "/whole")
for step in range(1, calls + 1):
    folder = f"{root}/killed-{step}"
    assert forked(folder, step) == signal.SIGKILL, step
    # Die once more on the way back, then finish.
    assert forked(folder, step % 7 + 1) in (0, signal.SIGKILL)
    assert forked(folder) == 0, step
print(json.dumps(calls))
"""
)


def test_killed_at_every_step(tmp_path, contents):
    done = subprocess.run([sys.executable, "-c", EVERY_STEP, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)
    assert calls >= 3 * 7
    whole = contents(tmp_path / "whole")
    assert len(whole) == 3 * 3 + 1
    for step in range(1, calls + 1):
        assert contents(tmp_path / f"killed-{step}") == whole, step


def test_killed_from_outside(tmp_path, contents):
    slow = [sys.executable, "-c", SCRIPT + "job(sys.argv[1], 0, float(sys.argv[2]))", str(tmp_path / "s")]
    interrupted = 0
    for shards_wanted in (0, 1, 2):
        process = subprocess.Popen([*slow, "0.02"])
        deadline = time.monotonic() + 20
        while len(list((tmp_path / "s").glob("0*.json"))) < shards_wanted or not (tmp_path / "s").exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        interrupted += process.wait() == -signal.SIGKILL
        with pytest.raises(UserError):
            EmbeddingStore.open(tmp_path / "s")
    assert interrupted == 3
    for folder in ("s", "whole"):
        slow[-1] = str(tmp_path / folder)
        subprocess.run([*slow, "0"], check=True)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    assert EmbeddingStore.open(tmp_path / "s").count == 90
