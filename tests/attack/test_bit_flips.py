"""Thousands of flipped bits in stores, queries, indexes and manifests: noticed by what reads them, or without effect."""

import pytest
from attack.faults import record
from bit_flips import outcomes
from searched_stores import SEARCHES, searching, write_searched

from starbucks_retrieval.store import checksums, open_store
from starbucks_retrieval.store.layout import load_shard
from starbucks_retrieval.store.operations import describe_stores, verify_stores

pytestmark = [pytest.mark.attack, pytest.mark.timeout(3600)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(checksums, "BLOCK", 1024)
    return write_searched(tmp_path, 1800)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("kind", ["p/*/*.vectors.npy", "p/*/*.ids.npy", "q/*/*.npy", "index/index.faiss"])
def test_a_search_of_damaged_files_writes_the_same_run_or_none(files, tmp_path, kind, name, seed):
    chosen = [path for path in files if path.relative_to(tmp_path).match(kind)]
    found = outcomes(chosen, 100, seed, searching(tmp_path, name))
    record("bits", f"{kind}, {name} search", seed, found.total(), **found)


@pytest.mark.parametrize("manifest", ["p/L6-D32/manifest.json", "q/L6-D32/manifest.json", "index/manifest.json"])
def test_a_search_with_a_damaged_manifest_writes_the_same_run_or_none(files, tmp_path, manifest):
    found = outcomes([tmp_path / manifest], 2000, 3, searching(tmp_path, "index"))
    record("bits", f"{manifest}, search", 3, found.total(), **found)


def test_every_bit_of_a_manifest_is_noticed_by_verify_and_info(files, tmp_path):
    store = tmp_path / "q" / "L6-D32"

    def read():
        problems = verify_stores([store])["problems"]
        open_store(store)
        return problems, [{**one, "bytes": 0} for one in describe_stores([store])]

    found = outcomes([store / "manifest.json"], 8000, 4, read)
    record("bits", "manifest.json, store verify and info", 4, found.total(), **found)


def test_a_damaged_record_of_a_shard_is_no_record(files, tmp_path):
    store = tmp_path / "q" / "L6-D32"
    whole = load_shard(store, 0)
    found = outcomes([store / "00000.json"], 8000, 5, lambda: load_shard(store, 0) in (None, whole))
    assert found == {"harmless": 8000}
    record("bits", "record of a shard, resumed", 5, found.total(), **found)
