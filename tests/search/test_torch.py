import numpy as np
import pytest
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import precision
from starbucks_retrieval.search import exact_search, loops
from starbucks_retrieval.search.engines import (
    EngineOptions,
    make_candidate_generator,
    plan_memory,
    rounding,
    sample,
    scan_threads,
)
from starbucks_retrieval.search.engines import exact as exact_module
from starbucks_retrieval.search.engines import torch as engine_module
from starbucks_retrieval.search.engines.exact import FaissCandidateGenerator
from starbucks_retrieval.search.engines.tensor_blocks import tensor_blocks
from starbucks_retrieval.search.engines.top_rows import TopRows, merged
from starbucks_retrieval.search.stores import SlicedStore

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NAMES = ("random", "tied", "near ties", "long", "short", "beyond bfloat16")


def torch_generator(device=None, dtype="auto"):
    return make_candidate_generator("torch", EngineOptions(device, dtype))


def as_bytes(found):
    return [np.concatenate(parts).tobytes() for parts in zip(*found)]


def corpus(name):
    """Ids, vectors, queries, and how many queries must be looked at again for want of precision."""
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((1500, 48)).astype(np.float32)
    queries = rng.standard_normal((20, 48)).astype(np.float32)
    if name == "tied":
        vectors = vectors[rng.integers(0, 5, 1500)]
        vectors[::7] = 0
        queries[3] = 0
    elif name == "near ties":  # bfloat16 takes them all for one vector
        vectors = vectors[:1] + rng.standard_normal((1500, 48)).astype(np.float32) * np.float32(1e-4)
    elif name == "long":
        vectors *= np.float32(1e30)
        queries *= np.float32(1e-35)
    elif name == "short":  # what bfloat16 units take for zero
        vectors *= np.float32(1e-39)
    elif name == "beyond bfloat16":
        vectors[5] = 0
        vectors[5, 0] = 3.4e38
        queries *= np.float32(1e-3)
    return [f"d{number}" for number in rng.permutation(1500)], vectors, queries


@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        ("random", "cpu", "fp32"),
        ("tied", "cpu", "fp32"),
        ("near ties", "cpu", "bf16"),
        ("beyond bfloat16", "cpu", "bf16"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("random", "cpu", "bf16"), ("tied", "cpu", "bf16")),
                *(("near ties", "cpu", "fp32"), ("beyond bfloat16", "cpu", "fp32")),
                *((name, "cpu", dtype) for name in ("long", "short") for dtype in ("fp32", "bf16")),
            )
        ),
        *(
            pytest.param(name, "cuda", dtype, marks=[pytest.mark.gpu, gpu])
            for name in NAMES
            for dtype in ("fp32", "bf16")
        ),
    ],
)
def test_the_same_bits_as_faiss(open_written, monkeypatch, name, device, dtype):
    monkeypatch.setattr(engine_module, "_BLOCK_ROWS", {"cpu": 256, "cuda": 256})
    ids, vectors, queries = corpus(name)
    for store_dtype in ("float32", "float16") if name == "random" else ("float32",):
        store = open_written(ids, vectors, name=store_dtype, store_dtype=store_dtype, shard_size=700)
        for depth in (1, 40, 1499, 1500):
            expected = as_bytes(exact_search(queries, store, depth))
            for options in ({}, {"batch_size": 6, "max_memory": 300_000}):
                found = exact_search(queries, store, depth, generator=torch_generator(device, dtype), **options)
                assert as_bytes(found) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_the_same_bits_in_compiled_loops(open_written, monkeypatch, name, dtype):
    pytest.importorskip("numba", exc_type=ImportError)
    from starbucks_retrieval.search import compiled

    monkeypatch.setattr(engine_module, "_BLOCK_ROWS", {"cpu": 256})
    monkeypatch.setattr(sample, "_EXPECTED", 4)
    ids, vectors, queries = corpus(name)
    store = open_written(ids, vectors)
    for depth in (1, 40, 1500):
        expected = as_bytes(exact_search(queries, store, depth))
        with monkeypatch.context() as patch:
            patch.setattr(loops, "_compiled", compiled)
            assert as_bytes(exact_search(queries, store, depth, generator=torch_generator("cpu", dtype))) == expected


