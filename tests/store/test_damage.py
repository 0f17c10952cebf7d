"""A flipped bit of a store is noticed by whatever reads it, or changes nothing. The long version is in tests/attack."""

import json
import logging
import os

import numpy as np
import pytest
from bit_flips import flipped, outcomes
from conftest import slow_except
from small_stores import make_0_1

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import EmbeddingStore, StoreWriter, checksums
from starbucks_retrieval.store.layout import load_shard, read_manifest
from starbucks_retrieval.store.operations import describe_stores, merge_stores, verify_stores

ROWS = np.array([2999, 5, 1700, 5])


@pytest.fixture(params=slow_except(["float16"], ["float32", "float16"]))
def store(request, tmp_path, make_spec, write_store, monkeypatch):
    """3000 rows in two shards of several blocks each."""
    monkeypatch.setattr(checksums, "BLOCK", 4096)
    spec = make_spec(data_count=3000, shard_size=2000, store_dtype=request.param)
    return write_store(tmp_path / "s", spec)


@pytest.fixture(autouse=True)
def _a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(checksums, "_checked", {})


def read_all(folder):
    store = EmbeddingStore.open(folder)
    vectors = [b"".join(block.tobytes() for _, block in store.blocks(700, dtype)) for dtype in (None, np.float32)]
    return vectors, store.ids(np.arange(store.count))


@pytest.mark.parametrize("kind", ["vectors", "ids"])
def test_every_flip_of_an_array_is_noticed_by_a_read_of_all_rows(store, kind):
    files = sorted(store.glob(f"*.{kind}.npy"))
    assert outcomes(files, 40, 1, lambda: read_all(store)) == {"noticed": 40}


def test_reads_of_some_rows_notice_what_concerns_them(store):
    def read():
        opened = EmbeddingStore.open(store)
        ids, vectors = opened.consecutive(1990, 2010)
        return opened.vectors(ROWS).tobytes(), opened.id_bytes(ROWS), ids, vectors.tobytes()

    found = outcomes(sorted(store.glob("*.npy")), 120, 2, read)
    assert found["noticed"] > 20 and found["harmless"] > 20


def test_a_header_is_not_parsed_before_it_is_checked(store):
    path = store / "00001.vectors.npy"
    for byte in range(0, 128, 5):
        with flipped(path, byte, byte % 8), pytest.raises(UserError, match=r"bytes 0 to \d+ do not match"):
            EmbeddingStore.open(store).vectors(ROWS)


@pytest.mark.parametrize("name", ["00000.vectors.npy", "00000.ids.npy"])
def test_a_damaged_header_of_0_1_is_refused_or_harmless(store, name):
    make_0_1(store)
    assert outcomes([store / name], 0, 0, lambda: read_all(store)) == {}
    for byte in range(128):
        with flipped(store / name, byte, byte % 8):
            try:
                EmbeddingStore.open(store).consecutive(0, 5)
            except UserError as error:
                assert name in error.what


def test_blocks_are_checked_once_a_process_and_again_after_a_change(store, monkeypatch):
    checked = []
    real = checksums.damaged_block
    monkeypatch.setattr(
        checksums, "damaged_block", lambda content, sums, blocks: checked.extend(blocks) or real(content, sums, blocks)
    )
    read_all(store)
    first = len(checked)
    assert first == sum(checksums.blocks_of(path.stat().st_size) for path in store.glob("*.npy"))
    read_all(store)
    assert len(checked) == first, "remembered, in another store object too"
    path = store / "00000.ids.npy"
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))
    read_all(store)
    assert len(checked) - first == checksums.blocks_of(path.stat().st_size)


def test_who_wants_no_checksums_reads_without(store):
    with flipped(store / "00000.vectors.npy", 140, 3):
        opened = EmbeddingStore.open(store)
        opened.skip_checksums()
        assert len(opened.vectors(ROWS)) == 4


def test_merging_does_not_give_damage_new_checksums(store, tmp_path):
    with flipped(store / "00001.ids.npy", 2000, 0), pytest.raises(UserError, match="do not match their checksum"):
        merge_stores([store], tmp_path / "merged")
    make_0_1(store)
    with flipped(store / "00001.ids.npy", 2000, 0), pytest.raises(UserError, match="does not match its checksum"):
        merge_stores([store], tmp_path / "merged")
    merge_stores([store], tmp_path / "merged")
    assert read_manifest(tmp_path / "merged" / "L6-D8").has_checksums


def test_a_store_of_0_1_is_read_and_says_once_that_it_is_not_checked(store, caplog):
    before = read_all(store)
    make_0_1(store)
    with caplog.at_level(logging.DEBUG, "starbucks_retrieval"):
        assert read_all(store) == before and read_all(store) == before
    assert len([record for record in caplog.records if "has no checksums of blocks" in record.message]) == 1
    assert verify_stores([store])["problems"] == []


def test_every_flip_of_a_manifest_is_noticed(store):
    found = outcomes([store / "manifest.json"], 300, 3, lambda: verify_stores([store]))
    assert set(found) <= {"noticed", "harmless"} and found["harmless"] < 10  # white space
    assert outcomes([store / "manifest.json"], 300, 3, lambda: read_manifest(store))["noticed"] > 290


def test_every_flip_of_the_record_of_a_shard_is_noticed(store):
    path = store / "00001.json"
    whole = load_shard(store, 1)
    for byte in range(0, path.stat().st_size, 3):
        with flipped(path, byte, byte % 7):
            assert load_shard(store, 1) in (None, whole)


@pytest.mark.parametrize("changes", [{"separator": "-"}, {"fingerprint": "f00e"}, {"data_digest": "da7b"}])
def test_edits_of_a_spec_are_noticed(store, changes):
    manifest = store / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content))  # another layout of the same content is none
    assert verify_stores([store])["problems"] == []
    content["spec"] |= changes
    manifest.write_text(json.dumps(content))
    for read in (EmbeddingStore.open, lambda folder: verify_stores([folder]), lambda folder: describe_stores([folder])):
        with pytest.raises(UserError, match="its digest does not match"):
            read(store)
    del content["digest"]
    manifest.write_text(json.dumps(content))
    with pytest.raises(UserError, match="its digest does not match"):
        EmbeddingStore.open(store)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("changes", [{"data_count": 12 * 10**10}, {"data_count": 12 * 10**10, "parts": 10**10}])
def test_impossible_counts_are_refused_before_they_are_counted(store, changes, complete, make_spec):
    spec = json.loads((store / "manifest.json").read_text())["spec"] | {"shard_size": 1} | changes
    make_0_1(store, complete=complete, spec=spec)
    with pytest.raises(UserError):
        EmbeddingStore.open(store)
    if complete:
        with pytest.raises(UserError, match="is damaged"):
            verify_stores([store])
    else:
        assert "is incomplete: 2 of" in verify_stores([store])["problems"][-1]
        assert describe_stores([store])[0]["shards_there"] == 2
        with pytest.raises(UserError, match="holds another"):
            StoreWriter.open(store, make_spec(data_count=3000, shard_size=2000))


@pytest.mark.parametrize("value", ["12", 1.5, True, None, float("inf")])
def test_counts_are_whole_numbers(store, value):
    spec = json.loads((store / "manifest.json").read_text())["spec"]
    make_0_1(store, spec=spec | {"data_count": value})
    with pytest.raises(UserError, match="is damaged"):
        EmbeddingStore.open(store)
