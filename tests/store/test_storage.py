"""Stores at URLs, on fsspec's file systems in memory and on the disk."""

import json
import logging
import subprocess
import sys
from mmap import mmap

import numpy as np
import pytest

from starbucks_retrieval import locks
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreWriter, open_store, open_stores, output_folder, storage

UPath = pytest.importorskip("upath").UPath


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """An empty folder in memory; copies go to a cache of the test's own."""
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "cache"))
    yield UPath("memory://bucket")
    file_system = UPath("memory://bucket").fs
    file_system.store.clear()
    file_system.pseudo_dirs[:] = [""]


def copies(tmp_path):
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())


@pytest.mark.parametrize("spelled", [str, UPath])
def test_a_store_in_memory_has_the_bytes_of_a_local_one(tmp_path, bucket, make_spec, write_store, rows_of, spelled):
    spec = make_spec(store_dtype="float16")
    here = write_store(tmp_path / "s", spec)
    there = write_store(output_folder(spelled("memory://bucket/out"), spec.size), spec)
    assert str(there) == "memory://bucket/out/L6-D8"
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {
        path.name: path.read_bytes() for path in there.iterdir()
    }
    store = open_store(spelled("memory://bucket/out"))
    ids, vectors = rows_of(spec)
    assert store.ids(np.arange(10)) == ids
    assert np.array_equal(store.vectors(np.arange(10)), vectors.astype(np.float16))
    store.verify()


def test_arrays_are_fetched_once_and_mapped(tmp_path, bucket, make_spec, write_store):
    folder = write_store(storage.as_path("memory://bucket/s"), make_spec())
    store = EmbeddingStore.open(folder)
    assert not copies(tmp_path)
    next(store.blocks(4))
    [copy] = copies(tmp_path)
    (tmp_path / "new").touch()
    assert copy.stat().st_mode == (tmp_path / "new").stat().st_mode  # for all who may read it
    before = copy.stat().st_ino
    ((_, block), *_) = store.blocks(4)
    assert isinstance(block.base.base, mmap)
    assert len(copies(tmp_path)) == 3  # each shard's vectors, no ids
    assert copy.stat().st_ino == before, "it was fetched again"


def test_what_is_fetched_is_checked(tmp_path, bucket, make_spec, write_store):
    folder = write_store(storage.as_path("memory://bucket/s"), make_spec())
    path = folder / "00001.vectors.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    store = EmbeddingStore.open(folder)
    assert store.vectors(np.array([0, 9])).shape == (2, 8)
    for read in (lambda: store.vectors(np.array([5])), store.verify):
        with pytest.raises(UserError, match=r"memory://bucket/s/00001.vectors.npy does not match its checksum"):
            read()
    assert len(copies(tmp_path)) == 2, "a bad copy was kept"
    path.unlink()
    with pytest.raises(UserError, match=r"00001.vectors.npy is missing"):
        EmbeddingStore.open(folder)


def test_verify_reads_what_is_there_and_not_the_copy(bucket, make_spec, write_store):
    folder = write_store(storage.as_path("memory://bucket/s"), make_spec())
    store = EmbeddingStore.open(folder)
    store.vectors(np.arange(10))
    path = folder / "00000.vectors.npy"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(UserError, match=r"00000\.vectors\.npy does not match"):
        store.verify()


def test_a_cache_that_cannot_be_written_names_the_remedy(tmp_path, bucket, make_spec, write_store, monkeypatch):
    store = EmbeddingStore.open(write_store(storage.as_path("memory://bucket/s"), make_spec()))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="00000") as caught:
        store.vectors(np.arange(10))
    assert "set STARBUCKS_CACHE" in caught.value.hint


def test_an_array_that_has_gone_is_named(bucket, make_spec, write_store):
    folder = write_store(storage.as_path("memory://bucket/s"), make_spec())
    store = EmbeddingStore.open(folder)
    (folder / "00001.ids.npy").unlink()
    with pytest.raises(UserError, match=r"memory://bucket/s/00001\.ids\.npy is missing"):
        store.ids(np.arange(10))


