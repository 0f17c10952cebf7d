"""Files written by version 0.1 are still read: tests/fixtures/v0.1 was made by it (4 training steps, random weights)."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

FILES = Path(__file__).parent / "fixtures" / "v0.1"


def run_stage(stage: str, *words: object) -> None:
    importlib.import_module(f"starbucks_retrieval.{stage}.__main__").main([str(word) for word in words])


def docids(run: Path) -> list[list[str]]:
    return [[line.split()[i] for i in (0, 2, 3)] for line in run.read_text().splitlines()]


def passages() -> list[str]:
    return [json.loads(line)["text"] for line in (FILES / "set" / "corpus.jsonl").read_text().splitlines()]


def stored(size: str) -> np.ndarray:
    from starbucks_retrieval.sizes import Size
    from starbucks_retrieval.store import open_store

    store = open_store(str(FILES / "passages"), Size.parse(size))
    return np.concatenate([block.copy() for _, block in store.blocks(16, np.float32)])


@pytest.mark.parametrize("size", ["1:4", "2:16"])
def test_a_model_folder_gives_the_embeddings_of_its_store(size):
    from starbucks_retrieval import NestedEncoder, Size

    encoder = NestedEncoder.from_pretrained(FILES / "model", device="cpu")
    assert str(encoder.sizes) == "1:4,2:16"
    vectors = encoder.encode(passages(), sizes=size)[Size.parse(size)]
    np.testing.assert_allclose(vectors, stored(size), atol=2e-3)


def test_stores_are_searched(tmp_path):
    run_stage(
        *("search", "--query_reps", FILES / "queries", "--passage_reps", FILES / "passages", "--size", "2:16"),
        *("--depth", 5, "--save_ranking_to", tmp_path / "run.trec"),
    )
    assert docids(tmp_path / "run.trec") == docids(FILES / "run.trec")


def test_an_index_is_searched(tmp_path):
    run_stage(
        *("search", "--query_reps", FILES / "queries", "--passage_reps", FILES / "passages", "--size", "2:16"),
        *("--load_index", FILES / "index", "--depth", 5, "--save_ranking_to", tmp_path / "run.trec"),
    )
    found, exact = docids(tmp_path / "run.trec"), docids(FILES / "run.trec")
    assert len({(q, d) for q, d, _ in found} & {(q, d) for q, d, _ in exact}) >= 0.9 * len(exact)


def test_queries_encoded_today_search_passages_of_then(tmp_path):
    run_stage(
        *("encode", "--model_name_or_path", FILES / "model", "--dataset_path", FILES / "set", "--encode_is_query"),
        *("--encode_output_path", tmp_path / "queries", "--sizes", "2:16", "--dtype", "fp32"),
    )
    run_stage(
        *("search", "--query_reps", tmp_path / "queries", "--passage_reps", FILES / "passages", "--size", "2:16"),
        *("--depth", 5, "--save_ranking_to", tmp_path / "run.trec"),
    )
    assert docids(tmp_path / "run.trec") == docids(FILES / "run.trec")


def test_a_finished_store_is_left_as_it_is(tmp_path, capsys):
    shutil.copytree(FILES / "passages", tmp_path / "passages")
    before = {path: path.read_bytes() for path in (tmp_path / "passages").rglob("*.npy")}
    run_stage(
        *("encode", "--model_name_or_path", FILES / "model", "--dataset_path", FILES / "set", "--sizes", "all"),
        *("--encode_output_path", tmp_path / "passages", "--dtype", "fp32", "--json"),
    )
    assert {path: path.read_bytes() for path in (tmp_path / "passages").rglob("*.npy")} == before


def test_runs_and_result_files_are_read(tmp_path, capsys):
    run_stage("evaluate", "--run", FILES / "run.trec", "--qrels", FILES / "set", "--json")
    assert json.loads(capsys.readouterr().out)["runs"]
    run_stage("report", "--input", FILES / "result.json", FILES / "grid.json", "--output_dir", tmp_path / "report")
    assert (tmp_path / "report" / "index.html").is_file()
    run_stage("choose", "--input", FILES / "grid.json")


def test_an_onnx_file_gives_the_embeddings_of_its_size():
    runtime = pytest.importorskip("onnxruntime")
    from transformers import AutoTokenizer

    session = runtime.InferenceSession(FILES / "onnx" / "model.onnx")
    tokens = AutoTokenizer.from_pretrained(FILES / "onnx")(passages(), padding=True, return_tensors="np")
    inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    np.testing.assert_allclose(session.run(["embedding"], inputs)[0], stored("1:4"), atol=2e-3)
