"""Exports that other programs read."""

import json

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import OutputLock
from starbucks_retrieval.store import StoreSpec, convert, open_store
from starbucks_retrieval.store.__main__ import main
from starbucks_retrieval.store.convert import export_store


@pytest.fixture
def store(tmp_path, make_spec, write_store):
    return write_store(tmp_path / "s", make_spec(store_dtype="float16", data_count=23, shard_size=5))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(convert, "_BLOCK", 7 * 8 * 2)


def test_parquet(tmp_path, store, make_spec, rows_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    export_store(store, tmp_path / "out.parquet", "parquet")
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert file.schema_arrow.types == [pa.string(), pa.list_(pa.float16(), 8)]
    assert file.schema_arrow.names == ["id", "embedding"]
    assert file.num_row_groups == 4, "written block by block"
    described = json.loads(file.schema_arrow.metadata[b"starbucks_retrieval.store"])
    assert StoreSpec.from_json(described, "parquet") == open_store(store).spec
    check(file.read(), rows_of(open_store(store).spec))


def test_arrow(tmp_path, store, rows_of):
    import pyarrow as pa

    export_store(store, tmp_path / "out.arrow", "arrow")
    with pa.memory_map(str(tmp_path / "out.arrow")) as source:
        check(pa.ipc.open_file(source).read_all(), rows_of(open_store(store).spec))


def check(table, rows):
    ids, vectors = rows
    flat = table["embedding"].combine_chunks().flatten().to_numpy()
    assert table["id"].to_pylist() == ids
    assert np.array_equal(flat.reshape(-1, 8), vectors.astype(np.float16))


def test_npy(tmp_path, store, rows_of):
    ids, vectors = rows_of(open_store(store).spec)
    export_store(store, tmp_path / "out", "npy")
    written = np.load(tmp_path / "out" / "vectors.npy", mmap_mode="r", allow_pickle=False)
    assert np.array_equal(written, vectors.astype(np.float16))
    assert (tmp_path / "out" / "ids.txt").read_text(encoding="utf-8").splitlines() == ids


@pytest.mark.parametrize("to", ["parquet", "arrow", "npy"])
def test_nothing_half_written_and_nothing_overwritten(tmp_path, store, contents, monkeypatch, to):
    target = tmp_path / "out"
    real = convert._blocks

    def broken(source):
        for number, block in enumerate(real(source)):
            if number == 2:
                raise KeyboardInterrupt
            yield block

    with monkeypatch.context() as patch:
        patch.setattr(convert, "_blocks", broken)
        with pytest.raises(KeyboardInterrupt):
            export_store(store, target, to)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != store]
    export_store(store, target, to)
    before = contents(tmp_path)
    with pytest.raises(UserError, match="exists already") as caught:
        export_store(store, target, to)
    assert "--overwrite" in caught.value.hint and contents(tmp_path) == before
    export_store(store, target, to, overwrite=True)
    assert contents(tmp_path) == before


def test_one_process_exports_to_one_place(tmp_path, store):
    with OutputLock(tmp_path / "out"), pytest.raises(UserError, match="another process is writing"):
        export_store(store, tmp_path / "out", "npy")


def test_ids_that_no_line_can_hold(tmp_path, make_spec, rows_of):
    from starbucks_retrieval.store import StoreWriter

    spec = make_spec(data_count=2)
    with StoreWriter.open(tmp_path / "s", spec) as writer:
        writer.write_shard(0, ["a", "b\nc"], rows_of(spec)[1])
        writer.finish()
    with pytest.raises(UserError, match=r"'b\\nc' contains a line break"):
        export_store(tmp_path / "s", tmp_path / "out", "npy")
    assert not list((tmp_path / "out").iterdir())
    export_store(tmp_path / "s", tmp_path / "out.parquet", "parquet")


def test_the_export_door(tmp_path, store, capsys):
    argv = ["export", str(store), str(tmp_path / "out.parquet")]
    for more, what in [([], "--to is missing"), (["--to", "csv"], "invalid choice")]:
        assert run_command(main, [*argv, *more]) == 2
        assert what in capsys.readouterr().err
    assert run_command(main, [*argv, "--to", "parquet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 23
    assert run_command(main, ["export", str(store), "memory://bucket/x", "--to", "npy"]) == 2