def test_resume_and_refusals_at_a_url(bucket, make_spec, write_store, rows_of, fill):
    spec, folder = make_spec(), storage.as_path("memory://bucket/s")
    ids, vectors = rows_of(spec)
    with StoreWriter.open(folder, spec) as writer:
        writer.write_shard(1, ids[4:8], vectors[4:8])
    with pytest.raises(UserError, match="incomplete: 1 of 3 shards"):
        open_store("memory://bucket/s")
    (folder / "00002.vectors.npy").write_bytes(b"no json vouches for it")
    with StoreWriter.open(folder, spec) as writer:
        assert writer.done_shards() == [1]
        assert not (folder / "00002.vectors.npy").exists()
        fill(writer)
    with pytest.raises(UserError, match="fingerprint is 'f00d' there"):
        StoreWriter.open(folder, make_spec(fingerprint="beef"))
    write_store(folder, make_spec(fingerprint="beef"), overwrite=True)
    assert open_store(folder).spec.fingerprint == "beef"
    UPath("memory://bucket/other/thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"something else: thesis\.tex"):
        StoreWriter.open("memory://bucket/other", spec, overwrite=True)


def test_parts_and_patterns_at_a_url(bucket, make_spec, write_store, rows_of):
    for part in (1, 0):
        for size in (Size(2, 4), Size(6, 8)):
            spec = make_spec(size=size, data_count=23, parts=2, part=part)
            write_store(output_folder("memory://bucket/out", size, 2, part), spec)
    ids, _ = rows_of(make_spec(data_count=23))
    for path in ("memory://bucket/out", "memory://bucket/out/part-*", UPath("memory://bucket/out") / "*" / "L6-D8"):
        assert open_store(path, Size(6, 8)).ids(np.arange(23)) == ids
    assert open_stores("memory://bucket/out/*/L2-D4").spec.size == Size(2, 4)
    with pytest.raises(UserError, match="several sizes: 2:4, 6:8"):
        open_store("memory://bucket/out")
    for absent, what in [("memory://bucket/no", "no such folder"), ("memory://bucket/n*", "no folder matches")]:
        with pytest.raises(UserError, match=what):
            open_store(absent)


def test_no_lock_is_told_once(bucket, make_spec, caplog):
    locks._warn_unlocked.cache_clear()
    with caplog.at_level(logging.WARNING, logger="starbucks_retrieval"):
        for name in "ab":
            StoreWriter.open(f"memory://bucket/{name}", make_spec()).close()
    assert [record.message for record in caplog.records] == [
        "memory:// has no locks: run one job at a time on a folder there"
    ]


def test_a_file_url_is_a_local_path(tmp_path, make_spec, write_store, contents):
    folder = write_store(output_folder(f"file://{tmp_path}/out", Size(6, 8)), make_spec())
    assert folder == tmp_path / "out" / "L6-D8" and not storage.is_remote(folder)
    assert not storage.is_remote(storage.as_path(UPath(str(tmp_path))))
    with StoreWriter.open(f"file://{tmp_path}/t", make_spec()), pytest.raises(UserError, match="another process"):
        StoreWriter.open(tmp_path / "t", make_spec())
    assert open_store(f"file://{tmp_path}/out").folders == [folder]


def test_json_has_the_same_bytes_everywhere(tmp_path, bucket):
    content = {"b": [1, 0.1], "a": "é中"}
    write_json(tmp_path / "x.json", content)
    storage.write_json(storage.as_path("memory://bucket/s"), "x.json", content)
    assert UPath("memory://bucket/s/x.json").read_bytes() == (tmp_path / "x.json").read_bytes()


def test_what_a_file_system_raises_names_the_url(bucket, make_spec, write_store, monkeypatch):
    folder = write_store(storage.as_path("memory://bucket/s"), make_spec())

    def down(*_, **__):
        raise RuntimeError("connection reset")

    monkeypatch.setattr(type(folder.fs), "cat_file", down)
    monkeypatch.setattr(type(folder.fs), "_open", down)
    with pytest.raises(
        UserError, match=r"memory://bucket/s/manifest.json cannot be reached: RuntimeError: connection reset"
    ):
        open_store(folder)
    # A network that is down is no missing shard: nothing may be written again, or removed, because of it.
    with pytest.raises(UserError, match="cannot be reached"):
        StoreWriter.open(folder, make_spec())


@pytest.mark.parametrize("url", ["nonsense://bucket/s", "s3://bucket/s"])
def test_unknown_and_missing_protocols(url, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match="bucket/s") as caught:
        open_store(url)
    assert caught.value.hint == ("pip install s3fs" if url.startswith("s3") else caught.value.hint)
    assert "s3" in caught.value.hint


def test_without_universal_pathlib_only_urls_are_refused(tmp_path, make_spec, write_store, monkeypatch):
    folder = write_store(tmp_path / "s", make_spec())
    monkeypatch.setitem(sys.modules, "upath", None)
    assert open_store(str(folder)).count == 10
    with pytest.raises(UserError, match="memory://b/x is a URL") as caught:
        open_store("memory://b/x")
    assert caught.value.hint == "pip install universal_pathlib"


def test_local_stores_import_no_fsspec(tmp_path, make_spec, write_store):
    folder = write_store(tmp_path / "s", make_spec())
    code = (
        "import json, sys; from starbucks_retrieval.store import open_store\n"
        f"open_store({str(folder)!r}).verify()\n"
        "print(json.dumps([name for name in ('upath', 'fsspec') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_a_server_that_cannot_be_reached(tmp_path):
    pytest.importorskip("upath")
    with pytest.raises(UserError, match=r"ftp://127\.0\.0\.1:9/x cannot be reached: ConnectionRefusedError"):
        storage.as_path("ftp://127.0.0.1:9/x")