@pytest.mark.parametrize(("dtype", "warned"), [("bf16", True), ("fp32", False), ("auto", False)])
def test_bf16_that_was_asked_for_is_warned_about_where_it_is_slow(monkeypatch, caplog, dtype, warned):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setattr(precision, "bf16_speedup", lambda turns, backward: 0.1)
    precision.warn_if_bf16_is_slow.cache_clear()
    torch_generator("cpu", dtype)
    precision.warn_if_bf16_is_slow.cache_clear()
    assert ("take --dtype fp32" in caplog.text) == warned


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_held_vectors_of_a_view_are_not_cut_again(open_written, monkeypatch, dtype):
    ids, vectors, queries = corpus("random")
    wide = open_written(ids, vectors, store_dtype="float16")
    view, queries = SlicedStore(wide, 8), np.ascontiguousarray(queries[:, :8])
    expected = as_bytes(exact_search(queries, view, 40))
    view.hold(2**30)
    monkeypatch.setattr(wide, "blocks", None)  # a scan of the wide vectors would fail
    assert as_bytes(exact_search(queries, view, 40, generator=torch_generator("cpu", dtype))) == expected


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_only_close_queries_are_scanned_again(open_written, monkeypatch, dtype):
    calls = []
    real = exact_module._rescan
    monkeypatch.setattr(exact_module, "_rescan", lambda *args: calls.append(len(args[0])) or real(*args))
    for name, least, most in [("random", 0, 0), ("near ties", 0 if dtype == "fp32" else 20, 20)]:
        ids, vectors, queries = corpus(name)
        calls.clear()
        store = open_written(ids, vectors, name=name)
        list(exact_search(queries, store, 100, generator=torch_generator("cpu", dtype)))
        assert least <= sum(calls) <= most


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_nothing_outside_exceeds_the_ceiling(open_written, dtype):
    ids, vectors, queries = corpus("random")
    store = open_written(ids, vectors)
    plan = plan_memory(10**6, 100, 60, 1500, 48)
    rows, ceiling, _ = torch_generator("cpu", dtype).generate(queries, store, plan, 30, "")
    assert 30 <= rows.shape[1] <= plan.candidates
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    for line, found, highest in zip(exact, rows, ceiling):
        assert len(set(found)) == len(found)
        outside = np.delete(line, found).max()
        assert outside <= highest <= outside + (1 if dtype == "bf16" else 0.1) * np.ptp(np.sort(line)[-100:])


def test_bf16_bound_covers_its_arithmetic():
    """Every product of rounded vectors, as torch gives it, lies within the bound, and the bound is of its order."""
    rng = np.random.default_rng(9)
    for dim in (8, 768):
        left, right = (rng.standard_normal((300, dim)).astype(np.float32) for _ in range(2))
        near = [torch.from_numpy(side).bfloat16() for side in (left, right)]
        moved = [
            np.linalg.norm(side.astype(np.float64) - half.double().numpy(), axis=1)
            for side, half in zip((left, right), near)
        ]
        largest = float(np.linalg.norm(right.astype(np.float64), axis=1).max())
        error = rounding.bf16_error(left, moved[0], float(moved[1].max()), largest)
        given = (near[0] @ near[1].T).double().numpy()
        off = np.abs(given - left.astype(np.float64) @ right.astype(np.float64).T)
        allowed = error[:, None] + rounding.ROUNDING / (1 - rounding.ROUNDING) * np.abs(given)
        assert (off <= allowed).all()
        assert (error < 2**-7 * np.linalg.norm(left, axis=1) * largest).all()


def test_other_precision_settings_are_left_alone(open_written):
    ids, vectors, queries = corpus("random")
    store = open_written(ids, vectors)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        list(exact_search(queries, store, 5, generator=torch_generator("cpu", "fp32")))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_auto_finds_a_device():
    generator = torch_generator()
    assert generator.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
def test_faiss_on_a_gpu(open_written):
    faiss = pytest.importorskip("faiss")
    if not getattr(faiss, "get_num_gpus", int)():
        pytest.skip("FAISS sees no GPU")
    for name in ("random", "tied", "near ties"):
        ids, vectors, queries = corpus(name)
        store = open_written(ids, vectors, name=name)
        found = exact_search(queries, store, 40, generator=make_candidate_generator("faiss", EngineOptions("cuda")))
        assert as_bytes(found) == as_bytes(exact_search(queries, store, 40))


def test_flags_make_a_candidate_generator():
    assert isinstance(make_candidate_generator(), FaissCandidateGenerator)
    assert torch_generator("cpu", "bf16").bf16
    assert not torch_generator("cpu", "fp32").bf16
    for wrong, what in [
        (("scann",), "unknown search engine 'scann'"),
        (("ray",), "--engine ray searches by itself"),
        (("faiss", "cpu", "bf16"), "FAISS does not multiply in bf16"),
        (("faiss", "tpu"), "no device tpu"),
        (("faiss", "cuda:77"), "--device asks for number 77"),
        (("torch", "cpu", "fp8"), "--dtype fp8"),
    ]:
        with pytest.raises(UserError, match=what):
            make_candidate_generator(wrong[0], EngineOptions(*wrong[1:]))


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "meta"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(UserError, match=device) as caught:
        torch_generator(device)
    assert caught.value.hint == "say --device cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 70])  # the last block is a whole one, and not
