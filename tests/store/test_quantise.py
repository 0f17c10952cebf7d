"""Stores with a byte or a bit for each number."""

import dataclasses
import json

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, open_store, output_folder
from starbucks_retrieval.store.__main__ import main
from starbucks_retrieval.store.convert import quantise_stores
from starbucks_retrieval.store.dtypes import QUANTISED, Quantiser, calibration_rows
from starbucks_retrieval.store.layout import read_manifest
from starbucks_retrieval.store.operations import merge_stores, slice_store
from starbucks_retrieval.store.writer import StoreWriter

LEVELS = {"scale": (0.5,) * 8, "offset": (0.25,) * 8}


@pytest.fixture
def floats(tmp_path, make_spec, write_store):
    spec = make_spec(data_count=23, shard_size=5)
    return write_store(output_folder(tmp_path / "floats", spec.size), spec)


@pytest.mark.parametrize("store_dtype", QUANTISED)
def test_codes_are_read_as_vectors_by_every_reader(tmp_path, floats, make_spec, rows_of, store_dtype):
    figures = quantise_stores([floats], store_dtype)
    store = open_store(tmp_path / "floats" / store_dtype)  # beside the sizes
    ids, vectors = rows_of(make_spec(data_count=23))
    quantiser = store.spec.quantiser
    expected = quantiser.decode(quantiser.encode(vectors))
    assert store.dtype == np.float32 and store.spec.version == 3
    assert np.array_equal(store.vectors(np.arange(23)[::-1]), expected[::-1])
    assert np.array_equal(np.concatenate([block.copy() for _, block in store.blocks(4)]), expected)
    assert np.array_equal(np.concatenate([block.copy() for _, block in store.blocks(7, np.float32)]), expected)
    found, part = store.consecutive(3, 12)  # three shards
    assert found == ids[3:12] and np.array_equal(part, expected[3:12])
    assert np.sqrt(np.square(expected.astype(np.float64)).sum(axis=1)).max() <= store.largest_norm
    assert figures["bytes"] == 23 * (8 if store_dtype == "int8" else 1)
    store.verify()
    # As near as a byte, or a bit of each number, can be.
    error = np.abs(expected - vectors) / vectors.std(axis=0)
    assert error.mean() < (0.02 if store_dtype == "int8" else 0.6)


def test_codes_depend_on_neither_shards_nor_parts_nor_a_kill(tmp_path, floats, make_spec, write_store, rows_of):
    quantise_stores([floats], "int8")
    whole = open_store(tmp_path / "floats" / "int8")
    spec = dataclasses.replace(whole.spec, provenance={})
    for part in range(2):
        one = dataclasses.replace(spec, parts=2, part=part, shard_size=3)
        write_store(output_folder(tmp_path / "parts", spec.size, 2, part), one)
    merge_stores([tmp_path / "parts"], tmp_path / "merged", shard_size=5)
    resumed = tmp_path / "resumed"
    with StoreWriter.open(resumed, spec) as writer:
        writer.write_shard(0, *whole.consecutive(0, 5))
    # The scales of the first start count, even where those of a rerun differ in the last bit.
    other = dataclasses.replace(spec, scale=tuple(np.nextafter(spec.scale, 9).tolist()))
    with StoreWriter.open(resumed, other) as writer:
        assert writer.missing_shards() == [1, 2, 3, 4]
        ids, vectors = rows_of(spec)
        for shard in writer.missing_shards():
            start, stop = spec.shard_rows(shard)
            writer.write_shard(shard, ids[start:stop], vectors[start:stop])
        writer.finish()
    files = sorted(path.name for path in whole.folders[0].glob("*.vectors.npy"))
    assert len(files) == 5
    for folder in (tmp_path / "merged" / "L6-D8", resumed):
        assert [(folder / name).read_bytes() for name in files] == [
            (whole.folders[0] / name).read_bytes() for name in files
        ]


