import errno
import json
import os
import subprocess

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreWriter, output_folder, size_folder


def test_files_are_plain_numpy(tmp_path, make_spec, write_store, rows_of):
    spec = make_spec()
    folder = write_store(tmp_path / size_folder(spec.size), spec)
    ids, vectors = rows_of(spec)
    assert folder.name == "L6-D8"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["manifest.json"] + [f"0000{k}.{what}" for k in range(3) for what in ("vectors.npy", "ids.npy", "json")]
    )
    assert np.array_equal(np.load(folder / "00001.vectors.npy", allow_pickle=False), vectors[4:8])
    assert np.load(folder / "00001.ids.npy", allow_pickle=False)[3].decode() == ids[7]


def test_equal_jobs_give_equal_bytes(tmp_path, make_spec, write_store, contents):
    first, second = (write_store(tmp_path / name, make_spec()) for name in "ab")
    assert contents(first) == contents(second)


def test_a_finished_job_has_nothing_to_do(tmp_path, make_spec, write_store, contents):
    folder = write_store(tmp_path / "s", make_spec())
    before = contents(folder)
    with StoreWriter.open(folder, make_spec(data_name="spelled otherwise")) as writer:
        assert writer.complete and writer.missing_shards() == []
    assert contents(folder) == before


def test_resume_keeps_whole_shards_and_redoes_the_rest(tmp_path, make_spec, write_store, rows_of, fill, contents):
    spec, folder = make_spec(data_count=20), tmp_path / "half"
    ids, vectors = rows_of(spec)
    with StoreWriter.open(folder, spec) as writer:
        for shard in range(4):
            start, stop = spec.shard_rows(shard)
            writer.write_shard(shard, ids[start:stop], vectors[start:stop])
    (folder / "00000.vectors.npy").write_bytes(b"short")  # another length
    damaged = bytearray((folder / "00001.ids.npy").read_bytes())
    damaged[-1] ^= 1
    (folder / "00001.ids.npy").write_bytes(damaged)  # the right length, another content
    (folder / "00002.json").write_text('{"shard": 2, "rows"')
    (folder / ".00004.vectors.npy.tmp").write_bytes(b"half")
    with StoreWriter.open(folder, spec) as writer:
        assert not writer.complete
        assert writer.done_shards() == [3]
        assert writer.missing_shards() == [0, 1, 2, 4]
        assert not (folder / ".00004.vectors.npy.tmp").exists()
        fill(writer)
    assert contents(folder) == contents(write_store(tmp_path / "whole", spec))


def test_a_finished_store_has_no_file_of_a_killed_process(tmp_path, make_spec, write_store, fill, contents):
    folder = tmp_path / "half"
    with StoreWriter.open(folder, make_spec()) as writer:
        # As a joined process leaves it that is killed while it writes; another one then writes its shard.
        (folder / ".00000.vectors.npy.0123456789ab.tmp").write_bytes(b"half")
        fill(writer)
    assert contents(folder) == contents(write_store(tmp_path / "whole", make_spec()))


def test_a_finished_store_that_was_damaged_is_mended(tmp_path, make_spec, write_store, fill, contents):
    folder = write_store(tmp_path / "s", make_spec())
    before = contents(folder)
    (folder / "00002.vectors.npy").unlink()
    with StoreWriter.open(folder, make_spec()) as writer:
        assert writer.missing_shards() == [2]
        assert json.loads((folder / "manifest.json").read_text())["complete"] is False
        fill(writer)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fingerprint": "beef"}, "fingerprint is 'f00d' there, 'beef' here"),
        ({"size": Size(6, 4)}, "size is 6:8 there, 6:4 here"),
        ({"data_digest": "other"}, "data_digest"),
        ({"shard_size": 5}, "shard_size is 4 there, 5 here"),
    ],
)
def test_another_job_in_the_folder_is_refused(tmp_path, make_spec, write_store, contents, changes, what):
    folder = write_store(tmp_path / "s", make_spec())
    before = contents(folder)
    with pytest.raises(UserError, match=what) as caught:
        StoreWriter.open(folder, make_spec(**changes))
    assert "--overwrite" in caught.value.hint
    assert contents(folder) == before


def test_overwrite_replaces_our_own_store(tmp_path, make_spec, write_store, contents):
    folder = write_store(tmp_path / "s", make_spec(data_count=30))
    write_store(folder, make_spec(fingerprint="beef"), overwrite=True)
    assert contents(folder) == contents(write_store(tmp_path / "fresh", make_spec(fingerprint="beef")))


