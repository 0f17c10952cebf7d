"""Building and keeping indexes: whole or not at all."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.search.indexes import build as build_module
from starbucks_retrieval.search.indexes import build_index, open_index
from starbucks_retrieval.search.indexes.vectors import VectorIndex
from starbucks_retrieval.store import EmbeddingStore

pytest.importorskip("faiss")

IDS = [f"d{number}" for number in range(1000)]


def vectors(count=1000, dim=16, seed=1):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@pytest.fixture
def store(open_written):
    return open_written(IDS, vectors(), shard_size=300)


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def files(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()} if folder.exists() else {}


def test_the_manifest_records_parameters_and_store(tmp_path, store, ticking):
    summary = build_index(
        store, "IVF8,SQ8", tmp_path / "index", parameters={"niter": 5}, train_sample=400, seed=7, threads=1
    )
    content = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert content["format"] == "starbucks_retrieval.index" and content["metric"] == "inner product"
    assert (content["factory"], content["parameters"], content["seed"]) == ("IVF8,SQ8", {"niter": 5}, 7)
    assert (content["train_sample"], content["trained_on"]) == (400, 400)
    recorded = {
        "kind": "passages",
        "size": "6:16",
        "dim": 16,
        "count": 1000,
        "fingerprint": "f00d",
        "data_digest": "da7a",
    }
    assert recorded.items() <= content["store"].items()
    length = (tmp_path / "index" / "index.faiss").stat().st_size
    assert content["bytes"] == length == summary.manifest.bytes
    figures = summary.to_json()
    assert figures["bytes_per_passage"] == length / 1000
    assert (figures["seconds"], figures["train_seconds"]) == (3, 1)  # a second between two readings of the clock
    assert "IVF8,SQ8 over 1000 passages at 6:16" in str(summary)
    assert open_index(tmp_path / "index", store).manifest == summary.manifest


@pytest.mark.parametrize(
    "factory", ["IVF8,PQ4x4", pytest.param("OPQ4,IVF8,PQ4x4fs", marks=pytest.mark.slow), "HNSW8", "SQ8", "Binary"]
)
def test_the_same_build_gives_the_same_bytes(tmp_path, store, factory):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        build_index(store, factory, tmp_path / name, train_sample=500, seed=seed, threads=1)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    if factory != "HNSW8":  # it learns nothing
        assert files(tmp_path / "a")["index.faiss"] != files(tmp_path / "c")["index.faiss"] or factory == "Binary"


def test_a_sample_as_large_as_memory_allows(tmp_path, store, caplog):
    def trained_on(factory, **options):
        return build_index(store, factory, tmp_path / "index", overwrite=True, **options).manifest.trained_on

    assert trained_on("SQ8") == 1000
    assert trained_on("SQ8", max_memory=2 * 16 * 4 * 100) == 100
    assert trained_on("Flat") == trained_on("HNSW8") == 0
    assert "fewer than 39 for each" not in caplog.text
    assert trained_on("IVF30,Flat", max_memory=1_000) == 30  # fewer would do no good
    assert "learns 30 clusters from 30 passages" in caplog.text and "raise --max_memory" in caplog.text


def test_an_index_that_is_there_is_kept(tmp_path, store, open_written, caplog):
    folder = tmp_path / "index"
    assert build_index(store, "SQ8", folder).built
    before = files(folder)
    again = build_index(store, "SQ8", folder)
    assert not again.built and "already" in str(again) and files(folder) == before
    other = open_written(IDS, vectors(seed=2), name="other")
    for other_store, factory, options in [(store, "SQ4", {}), (store, "SQ8", {"seed": 1}), (other, "SQ8", {})]:
        with pytest.raises(UserError, match="holds another index: SQ8 over 1000 passages at 6:16"):
            build_index(other_store, factory, folder, **options)
    assert files(folder) == before
    assert build_index(store, "SQ4", folder, overwrite=True).built
    assert open_index(folder, store).manifest.factory == "SQ4"
    (folder / "index.faiss").write_bytes(flip(files(folder)["index.faiss"]))
    assert build_index(store, "SQ4", folder).built
    assert "built again" in caplog.text


def test_folders_of_other_things_are_left_alone(tmp_path, store, write_store):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    other = write_store(tmp_path / "store", IDS, vectors())
    for name, what in [
        ("file", "is a file"),
        ("full", "holds something else: thesis.tex"),
        ("store", "holds something else"),
    ]:
        before = files(tmp_path / name) if name != "file" else None
        with pytest.raises(UserError, match=what):
            build_index(store, "SQ8", tmp_path / name, overwrite=True)
        assert before is None or files(tmp_path / name) == before
    EmbeddingStore.open(other)
    with pytest.raises(UserError, match="is not the manifest of an index"):
        open_index(other, store)


@pytest.mark.parametrize("moment", ["train", "add", "save", "rename", "manifest"])
def test_a_failure_leaves_no_index(tmp_path, store, monkeypatch, moment):
    folder = tmp_path / "index"

    def fail(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        if moment == "save":
            real = VectorIndex.save
            broken.setattr(VectorIndex, "save", lambda self, path: (real(self, path), fail()))
        elif moment in ("train", "add"):
            broken.setattr(VectorIndex, moment, fail)
        elif moment == "rename":
            broken.setattr("os.replace", fail)
        else:
            broken.setattr(build_module, "write_json", fail)
        with pytest.raises(OSError, match="disk is full"):
            build_index(store, "IVF8,SQ8", folder, threads=1)
    with pytest.raises(UserError, match=r"is not an index|is incomplete"):
        open_index(folder, store)
    assert set(files(folder)) <= {"index.faiss"}
    assert build_index(store, "IVF8,SQ8", folder, threads=1).built
    open_index(folder, store)


def test_an_old_index_lasts_until_the_new_one_is_written(tmp_path, store, monkeypatch):
    folder = tmp_path / "index"
    build_index(store, "SQ8", folder)
    before = files(folder)
    with monkeypatch.context() as broken:
        broken.setattr(VectorIndex, "add", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(store, "SQ4", folder, overwrite=True)
    assert files(folder) == before
    with monkeypatch.context() as broken:
        broken.setattr(build_module, "write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(store, "SQ4", folder, overwrite=True)
    with pytest.raises(UserError, match="incomplete"):
        open_index(folder, store)


BUILD = """
import signal, sys
from starbucks_retrieval.search.indexes import build_index
from starbucks_retrieval.search.indexes.vectors import VectorIndex
from starbucks_retrieval.store import open_store
real = VectorIndex.save
def save(self, path):
    real(self, path)
    print("written", flush=True)
    signal.pause()
