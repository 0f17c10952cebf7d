"""The search command: engines that find the same, indexes, funnels, several sizes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import read_run
from starbucks_retrieval.search.__main__ import main
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import size_folder

SIZES = (Size(2, 4), Size(4, 8), Size(6, 16))


@pytest.fixture
def stores(tmp_path, write_store):
    """400 passages and 9 queries at three sizes under tmp_path/p and tmp_path/q, and their qrels: each query's best."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((400, 16)).astype(np.float32)
    queries = vectors[:9] + 0.1 * rng.standard_normal((9, 16)).astype(np.float32)
    ids, query_ids = [f"d{i}" for i in range(400)], [f"q{i}" for i in range(9)]
    for size in SIZES:
        spec = {"size": size, "fingerprint": f"layer {size.layer}"}
        write_store(tmp_path / "p" / size_folder(size), ids, vectors[:, : size.dim], **spec)
        spec |= {"kind": "queries", "data_digest": "q"}
        write_store(tmp_path / "q" / size_folder(size), query_ids, queries[:, : size.dim], **spec)
    (tmp_path / "qrels.txt").write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(9)))
    return tmp_path


def run(folder, *more, name="run.trec"):
    base = ["--query_reps", str(folder / "q"), "--passage_reps", str(folder / "p")]
    return [*base, "--save_ranking_to", str(folder / name), "--depth", "20", "--json", "--quiet", *more]


def ranked(folder, *more):
    assert run_command(main, run(folder, *more)) == 0
    return (folder / "run.trec").read_bytes()


def untagged(run):
    """The tag names the sizes, and tells a funnel from a search."""
    return [line.rsplit(b" ", 1)[0] for line in run.splitlines()]


def test_faiss_and_torch_write_the_same_bytes(stores):
    exact = ranked(stores, "--size", "6:16")
    for dtype in ("fp32", "bf16"):
        assert ranked(stores, "--size", "6:16", "--engine", "torch", "--dtype", dtype, "--device", "cpu") == exact


def test_a_funnel_that_keeps_all_is_exact_search(stores, capfd):
    exact = untagged(ranked(stores, "--size", "6:16"))
    capfd.readouterr()
    assert untagged(ranked(stores, "--funnel", "2:4@400,6:16")) == exact
    assert json.loads(capfd.readouterr().out)["funnel"] == "2:4@400,6:16@20"
    assert untagged(ranked(stores, "--funnel", "2:4@30,6:16")) != exact


def test_the_funnel_is_chosen_by_judgements(stores, capfd):
    assert (
        run_command(main, run(stores, "--funnel", "auto", "--qrels", str(stores / "qrels.txt"), "--target", "0.5")) == 0
    )
    figures = json.loads(capfd.readouterr().out)
    assert figures["choice"]["score"] >= 0.5 * figures["choice"]["full_score"]
    assert figures["funnel"].startswith(figures["choice"]["funnel"].split("@")[0])
    first = figures["funnel"]
    assert ranked(stores, "--funnel", first) == ranked(stores, "--funnel", first)  # what it says can be typed
    figures_of = json.loads(capfd.readouterr().out.splitlines()[0])
    assert figures_of["funnel"] == first


def test_without_judgements_a_funnel_is_chosen_by_agreement(stores, capfd):
    assert run_command(main, run(stores, "--funnel", "auto", "--target", "0.5")) == 0
    assert json.loads(capfd.readouterr().out)["choice"]["measure"] == "agreement@10"


def test_a_quantised_first_step(stores, capfd):
    exact = untagged(ranked(stores, "--size", "6:16"))
    assert untagged(ranked(stores, "--funnel", "6:16/int8@400,6:16")) == exact
    assert run_command(main, run(stores, "--funnel", "6:16/int8@400,6:16", "--index", "SQ8")) == 2
    assert "omit the index, or the code" in capfd.readouterr().err


