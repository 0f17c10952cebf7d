"""search --dry_run: what the real run then does, the same refusals, and nothing written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.search import dry_run
from starbucks_retrieval.search.__main__ import main
from starbucks_retrieval.search.machine import LinearCost, MachineRates, ScanRates
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import size_folder


@pytest.fixture
def stores(tmp_path, write_store, monkeypatch):
    """Queries and passages at two sizes, in the current folder; measuring the machine is left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_run, "_seconds", lambda *_: 5.0)
    rng = np.random.default_rng(1)
    for kind, count in (("passages", 300), ("queries", 9)):
        vectors = rng.standard_normal((count, 16)).astype(np.float32)
        for size in (Size(2, 4), Size(6, 16)):
            names = [f"{kind}-{i:04}" for i in range(count)]
            own = {"size": size, "kind": kind, "data_digest": kind}
            write_store(tmp_path / kind / size_folder(size), names, vectors[:, : size.dim], **own)
    return tmp_path


FLAGS = ["--query_reps", "queries", "--passage_reps", "passages", "--save_ranking_to", "run.trec"]


def previewed(capsys, *argv):
    assert run_command(main, [*FLAGS, *argv, "--dry_run", "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_dry_run_states_lines_and_bytes_of_the_run(stores, capsys):
    told = previewed(capsys, "--size", "6:16", "--depth", "20")
    (one,) = told["searches"]
    assert (one["queries"], one["passages"], one["depth"], one["lines"], one["passes"]) == (9, 300, 20, 180, 1)
    assert one["sizes"] == {"6:16": 300 * 16 * 4} and told["seconds"] == 5.0 and not one["exists"]
    assert not (stores / "run.trec").exists()
    assert run_command(main, [*FLAGS, "--size", "6:16", "--depth", "20", "--quiet"]) == 0
    written = (stores / "run.trec").read_bytes()
    assert written.count(b"\n") == one["lines"]
    assert len(written) == pytest.approx(one["bytes"], rel=0.2)
    assert previewed(capsys, "--size", "6:16")["searches"][0]["exists"]


def test_passes_grow_when_memory_is_short(stores, capsys):
    told = previewed(capsys, "--size", "6:16", "--batch_size", "2")
    assert told["searches"][0]["passes"] == 5
    assert previewed(capsys, "--size", "6:16", "--max_memory", "1")["searches"][0]["passes"] == 9


def test_funnels_indexes_several_sizes_and_other_engines(stores, capsys):
    (funnel,) = previewed(capsys, "--funnel", "2:4@50,6:16", "--depth", "10")["searches"]
    assert (list(funnel["sizes"]), funnel["way"], funnel["seconds"]) == (
        ["2:4", "6:16"],
        "funnel 2:4@50,6:16@10; by faiss",
        None,
    )
    (index,) = previewed(capsys, "--size", "6:16", "--index", "HNSW32")["searches"]
    assert "index HNSW32, built and then deleted" in index["way"] and index["passes"] is None
    several = previewed(capsys, "--sizes", "all")
    assert [one["output"] for one in several["searches"]] == ["run.trec/L2-D4.trec", "run.trec/L6-D16.trec"]
    assert several["seconds"] == 10.0
    (milvus,) = previewed(capsys, "--size", "6:16", "--engine", "milvus", "--uri", "m.db")["searches"]
    assert milvus["way"].endswith("milvus at m.db") and not (stores / "m.db").exists()
    auto = previewed(capsys, "--funnel", "auto", "--qrels", "q.txt")
    assert "chosen by q.txt" in auto["searches"][0]["way"] and auto["seconds"] is None


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        ([], "several sizes"),
        (["--size", "3:3"], "3:3"),
        (["--size", "6:16", "--depth", "0"], "--depth 0"),
        (["--size", "6:16", "--funnel", "2:4@9,6:16"], "contradict"),
        (["--funnel", "2:4@9,6:16", "--engine", "ray"], "--engine ray"),
        (["--size", "6:16", "--engine", "milvus"], "--uri is missing"),
        (["--size", "6:16", "--measure_recall", "9"], "--measure_recall"),
        (["--sizes", "all", "--index", "HNSW32"], "--sizes goes with exact search"),
        (["--size", "6:16", "--query_reps", "passages", "--passage_reps", "queries"], "swap"),
    ],
)
def test_dry_run_refuses_what_search_refuses(stores, capsys, argv, what):
    for more in (["--dry_run"], []):
        assert run_command(main, [*FLAGS, *argv, *more]) == 2
        assert what in capsys.readouterr().err


def test_a_time_for_exact_search(stores, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(stores)
    requested = []
    scan = LinearCost(0.0, 1e-3)  # a millisecond a number
    free = LinearCost(0.0, 0.0)

    def measured(seconds, *, batches, store_dtype, **options):
        requested.append((batches, store_dtype))
        parts = {"call": 0.0, "opening": 0.0, "reading": 0.0, "fetching": free, "rescoring": free}
        rates = dict.fromkeys(batches, ScanRates(scan, choose=0.0))
        return MachineRates(10**9, 1, 1e9, store_dtype, 1000, **parts, rates=rates)

    monkeypatch.setattr(dry_run, "measure_machine", measured)
    for engine in ("faiss", "torch"):
        figures = previewed(capsys, "--size", "6:16", "--engine", engine)
        assert figures["seconds"] == pytest.approx(9 * 300 * 16 * 1e-3)
        assert figures["searches"][0]["engine"] == engine
    assert requested == [((9,), "float32")] * 2


def test_searches_that_are_alike_are_measured_once(stores, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(stores)
    requested, measure = [], dry_run.measure_machine
    monkeypatch.setattr(
        dry_run, "measure_machine", lambda *given, **options: requested.append(options) or measure(*given, **options)
    )
    figures = previewed(capsys, "--sizes", "all")
    assert len(figures["searches"]) > 1 == len(requested) and figures["seconds"] > 0
