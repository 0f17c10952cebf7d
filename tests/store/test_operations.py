"""Smaller dims from a stored one, and parts as one store."""

import json

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, check_same, open_store, output_folder
from starbucks_retrieval.store.__main__ import main
from starbucks_retrieval.store.operations import merge_stores, slice_store, truncate
from starbucks_retrieval.store.writer import StoreWriter


@pytest.fixture
def wide(tmp_path, make_spec, write_store):
    spec = make_spec(normalize=True, data_count=23, shard_size=5)
    return write_store(output_folder(tmp_path / "wide", spec.size), spec)


def test_slices_are_cut_and_brought_to_length_one(tmp_path, wide, make_spec, rows_of):
    slice_store(wide, tmp_path / "out", [2, 4, 8])
    ids, vectors = rows_of(make_spec(data_count=23))
    for dim in (2, 4):
        store = EmbeddingStore.open(tmp_path / "out" / f"L6-D{dim}")
        expected = vectors[:, :dim].astype(np.float64)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert store.ids(np.arange(23)) == ids
        assert np.abs(store.vectors(np.arange(23)) - expected).max() < 1e-7
        store.verify()
        # Queries encoded at that very size are searched in it.
        check_same(make_spec(kind="queries", size=Size(6, dim), normalize=True, data_digest="q"), store.spec)
    same = EmbeddingStore.open(tmp_path / "out" / "L6-D8")
    assert np.array_equal(same.vectors(np.arange(23)), vectors) and same.spec == EmbeddingStore.open(wide).spec


def test_a_store_that_is_not_normalised_is_only_cut(tmp_path, make_spec, write_store, rows_of):
    spec = make_spec(store_dtype="float16")
    slice_store(write_store(tmp_path / "s", spec), tmp_path / "out", [3])
    store = open_store(tmp_path / "out")
    assert np.array_equal(store.vectors(np.arange(10)), rows_of(spec)[1].astype(np.float16)[:, :3])


def test_cut_leaves_zeros_zero():
    assert np.array_equal(
        truncate(np.array([[0, 0, 1], [3, 4, 0]], np.float16), 2, True), np.array([[0, 0], [0.6, 0.8]], np.float32)
    )