def test_an_index_is_built_kept_and_opened(stores, capfd):
    exact = ranked(stores, "--size", "6:16")
    index = ("--save_index", str(stores / "index"))
    assert ranked(stores, "--size", "6:16", "--index", "Flat") == exact
    capfd.readouterr()
    # All lists are searched and all rows are scored again: nothing can be missed.
    all_of_it = ("--index_search", "nprobe=8", "--rescore", "20", "--measure_recall", "5")
    assert ranked(stores, "--size", "6:16", "--index", "IVF8,SQ8", *index, *all_of_it) == exact
    figures = json.loads(capfd.readouterr().out)
    assert figures["index"] == "IVF8,SQ8" and figures["recall"] == {"recall@10": 1.0}
    assert ranked(stores, "--size", "6:16", "--load_index", str(stores / "index"), *all_of_it[:4]) == exact
    assert run_command(main, run(stores, "--size", "4:8", "--load_index", str(stores / "index"))) == 2
    assert "4:8" in capfd.readouterr().err


def test_an_index_makes_the_shortlist_of_a_funnel(stores):
    exact = untagged(ranked(stores, "--size", "6:16"))
    index = ("--index", "HNSW8", "--index_search", "efSearch=800")
    assert untagged(ranked(stores, "--funnel", "2:4@400,6:16", *index)) == exact


def test_several_sizes_in_one_call(stores, capfd):
    assert run_command(main, run(stores, "--sizes", "all", name="runs")) == 0
    assert [one["size"] for one in json.loads(capfd.readouterr().out)["runs"]] == ["2:4", "4:8", "6:16"]
    for size in SIZES:
        alone = ranked(stores, "--size", str(size))
        assert (stores / "runs" / f"{size_folder(size)}.trec").read_bytes() == alone


@pytest.mark.slow
def test_ray_finds_the_same(stores):
    pytest.importorskip("ray")
    exact = ranked(stores, "--size", "6:16")
    assert ranked(stores, "--size", "6:16", "--engine", "ray", "--ray_workers", "2") == exact


@pytest.mark.slow
def test_milvus_finds_the_same(stores):
    pytest.importorskip("milvus_lite")
    milvus = ("--engine", "milvus", "--uri", str(stores / "passages.db"))
    ranked(stores, "--size", "6:16")
    exact = read_run(stores / "run.trec")
    ranked(stores, "--size", "6:16", *milvus)  # its scores are Milvus' own, in single precision
    assert {query: list(scores) for query, scores in read_run(stores / "run.trec").items()} == {
        query: list(scores) for query, scores in exact.items()
    }
    funnel = ("--funnel", "2:4@100,6:16")
    assert ranked(stores, *funnel) == ranked(stores, *funnel, *milvus)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (("--funnel", "2:4@30,6:16", "--size", "6:16"), "contradict"),
        (("--sizes", "all", "--size", "6:16"), "contradict"),
        (("--sizes", "all", "--index", "HNSW8"), "exact search only"),
        (("--size", "6:16", "--index", "HNSW8", "--load_index", "x"), "--load_index"),
        (("--size", "6:16", "--engine", "milvus"), "--uri"),
        (("--size", "6:16", "--engine", "ray", "--index", "HNSW8"), "--engine ray"),
        (("--size", "6:16", "--measure_recall", "5"), "--measure_recall"),
        (("--funnel", "6:16@30,2:4"), "6:16"),
        (("--funnel", "2:4@30,6:32"), "6:32"),
        (("--size", "6:16", "--index", "Sausage"), "Sausage"),
    ],
)
def test_contradicting_flags_are_refused_and_nothing_written(stores, capfd, more, what):
    assert run_command(main, run(stores, *more)) == 2
    assert what in capfd.readouterr().err
    assert not (stores / "run.trec").exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (("--index_search", "nprobe=3"), "takes no parameter nprobe"),
        (("--index_search", "efSearch=0"), "efSearch=0 is out of range"),
        (("--rescore", "-1"), "--rescore -1 is below 0"),
        (("--measure_recall", "0"), "--measure_recall 0 is below 1"),
    ],
)
def test_flags_of_search_are_checked_before_an_index_is_built(stores, capfd, more, what):
    assert (
        run_command(
            main, run(stores, "--size", "6:16", "--index", "HNSW8", "--save_index", str(stores / "index"), *more)
        )
        == 2
    )
    assert what in capfd.readouterr().err
    assert not (stores / "index").exists()