def test_parts_with_other_scales_are_refused(tmp_path, make_spec, write_store):
    for part in range(2):
        levels = LEVELS if part else LEVELS | {"scale": (0.25,) * 8}
        spec = make_spec(store_dtype="int8", parts=2, part=part, **levels)
        write_store(output_folder(tmp_path, spec.size, 2, part), spec)
    with pytest.raises(UserError, match="not parts of one store: scale"):
        open_store(tmp_path)


def test_int8_cuts_off_what_is_far_outside_the_sample():
    quantiser = Quantiser.calibrate("int8", np.array([[-1.0], [1.0], [np.nan]]))
    assert quantiser.encode(np.array([[100.0], [-100.0], [0.0]])).tolist() == [[127], [-127], [0]]
    constant = Quantiser.calibrate("int8", np.full((3, 2), 0.7))
    assert constant.decode(constant.encode(np.full((1, 2), 0.7))) == pytest.approx(np.full((1, 2), 0.7))
    with pytest.raises(UserError, match="no vector is finite"):
        Quantiser.calibrate("binary", np.full((2, 2), np.inf))


def test_a_change_of_the_scales_is_noticed(tmp_path, floats):
    quantise_stores([floats], "int8", tmp_path / "out")
    path = tmp_path / "out" / "L6-D8" / "manifest.json"
    content = json.loads(path.read_text())
    content["spec"]["scale"][3] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="digest does not match"):
        read_manifest(path.parent)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"store_dtype": "int8"}, "int8 at 6:8 needs 8 scales above 0 and as many offsets"),
        ({"store_dtype": "binary", **LEVELS, "scale": (0.0,) * 8}, "binary at 6:8 needs 8 scales above 0"),
        ({"store_dtype": "float16", **LEVELS}, "float16 at 6:8 needs 0 scales"),
        ({"store_dtype": "int4"}, "--store_dtype int4 is unknown"),
    ],
)
def test_impossible_scales_are_refused(make_spec, values, problem):
    with pytest.raises(UserError, match=problem):
        make_spec(**values)


def test_a_spec_survives_json(make_spec):
    spec = make_spec(store_dtype="int8", scale=tuple(np.float32(0.1) * np.arange(1, 9)), offset=(-0.125,) * 8)
    assert StoreSpec.from_json(json.loads(json.dumps(spec.quantised("int8", np.eye(8)).to_json())), "x").scale
    assert "scale" not in make_spec().to_json() and make_spec().version == 1


def test_quantised_stores_are_neither_sliced_nor_quantised_again(tmp_path, floats, capsys):
    assert run_command(main, ["quantise", str(floats), "--to", "int8", "--output", str(tmp_path / "q"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["rows"], figures["bytes_before"], figures["bytes"]) == (23, 23 * 32, 23 * 8)
    with pytest.raises(UserError, match=r"cannot quantise .*: it is stored in int8 already"):
        quantise_stores([tmp_path / "q"], "binary", tmp_path / "again")
    with pytest.raises(UserError, match=r"cannot slice .*: it is stored in int8 already"):
        slice_store(tmp_path / "q", tmp_path / "cut", [4])


def test_parts_are_quantised_into_a_folder_that_is_named(tmp_path, make_spec, write_store):
    for part in range(2):
        spec = make_spec(parts=2, part=part)
        write_store(output_folder(tmp_path / "parts", spec.size, 2, part), spec)
    with pytest.raises(UserError, match="6:8 is stored in 2 parts"):
        quantise_stores([tmp_path / "parts"], "int8")
    quantise_stores([tmp_path / "parts"], "int8", tmp_path / "whole")
    assert EmbeddingStore.open(tmp_path / "whole" / "L6-D8").count == 10
    assert open_store(tmp_path / "whole", Size(6, 8)).spec.parts == 1


def test_calibration_rows_are_spread():
    rows = calibration_rows(5000)
    assert len(rows) == 1024 and np.diff(rows).min() >= 4 and rows[-1] > 4990