def test_a_slice_resumes_to_the_same_bytes_and_is_no_encoding(tmp_path, wide, make_spec, contents, monkeypatch):
    slice_store(wide, tmp_path / "whole", [2, 4])
    written = []
    real = StoreWriter.write_shard

    def stop(self, shard, *rest):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(shard)
        real(self, shard, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            slice_store(wide, tmp_path / "half", [2, 4])
    assert written == [0, 0, 1, 1, 2]
    assert slice_store(wide, tmp_path / "half", [2, 4])["shards_written"] == 3
    assert slice_store(wide, tmp_path / "half", [2, 4])["shards_written"] == 0
    assert contents(tmp_path / "half") == contents(tmp_path / "whole")
    with pytest.raises(UserError, match="compute_dtype is 'fp32-cut8' there, 'fp32' here"):
        StoreWriter.open(
            tmp_path / "half" / "L6-D4", make_spec(size=Size(6, 4), normalize=True, data_count=23, shard_size=5)
        )


@pytest.mark.parametrize("dims", [[9], [4, 16], [0], [-1, 2]])
def test_dims_that_are_not_there_are_listed(tmp_path, wide, dims):
    wrong = [dim for dim in dims if dim not in (2, 4)]
    with pytest.raises(UserError, match=f"stores 8 dimensions: {', '.join(map(str, wrong))} cannot") as caught:
        slice_store(wide, tmp_path / "out", dims)
    assert "1 to 8" in caught.value.hint and not (tmp_path / "out").exists()


def test_a_store_is_not_cut_into_itself(wide, contents):
    before = contents(wide)
    with pytest.raises(UserError, match="read and written at the same time"):
        slice_store(wide, wide.parent, [4, 8], overwrite=True)
    assert contents(wide) == before


def test_the_slice_door(tmp_path, wide, make_spec, write_store, capsys):
    write_store(output_folder(wide.parent, Size(2, 8)), make_spec(size=Size(2, 8)))
    argv = ["slice", str(wide.parent), str(tmp_path / "out"), "--dims", "2,4", "--dim", "3"]
    assert run_command(main, argv) == 2
    assert "several sizes: 2:8, 6:8" in capsys.readouterr().err
    assert run_command(main, [*argv, "--size", "6:8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == ["6:2", "6:3", "6:4"]
    assert run_command(main, [*argv[:3], "--dims", "2,x"]) == 2


@pytest.fixture
def parts(tmp_path, make_spec, write_store):
    for part in (2, 0, 1):
        for size in (Size(2, 4), Size(6, 8)):
            spec = make_spec(size=size, data_count=23, parts=3, part=part)
            write_store(output_folder(tmp_path / "parts", size, 3, part), spec)
    return tmp_path / "parts"


@pytest.mark.parametrize("shard_size", [None, 3, 100])
def test_merged_parts_have_the_bytes_of_one_job(tmp_path, parts, make_spec, write_store, contents, shard_size):
    figures = merge_stores([f"{parts}/part-*"], tmp_path / "out", shard_size)
    assert figures["sizes"] == ["2:4", "6:8"] and figures["rows"] == 46
    for size in (Size(2, 4), Size(6, 8)):
        spec = make_spec(size=size, data_count=23, shard_size=shard_size or 4)
        assert contents(output_folder(tmp_path / "out", size)) == contents(write_store(tmp_path / f"{size}", spec))


def test_merge_takes_several_paths_and_one_size(tmp_path, parts, capsys):
    argv = ["merge", *(str(parts / f"part-0000{part}-of-00003") for part in (1, 2, 0)), str(tmp_path / "out")]
    assert run_command(main, [*argv, "--size", "6:8"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["L6-D8"]
    assert open_store(tmp_path / "out").count == 23
    assert run_command(main, [*argv, "--size", "6:9"]) == 2
    assert "no size 6:9" in capsys.readouterr().err


def test_slices_and_merged_parts_keep_the_shared_space(tmp_path, make_spec, write_store, capsys):
    for part in (0, 1):
        write_store(tmp_path / f"{part}", make_spec(parts=2, part=part, shared_space="5ace"))
    merge_stores([tmp_path / "0", tmp_path / "1"], tmp_path / "merged")
    slice_store(tmp_path / "merged", tmp_path / "cut", [4])
    assert open_store(tmp_path / "cut").spec.shared_space == "5ace"
    assert run_command(main, ["info", str(tmp_path / "cut")]) == 0
    assert "5ace, shared with other layers" in capsys.readouterr().out
    assert run_command(main, ["verify", str(tmp_path / "cut"), str(tmp_path / "merged")]) == 0
    with pytest.raises(UserError, match="shared_space is"):
        write_store(tmp_path / "2", make_spec(parts=2, part=1))
        merge_stores([tmp_path / "0", tmp_path / "2"], tmp_path / "x")


def test_merge_resumes(tmp_path, parts, contents):
    merge_stores([parts], tmp_path / "out")
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "L6-D8" / "00001.json").unlink()
    assert merge_stores([parts], tmp_path / "out")["shards_written"] == 1
    assert contents(tmp_path / "out") == before


def test_merge_refuses_what_is_not_whole_or_not_one(tmp_path, parts, make_spec, write_store):
    with pytest.raises(UserError, match=r"parts \[1\] of 3 are missing"):
        merge_stores([parts / "part-00000-of-00003", parts / "part-00002-of-00003"], tmp_path / "out")
    with pytest.raises(UserError, match=r"parts \[1, 2\] of 3 are missing"):
        merge_stores([parts / "part-00000-of-00003"], tmp_path / "out")
    with pytest.raises(UserError, match="holds parts"):
        merge_stores([parts], parts)
    whole = write_store(output_folder(tmp_path / "whole", Size(6, 8)), make_spec())
    with pytest.raises(UserError, match="read and written at the same time"):
        merge_stores([whole], tmp_path / "whole", 2, overwrite=True)
    assert open_store(whole).count == 10