VectorIndex.save = save
build_index(open_store(sys.argv[1]), "SQ8", sys.argv[2])
"""


def test_killed_while_writing(tmp_path, store):
    folder = tmp_path / "index"
    command = [sys.executable, "-c", BUILD, str(tmp_path / "passages"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    left, lock = sorted(files(folder))
    assert re.fullmatch(r"\.index\.faiss\.\w+\.tmp", left) and lock == ".lock"
    with pytest.raises(UserError, match="incomplete: building it was interrupted"):
        open_index(folder, store)
    assert build_index(store, "SQ8", folder).built
    assert set(files(folder)) == {"index.faiss", "manifest.json"}


def test_one_process_builds_an_index(tmp_path, store):
    (tmp_path / "index").mkdir()
    lock = FolderLock(tmp_path / "index")
    with pytest.raises(UserError, match=f"another process is writing .*index: process {os.getpid()} on"):
        build_index(store, "SQ8", tmp_path / "index")
    lock.forget()  # as if it had been killed
    assert build_index(store, "SQ8", tmp_path / "index").built
    (tmp_path / "index" / ".lock").write_text("process 1 on a machine that lost its power when the index was there\n")
    assert not build_index(store, "SQ8", tmp_path / "index").built
    assert set(files(tmp_path / "index")) == {"index.faiss", "manifest.json"}


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        ("IVF8", "FAISS refuses --index 'IVF8' at 16 dimensions: could not parse index string IVF8"),
        ("", "could not parse index string"),
        ("IVF8,PQ5", "dimension of the vector .d. should be a multiple of the number of subquantizers"),
        ("IVF99999999999,Flat", "FAISS refuses .*: stoi"),
        ("HNSW8_PQ4", "does not search by inner product"),
        ("IDMap,Flat", "FAISS cannot build, keep and search IDMap,Flat: add does not make sense with IndexIDMap"),
        ("IVF0,Flat", "0 is too small"),
        ("PQ4x0", "0 is too small"),
        ("HNSW1,Flat", "HNSW1 is too small"),
        ("NSG8", "cannot add passages to such an index block by block"),
        ("IVF2000,Flat", "needs at least 2000 passages to learn from; the store has 1000"),
        ("OPQ4,PQ4x10", "needs at least 1024 passages to learn from"),
        ("PCA1001,Flat", "needs at least 1001 passages to learn from"),
        ("PCA32,Flat", "FAISS cannot train PCA32,Flat on 1000 passages"),
    ],
)
def test_refused_factories(tmp_path, store, factory, what):
    with pytest.raises(UserError, match=what) as caught:
        build_index(store, factory, tmp_path / "index")
    assert caught.value.hint and "/" not in caught.value.what.replace(str(tmp_path), "")
    assert not files(tmp_path / "index")


def test_other_refusals(tmp_path, store):
    for factory, options, what in [
        ("IVF20,Flat", {"train_sample": 19}, "--train_sample 19 is too small for --index IVF20,Flat"),
        ("SQ8", {"train_sample": 0}, "--train_sample 0"),
        ("Flat", {"parameters": {"efConstruction": 8}}, "Flat takes no parameter efConstruction for building"),
        ("HNSW8", {"parameters": {"efConstruction": 0}}, "efConstruction=0 is out of range"),
        ("Binary", {"parameters": {"niter": 8}}, "Binary takes no parameter niter"),
    ]:
        with pytest.raises(UserError, match=what):
            build_index(store, factory, tmp_path / "index", **options)
    assert not files(tmp_path / "index")
    assert build_index(store, "HNSW8", tmp_path / "index", parameters={"efConstruction": 99}).manifest.parameters == {
        "efConstruction": 99
    }
