"""Several processes that write one store."""

import signal
import subprocess
import sys

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, StoreWriter

SPEC = """StoreSpec(
    kind="passages", size=Size(6, 16), pooling="cls", normalize=True, prefix="", separator=" ", max_length=196,
    fingerprint="f00d", compute_dtype="fp32", store_dtype="float16", data_digest="da7a", data_count=150, shard_size=40,
)"""

# A joiner that writes the shards it is told, one after the other; with `die` it is killed before the last shard's
# second array gets its name.
JOINER = f"""
import os, signal, sys
import numpy as np
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter

spec = {SPEC}
folder, die, *shards = sys.argv[1:]
vectors = np.random.default_rng(0).standard_normal((150, 16)).astype(np.float32)
renamed, real = 0, os.replace

def replace(*names):
    global renamed
    renamed += 1
    if die == "die" and renamed == 3 * len(shards) - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*names)

os.replace = replace
with StoreWriter.join(folder, spec) as writer:
    for shard in map(int, shards):
        start, stop = spec.shard_rows(shard)
        writer.write_shard(shard, [f"d{{row}}" for row in range(start, stop)], vectors[start:stop])
"""


@pytest.fixture
def spec():
    return eval(SPEC, {"StoreSpec": StoreSpec, "Size": Size})  # noqa: S307 - the text above


@pytest.fixture
def rows(spec):
    import numpy as np

    vectors = np.random.default_rng(0).standard_normal((150, 16)).astype(np.float32)

    def write(writer, shards):
        for shard in shards:
            start, stop = spec.shard_rows(shard)
            writer.write_shard(shard, [f"d{row}" for row in range(start, stop)], vectors[start:stop])

    return write


@pytest.mark.slow
def test_joined_processes_one_of_them_killed(tmp_path, spec, rows, contents):
    folder = tmp_path / "s"
    with StoreWriter.open(folder, spec) as leader:
        joiners = [
            subprocess.Popen([sys.executable, "-c", JOINER, str(folder), *words])
            for words in (["live", "1"], ["die", "3", "2"])
        ]
        rows(leader, [0])
        assert [joiner.wait(60) for joiner in joiners] == [0, -signal.SIGKILL]
        assert leader.done_shards() == [0]
        leader.collect()
        assert leader.missing_shards() == [2]
        with pytest.raises(ValueError, match="1 shards are missing"):
            leader.finish()
    assert (folder / "00002.vectors.npy").exists() and list(folder.glob(".00002.ids.npy.*.tmp"))
    with StoreWriter.open(folder, spec) as again:
        assert again.missing_shards() == [2]
        assert not list(folder.glob(".00002.ids.npy.*.tmp"))
        rows(again, [2])
        again.finish()
    with StoreWriter.open(tmp_path / "alone", spec) as alone:
        rows(alone, range(4))
        alone.finish()
    assert contents(folder) == contents(tmp_path / "alone")
    EmbeddingStore.open(folder).verify()


def test_a_joiner_sees_what_is_there_and_cannot_finish(tmp_path, spec, rows):
    with StoreWriter.open(tmp_path / "s", spec) as leader:
        rows(leader, [0, 3])
        (tmp_path / "s" / ".00001.vectors.npy.tmp").write_bytes(b"another joiner is at it")
        with StoreWriter.join(tmp_path / "s", spec) as joiner:
            assert joiner.missing_shards() == [1, 2] and not joiner.complete
            rows(joiner, [1, 2])
            with pytest.raises(ValueError, match="cannot finish"):
                joiner.finish()
        assert (tmp_path / "s" / ".lock").exists(), "a joiner let go of the leader's lock"
        leader.collect()
        leader.finish()
    joined = StoreWriter.join(tmp_path / "s", spec)
    assert joined.complete and joined.missing_shards() == []


def test_joining_touches_nothing_that_is_not_its_own(tmp_path, spec, rows, contents):
    with StoreWriter.open(tmp_path / "s", spec) as leader:
        rows(leader, [0])
        (tmp_path / "s" / "00001.vectors.npy").write_bytes(b"half of another joiner's shard")
        before = contents(tmp_path / "s")
        StoreWriter.join(tmp_path / "s", spec).close()
        assert contents(tmp_path / "s") == before


def test_joining_another_job_or_none_is_refused(tmp_path, make_spec):
    with pytest.raises(UserError, match="is not started"):
        StoreWriter.join(tmp_path / "s", make_spec())
    assert not (tmp_path / "s").exists()
    with StoreWriter.open(tmp_path / "s", make_spec()):
        with pytest.raises(UserError, match="another job: max_length is 196 there, 32 here"):
            StoreWriter.join(tmp_path / "s", make_spec(max_length=32))
        assert StoreWriter.join(tmp_path / "s", make_spec(model_name="spelled otherwise")).spec == make_spec()


def test_collect_looks_at_lengths_and_rows(tmp_path, make_spec, rows_of, write_store):
    spec = make_spec()
    ids, vectors = rows_of(spec)
    with StoreWriter.open(tmp_path / "s", spec) as leader:
        with StoreWriter.join(tmp_path / "s", spec) as joiner:
            for shard in range(3):
                start, stop = spec.shard_rows(shard)
                joiner.write_shard(shard, ids[start:stop], vectors[start:stop])
        (tmp_path / "s" / "00001.ids.npy").write_bytes(b"short")
        stray = tmp_path / "s" / "00002.json"
        stray.write_text(stray.read_text().replace('"start": 8', '"start": 7'))
        leader.collect()
        assert leader.done_shards() == [0]
