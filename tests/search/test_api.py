import json
import sys

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import read_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import FunnelArguments, SearchArguments, engine_choice, loops
from starbucks_retrieval.search import api as api_module
from starbucks_retrieval.search import engines as engines_module
from starbucks_retrieval.search import search as run_search
from starbucks_retrieval.search.__main__ import main
from starbucks_retrieval.search.engine_choice import choose_engine
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, open_store, output_folder, size_folder


def search(queries, passages, run, depth=None, *, size=None, funnel=None, **flags):
    """search() with paths and sizes as they are."""
    paths = {"query_reps": str(queries), "passage_reps": str(passages), "save_ranking_to": str(run)}
    arguments = SearchArguments(**paths, depth=depth, size=None if size is None else str(size), **flags)
    return run_search(arguments, FunnelArguments(funnel))


@pytest.fixture
def stores(tmp_path, write_store):
    """Queries and passages at two sizes, under tmp_path/q and tmp_path/p; returns the ids and full vectors."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((300, 16)).astype(np.float32)
    vectors[40:60] = vectors[40]
    queries = rng.standard_normal((9, 16)).astype(np.float32)
    ids, query_ids = [f"dok-é{i}" for i in range(300)], [f"q中{i}" for i in range(9)]
    for size in (Size(2, 4), Size(6, 16)):
        name = size_folder(size)
        write_store(tmp_path / "p" / name, ids, vectors[:, : size.dim], size=size)
        write_store(
            tmp_path / "q" / name, query_ids, queries[:, : size.dim], size=size, kind="queries", data_digest="q"
        )
    return ids, vectors, query_ids, queries


@pytest.mark.parametrize("size", slow_except([Size(6, 16)], [Size(2, 4), Size(6, 16)]))
def test_run_is_brute_force(tmp_path, stores, brute_force, size):
    ids, vectors, query_ids, queries = stores
    summary = search(tmp_path / "q", tmp_path / "p", tmp_path / "run.trec", 20, size=size)
    assert (summary.queries, summary.passages, summary.size, summary.depth) == (9, 300, str(size), 20)
    expected = brute_force(queries[:, : size.dim], ids, vectors[:, : size.dim], 20)
    run = read_run(tmp_path / "run.trec")
    assert list(run) == query_ids
    for query_id, own in zip(query_ids, expected):
        # In rank order, and with scores that read back as the float32 that they were.
        assert [(docid, np.float32(score)) for docid, score in run[query_id].items()] == own


def test_runs_do_not_depend_on_batch_size_and_memory(tmp_path, stores):
    runs = set()
    for batch_size, max_memory in [(1024, "2GB"), (1, "2GB"), (4, "10KB"), (-1, "1")]:
        search(
            tmp_path / "q", tmp_path / "p", tmp_path / "run", size="6:16", batch_size=batch_size, max_memory=max_memory
        )
        runs.add((tmp_path / "run").read_bytes())
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("engine", "batch_size", "held"), [("faiss", 4, []), ("faiss", 8, []), ("torch", 4, ["float32"])]
)
def test_what_a_funnel_holds_is_what_its_engine_scans(tmp_path, write_store, monkeypatch, engine, batch_size, held):
    rng, flags = np.random.default_rng(2), {"store_dtype": "float16"}
    for kind, count in (("passages", 90), ("queries", 9)):
        for size in (Size(2, 4), Size(6, 16)):
            vectors, ids = rng.standard_normal((count, size.dim), np.float32), [f"{kind}{i}" for i in range(count)]
            write_store(
                tmp_path / kind / size_folder(size), ids, vectors, size=size, kind=kind, data_digest=kind, **flags
            )
    seen = []
    real = EmbeddingStore.hold
    monkeypatch.setattr(EmbeddingStore, "hold", lambda *args: real(*args) or seen.append(args[0]._held))
    options = {"engine": engine, "batch_size": batch_size, "funnel": "2:4@50,6:16"}
    search(tmp_path / "queries", tmp_path / "passages", tmp_path / "run", 20, **options)
    assert [vectors.dtype for vectors in seen if vectors is not None] == held


def test_auto_gives_large_searches_to_torch_and_the_run_stays_the_same(tmp_path, stores, monkeypatch):
    pytest.importorskip("torch")  # imported, as in a process that has encoded
    engines = []
    real = engines_module.make_candidate_generator
    monkeypatch.setattr(
        api_module, "make_candidate_generator", lambda engine, *args: engines.append(engine) or real(engine, *args)
    )
    monkeypatch.setattr(engine_choice, "_SHORT_VECTOR", 3)
    runs = set()
    for much in (None, 5000):  # nine queries, 300 passages: 16 queries at least
        monkeypatch.setattr(engine_choice, "_MANY_ONCE_IMPORTED", much or engine_choice._MANY_ONCE_IMPORTED)
        for funnel in (None, "2:4@50,6:16"):
            search(tmp_path / "q", tmp_path / "p", tmp_path / "run", 20, size=None if funnel else "6:16", funnel=funnel)
            runs.add((funnel, (tmp_path / "run").read_bytes()))
    assert engines == ["faiss"] * 4 and len(runs) == 2  # few queries go to FAISS, however many passages there are
    monkeypatch.setattr(engine_choice, "FEW", 9)
    for funnel in (None, "2:4@50,6:16"):
        search(tmp_path / "q", tmp_path / "p", tmp_path / "run", 20, size=None if funnel else "6:16", funnel=funnel)
        runs.add((funnel, (tmp_path / "run").read_bytes()))
    assert engines[4:] == ["torch"] * 2 and len(runs) == 2


@pytest.mark.parametrize(
    ("engine", "device", "dtype", "expected"),
    [
        ("auto", None, "auto", "faiss"),
        ("auto", "cpu", "auto", "faiss"),
        ("auto", "cuda", "auto", "torch"),
        ("auto", None, "bf16", "torch"),
        ("faiss", "cuda", "auto", "faiss"),
        ("milvus", None, "auto", "milvus"),
    ],
)
def test_auto_takes_faiss_for_small_searches(tmp_path, stores, engine, device, dtype, expected):
    assert choose_engine(engine, device, dtype, 100, open_store(tmp_path / "p", Size(6, 16))) == expected


def test_auto_takes_torch_sooner_where_it_is_imported(tmp_path, stores, monkeypatch):
    """2.4e9 products: less time than an import of torch takes, and more than torch needs for them; not of short vectors."""
    pytest.importorskip("torch")
    store = open_store(tmp_path / "p", Size(6, 16))
    for count, short, once_imported in ((300, 8, "faiss"), (10**6, 16, "faiss"), (10**6, 8, "torch")):
        monkeypatch.setattr(store, "count", count)
        monkeypatch.setattr(engine_choice, "_SHORT_VECTOR", short)
        assert choose_engine("auto", None, "auto", 150, store) == once_imported
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "torch")
            assert choose_engine("auto", None, "auto", 150, store) == "faiss"


def test_auto_takes_torch_for_short_vectors_where_loops_are_compiled(tmp_path, stores, monkeypatch):
    pytest.importorskip("torch")
    store = open_store(tmp_path / "p", Size(6, 16))
    monkeypatch.setattr(store, "count", 10**6)
    monkeypatch.setattr(loops, "_read", 0)
    monkeypatch.setattr(loops, "_WORTH_COMPILING", 150 * 10**6)
    for available, expected in ((True, "torch"), (False, "faiss")):
        monkeypatch.setattr(loops, "_available", available)
        assert choose_engine("auto", None, "auto", 150, store) == expected
        assert choose_engine("auto", None, "auto", 149, store) == "faiss"
        monkeypatch.setattr(engine_choice, "_MANY_SCORES", 150 * 10**6)
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "torch")
            assert choose_engine("auto", None, "auto", 150, store) == expected
            assert choose_engine("auto", None, "auto", 149, store) == "faiss"
            assert choose_engine("auto", None, "auto", 150, store, at_once=15) == "faiss"
            assert choose_engine("auto", None, "auto", 150, store, at_once=16) == expected


def test_parts_of_passages(tmp_path, stores, write_store):
    ids, vectors, _, _ = stores
    for part in range(3):
        folder = output_folder(tmp_path / "parts", Size(6, 16), 3, part)
        write_store(folder, ids, vectors, parts=3, part=part)
    search(tmp_path / "q", tmp_path / "p", tmp_path / "whole.trec", size="6:16")
    search(tmp_path / "q", tmp_path / "parts", tmp_path / "parts.trec", size="6:16")
    assert (tmp_path / "whole.trec").read_bytes() == (tmp_path / "parts.trec").read_bytes()


def test_depth_beyond_the_corpus(tmp_path, stores):
    summary = search(tmp_path / "q", tmp_path / "p", tmp_path / "run.trec", 1000, size="2:4")
    assert summary.depth == 300
    assert {len(results) for results in read_run(tmp_path / "run.trec").values()} == {300}


def test_other_formats(tmp_path, stores):
    for save_format in ("msmarco", "tevatron"):
        search(tmp_path / "q", tmp_path / "p", tmp_path / save_format, 2, size="6:16", save_format=save_format)
    ranked = [line.split("\t") for line in (tmp_path / "msmarco").read_text().splitlines()]
    scored = [line.split("\t") for line in (tmp_path / "tevatron").read_text().splitlines()]
    assert [line[:2] for line in ranked] == [line[:2] for line in scored]
    assert [line[2] for line in ranked] == ["1", "2"] * 9
    assert all(float(a[2]) >= float(b[2]) for a, b in zip(scored[::2], scored[1::2]))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fingerprint": "beef"}, "different weights"),
        ({"size": Size(5, 16)}, "differ in size: 5:16 and 6:16"),
        ({"pooling": "mean"}, "differ in pooling"),
        ({"normalize": True}, "differ in normalize"),
        ({"kind": "passages"}, "--query_reps holds passages: they were encoded without --encode_is_query"),
    ],
)
def test_queries_of_another_model_or_size(tmp_path, stores, write_store, changes, what):
    _, _, query_ids, queries = stores
    write_store(tmp_path / "other", query_ids, queries, **({"kind": "queries"} | changes))
    with pytest.raises(UserError, match=what):
        search(tmp_path / "other", tmp_path / "p" / "L6-D16", tmp_path / "run.trec")
    assert not (tmp_path / "run.trec").exists()


def test_swapped_stores(tmp_path, stores):
    with pytest.raises(UserError, match="holds passages and --passage_reps holds queries"):
        search(tmp_path / "p", tmp_path / "q", tmp_path / "run.trec", size="6:16")


def test_a_forgotten_encode_is_query(tmp_path, stores, write_store, capsys):
    ids, passages, query_ids, queries = stores
    write_store(tmp_path / "plain", query_ids, queries)  # as encode does without the flag
    write_store(tmp_path / "as-queries", ids, passages, kind="queries")
    run = tmp_path / "run.trec"
    plain = ["--query_reps", str(tmp_path / "plain"), "--passage_reps", str(tmp_path / "p" / "L6-D16")]
    swapped = ["--query_reps", str(tmp_path / "q" / "L6-D16"), "--passage_reps", str(tmp_path / "as-queries")]
    for words, what in [(plain, "--query_reps holds passages"), (swapped, "--passage_reps holds queries")]:
        for more in ([], ["--dry_run"]):
            assert run_command(main, [*words, "--save_ranking_to", str(run), *more]) == 2
            said = capsys.readouterr().err
            assert what in said and "--encode_is_query" in said and "--override" in said
        assert not run.exists()
        # Passages against passages is a fair thing to ask, where it is meant.
        assert run_command(main, [*words, "--save_ranking_to", str(run), "--override"]) == 0
        run.unlink()
    capsys.readouterr()


def test_refusals_leave_nothing_behind(tmp_path, stores):
    before = sorted(tmp_path.iterdir())
    for options, what in [
        ({}, "several sizes: 2:4, 6:16"),
        ({"size": "3:4"}, "no size 3:4"),
        ({"size": "6:16", "depth": 0}, "--depth 0"),
        ({"size": "6:16", "max_memory": "much"}, "amount of memory"),
    ]:
        with pytest.raises(UserError, match=what):
            search(tmp_path / "q", tmp_path / "p", tmp_path / "run.trec", **options)
    assert sorted(tmp_path.iterdir()) == before


def test_the_named_size():
    def named(size, layer, dim):
        return SearchArguments(size=size, layer=layer, dim=dim).named_size

    assert named("6:128", None, None) == named(None, 6, 128) == named("6:128", 6, 128) == Size(6, 128)
    assert named(None, None, None) is None
    for arguments in [(None, 6, None), (None, None, 128), ("6:128", 6, 64)]:
        with pytest.raises(UserError):
            named(*arguments)


def test_several_sizes_are_several_calls(tmp_path, stores):
    with pytest.raises(UserError, match="--sizes names several runs"):
        search(tmp_path / "q", tmp_path / "p", tmp_path / "run.trec", sizes="all")


def test_the_command(tmp_path, stores, capsys, ticking):
    stored = ["--query_reps", str(tmp_path / "q"), "--passage-reps", str(tmp_path / "p"), "--layer", "6", "--dim", "16"]
    run = ["--save_ranking_to", str(tmp_path / "run.trec"), "--depth", "5"]
    assert run_command(main, [*stored, *run, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == {
        "seconds": 1,
        "queries": 9,
        "passages": 300,
        "size": "6:16",
        "depth": 5,
        "path": str(tmp_path / "run.trec"),
    }
    for argv, what in [
        (stored, "--save_ranking_to is missing"),
        ([*stored[2:], *run], "--query_reps is missing"),
        ([*stored[:2], *run], "--passage_reps is missing"),
        ([*stored, *run, "--depth", "0"], "--depth 0"),
        ([*stored[2:], "--query", "hello"], "--model_name_or_path is missing"),
    ]:
        assert run_command(main, argv) == 2
        assert f"error: {what}" in capsys.readouterr().err
