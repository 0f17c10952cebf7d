"""kill -9 at every step of writing a store, and at arbitrary moments; then the same command again."""

import json
import signal
import subprocess
import sys

import pytest
from conftest import slow_except

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import EmbeddingStore

# Writes a store of three shards. With a step number it dies of SIGKILL just before that call of fsync or replace, and
# what was not flushed by then is torn, as after a power cut; nothing is flushed for real, which only takes time. With a
# number of shards it stops, and says so, at the first such call after so many are there.
SCRIPT = """
import glob, json, os, signal, sys
import numpy as np
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter

def job(folder, die_at=0, stop_after=None):
    calls = 0
    def step(real):
        def call(*args):
            nonlocal calls
            calls += 1
            if stop_after is not None and len(glob.glob(folder + "/0*.json")) >= stop_after:
                print("stopped", flush=True)
                signal.pause()
            if calls == die_at:
                if real is fsync and not os.path.isdir(f"/proc/self/fd/{args[0]}"):
                    os.truncate(f"/proc/self/fd/{args[0]}", os.fstat(args[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)
        return call
    def fsync(descriptor):
        pass
    replace = os.replace
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
for step in range(1, calls + 1, int(sys.argv[2])):
    folder = f"{root}/killed-{step}"
    assert forked(folder, step) == signal.SIGKILL, step
    # Die once more on the way back, then finish.
    assert forked(folder, step % 7 + 1) in (0, signal.SIGKILL)
    assert forked(folder) == 0, step
print(json.dumps(calls))
"""
)


@pytest.mark.parametrize("every", slow_except([8], [8, 1]))
def test_killed_at_steps(every, tmp_path, contents):
    words = [sys.executable, "-c", EVERY_STEP, str(tmp_path), str(every)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)
    assert calls >= 3 * 7
    whole = contents(tmp_path / "whole")
    assert len(whole) == 3 * 3 + 1
    for step in range(1, calls + 1, every):
        assert contents(tmp_path / f"killed-{step}") == whole, step


@pytest.mark.slow
def test_killed_from_outside(tmp_path, contents):
    command = [sys.executable, "-c", SCRIPT + "job(sys.argv[1], 0, *map(int, sys.argv[2:]))"]
    for shards in (0, 1, 2):
        with subprocess.Popen([*command, str(tmp_path / "s"), str(shards)], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"stopped\n"
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        with pytest.raises(UserError):
            EmbeddingStore.open(tmp_path / "s")
    for folder in ("s", "whole"):
        subprocess.run([*command, str(tmp_path / folder)], check=True)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    assert EmbeddingStore.open(tmp_path / "s").count == 90