def test_lists_are_those_of_a_sort_of_all_scores(dtype, width):
    scores = torch.from_numpy(np.random.default_rng(0).permutation(5 * 40 * 64).reshape(5, -1).astype(np.float32))
    scores = (scores - 5000).to(dtype)
    kept = TopRows(5, 3, torch.device("cpu"))
    for start in range(0, scores.shape[1], width):
        kept.add(start, scores[:, start : start + width].contiguous())
    best, rows = merged([kept])
    expected = scores.float().sort(dim=1, descending=True).values[:, :3]
    assert np.array_equal(best, expected.numpy())
    assert np.array_equal(scores.float().numpy()[np.arange(5)[:, None], rows], best)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("misleading", [False, True])
def test_a_sample_tells_which_scores_to_skip(open_written, monkeypatch, dtype, misleading):
    """Where the sampled passages are the best of all, too few others exceed its scores: these queries are scanned again."""
    monkeypatch.setattr(sample, "_EXPECTED", 4)
    rng = np.random.default_rng(8)
    vectors = rng.uniform(0.1, 1, (6000, 24)).astype(np.float32)
    if misleading:
        runs = {"fp32": 5, "bf16": 3}[dtype]  # of a sample for so many candidates
        starts = np.linspace(0, 6000 - 32, runs).astype(np.int64)
        vectors[(starts[:, None] + np.arange(32)).ravel()] += 9
    ids, queries = [f"d{number}" for number in rng.permutation(6000)], rng.uniform(0.1, 1, (20, 24)).astype(np.float32)
    store = open_written(ids, vectors, name=f"{dtype}-{misleading}")
    expected = as_bytes(exact_search(queries, store, 100))
    floors, scans = [], []
    real_sample, real_scan = engine_module.sampled_scores, engine_module._scan_on_cpu
    monkeypatch.setattr(engine_module, "sampled_scores", lambda *args: floors.append(real_sample(*args)) or floors[-1])
    monkeypatch.setattr(engine_module, "_scan_on_cpu", lambda *args: scans.append(args) or real_scan(*args))
    assert as_bytes(exact_search(queries, store, 100, generator=torch_generator("cpu", dtype))) == expected
    assert floors[0].low.shape == (20,)
    assert len(scans) == (2 if misleading else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_the_vectors_of_the_store(open_written, dtype):
    ids, vectors, _ = corpus("random")
    store = open_written(ids, vectors, store_dtype="float16", shard_size=700)
    found = [(start, block.clone()) for start, block, _ in tensor_blocks(store, 64, torch.device("cpu"), dtype, "")]
    assert [start for start, _ in found] == list(range(0, 1500, 64))
    assert torch.equal(
        torch.cat([block for _, block in found]), torch.from_numpy(store.vectors(np.arange(1500))).to(dtype)
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_threads_share_the_passages(open_written, monkeypatch, dtype):
    ids, vectors, queries = corpus("random")
    store = open_written(ids, vectors, store_dtype="float16", shard_size=100)
    monkeypatch.setattr(engine_module, "_BLOCK_ROWS", {"cpu": 256})
    expected = as_bytes(exact_search(queries, store, 40))
    numbers = []
    real = scan_threads.share
    monkeypatch.setattr(scan_threads, "share", lambda *args: numbers.append(args[1]) or real(*args))
    monkeypatch.setattr(scan_threads, "_PRODUCTS_PER_THREAD", 20 * 1500 * 48 // 3)
    torch.set_num_threads(4)
    assert as_bytes(exact_search(queries, store, 40, generator=torch_generator("cpu", dtype))) == expected
    assert numbers == [3] and torch.get_num_threads() == 4


def test_an_error_stops_all_threads(open_written, monkeypatch):
    ids, vectors, queries = corpus("random")
    store = open_written(ids, vectors, shard_size=100)
    monkeypatch.setattr(scan_threads, "_PRODUCTS_PER_THREAD", 1)
    torch.set_num_threads(2)
    read = []

    def block(start, stop):
        read.append(start)
        raise UserError("damaged", "copy it again")

    monkeypatch.setattr(store, "block", block)
    with pytest.raises(UserError, match="damaged"):
        list(exact_search(queries, store, 40, generator=torch_generator("cpu", "fp32")))
    assert len(read) <= 2 and torch.get_num_threads() == 2