@pytest.mark.parametrize("foreign", ["thesis.tex", "00000.vectors.npy.bak", "manifest.json", "data/x"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_named_and_never_touched(tmp_path, make_spec, contents, foreign, overwrite):
    path = tmp_path / "s" / foreign
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "somebody else\'s"}')
    before = contents(tmp_path / "s")
    with pytest.raises(UserError, match=f"something else: {foreign.split('/')[0]}"):
        StoreWriter.open(tmp_path / "s", make_spec(), overwrite=overwrite)
    assert contents(tmp_path / "s") == before


def test_a_file_in_the_place_of_the_folder(tmp_path, make_spec):
    (tmp_path / "s").write_text("")
    with pytest.raises(UserError, match="is a file"):
        StoreWriter.open(tmp_path / "s", make_spec())


def test_one_writer_at_a_time(tmp_path, make_spec, write_store):
    with StoreWriter.open(tmp_path / "s", make_spec()), pytest.raises(UserError, match="another process is writing"):
        StoreWriter.open(tmp_path / "s", make_spec(), overwrite=True)
    write_store(tmp_path / "s", make_spec())
    assert not (tmp_path / "s" / ".lock").exists()


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN or infinity"), (np.inf, "NaN or infinity")])
def test_bad_numbers_name_the_document(tmp_path, make_spec, rows_of, value, what):
    spec = make_spec()
    ids, vectors = rows_of(spec)
    vectors[2, 5] = value
    with StoreWriter.open(tmp_path / "s", spec) as writer, pytest.raises(UserError, match=f"'doc-2-é中🙂' has {what}"):
        writer.write_shard(0, ids[:4], vectors[:4])
    assert not list((tmp_path / "s").glob("00000*"))


def test_float16_overflow_names_the_document_and_the_remedy(tmp_path, make_spec, rows_of):
    spec = make_spec(store_dtype="float16")
    ids, vectors = rows_of(spec)
    vectors[1, 0] = 70_000
    with StoreWriter.open(tmp_path / "s", spec) as writer, pytest.raises(UserError, match="doc-1-") as caught:
        writer.write_shard(0, ids[:4], vectors[:4])
    assert caught.value.hint == "give --store_dtype float32"


def test_ids_with_nul_are_refused(tmp_path, make_spec, rows_of):
    _, vectors = rows_of(make_spec())
    for bad in ("a\0", "\ud800"):
        with StoreWriter.open(tmp_path / "s", make_spec()) as writer, pytest.raises(UserError, match="the id"):
            writer.write_shard(0, ["x", "y", bad, "z"], vectors[:4])


def test_wrong_shapes_are_the_callers_bug(tmp_path, make_spec, rows_of):
    ids, vectors = rows_of(make_spec())
    with StoreWriter.open(tmp_path / "s", make_spec()) as writer:
        for shard, own_ids, own in [(0, ids[:3], vectors[:3]), (0, ids[:4], vectors[:4, :7]), (3, [], vectors[:0])]:
            with pytest.raises(ValueError, match="shard"):
                writer.write_shard(shard, own_ids, own)
        with pytest.raises(ValueError, match="3 shards are missing"):
            writer.finish()


def test_output_folders():
    assert str(output_folder("out", Size(6, 128))) == "out/L6-D128"
    assert str(output_folder("out", Size(6, 128), parts=4, part=2)) == "out/part-00002-of-00004/L6-D128"


@pytest.mark.parametrize("call", range(1, 10))
def test_a_disk_that_fills_up(tmp_path, make_spec, write_store, fill, contents, monkeypatch, call):
    """The disk is full at the n-th flush: nothing half-written is taken for whole, and a rerun completes."""
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) >= call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError) as caught, StoreWriter.open(tmp_path / "s", make_spec()) as writer:
            fill(writer)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(UserError):
        EmbeddingStore.open(tmp_path / "s")
    write_store(tmp_path / "s", make_spec())
    assert contents(tmp_path / "s") == contents(write_store(tmp_path / "whole", make_spec()))


def test_a_real_disk_that_is_full(tmp_path, make_spec, write_store, contents):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        spec = make_spec(data_count=1000, size=Size(6, 64), shard_size=200)
        with pytest.raises(OSError) as caught:
            write_store(small / "s", spec)
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(UserError, match=r"is incomplete: [12] of 5 shards"):
            EmbeddingStore.open(small / "s")
        subprocess.run(["mount", "-o", "remount,size=4m", str(small)], check=True)
        write_store(small / "s", spec)
        assert contents(small / "s") == contents(write_store(tmp_path / "whole", spec))
    finally:
        subprocess.run(["umount", str(small)], check=True)
