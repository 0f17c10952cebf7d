"""What a plan says: bytes as FAISS and stores take them, times that follow the model, and what is refused."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from starbucks_retrieval import clock
from starbucks_retrieval.cli import parse_flags
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.search.estimate import (
    Growth,
    LinearCost,
    Machine,
    PlanArguments,
    Rates,
    estimate,
    measure,
    measure_machine,
    model_sizes,
    plan_search,
    table,
)
from starbucks_retrieval.search.estimate.model import code_bytes, lists_for, probes_for
from starbucks_retrieval.sizes import Size, Sizes

faiss = pytest.importorskip("faiss")

SIZES = Sizes.parse("2:32,6:128,12:768")
FREE = LinearCost(0.0, 0.0)
GROWTH = Growth(nodes=8192, fresh=1300.0, power=0.6, slope=0.2)
NOTHING = Rates(scan=FREE, choose=0.0, code=FREE, keep=0.0, visit=FREE, hop=0.0)
IDLE = Machine(
    memory=16 * 10**9,
    threads=4,
    bandwidth=1e10,
    store_dtype="float16",
    depth=100,
    call=0.0,
    opening=0.0,
    reading=0.0,
    fetching=FREE,
    rescoring=FREE,
    rates={1: NOTHING, 64: NOTHING},
    growth=GROWTH,
)
USUAL = Rates(LinearCost(1e-9, 2e-10), 5e-8, LinearCost(4e-9, 4e-10), 6e-8, LinearCost(3e-8, 4e-10), 1e-6)
MACHINE = replace(
    IDLE,
    call=1e-4,
    opening=1e-4,
    reading=1e-9,
    fetching=LinearCost(1e-7, 3e-9),
    rescoring=LinearCost(1e-7, 2e-9),
    rates={1: USUAL, 64: USUAL},
)


def rows_of(machine, passages, sizes=SIZES, **options):
    """Rows by kind and size."""
    rows = {}
    for row in estimate(machine, passages, sizes, **options):
        kind = next((kind for kind in ("flat", "IVF", "HNSW") if row.way.startswith(kind)), "funnel")
        rows[kind, str(row.size)] = row
    return rows


def only(**rates):
    """A machine on which nothing but these takes time."""
    busy = replace(NOTHING, **rates)
    return replace(IDLE, rates={1: busy, 64: busy})


def test_every_way_at_every_size_and_a_funnel_above_the_smallest():
    ways = [(row.way, str(row.size)) for row in estimate(IDLE, 1e6, SIZES)]
    assert ways[:4] == [("flat", "2:32"), ("IVF8192,PQ8", "2:32"), ("HNSW32", "2:32"), ("flat", "6:128")]
    assert ways[-1] == ("2:32@1000,12:768", "12:768")
    assert len(ways) == 3 * 3 + 2
    assert [row.way for row in estimate(IDLE, 1e9, SIZES[:1])] == ["flat", "IVF262144_HNSW32,PQ8", "HNSW32"]


def test_a_funnel_never_shrinks():
    assert not any(row.way.startswith("2:64") for row in estimate(IDLE, 1e6, Sizes.parse("2:64,4:32")))


def test_lists_follow_the_guidelines_of_faiss():
    for passages in (10**6, 3 * 10**6, 10**7, 10**8, 10**9):
        lists = lists_for(passages)
        assert lists == 2 ** round(math.log2(lists))
        assert 4 * math.sqrt(passages) <= lists <= 16 * math.sqrt(passages)
    assert lists_for(10_000) * 39 <= 10_000
    assert lists_for(1) == 1
    assert probes_for(4096, 10**6, 100) == 64
    assert probes_for(256, 10_000, 4000) == 256  # so few passages hold 4000 good ones in all lists only
    assert probes_for(1, 1, 1) == 1


@pytest.mark.parametrize(
    ("dim", "width"), [(1, 1), (7, 1), (16, 4), (32, 8), (96, 24), (128, 32), (384, 64), (768, 64)]
)
def test_code_bytes_divide_the_dim(dim, width):
    assert code_bytes(dim) == width


def test_index_bytes_are_those_that_faiss_writes():
    vectors = np.random.default_rng(0).standard_normal((5000, 32), dtype=np.float32)
    for kind in ("IVF", "HNSW"):
        row = rows_of(IDLE, len(vectors))[kind, "2:32"]
        index = faiss.index_factory(32, row.way, faiss.METRIC_INNER_PRODUCT)
        if kind == "IVF":
            index.cp.niter = index.pq.cp.niter = 1
            index.do_polysemous_training = False
        index.train(vectors)
        index.add(vectors)
        assert row.memory == pytest.approx(len(faiss.serialize_index(index)), rel=0.01)


def test_store_bytes_are_those_that_stores_take(tmp_path, write_store):
    count = 3000
    for dtype in ("float16", "float32"):
        row = rows_of(replace(IDLE, store_dtype=dtype), count)["flat", "2:32"]
        vectors = np.ones((count, 32), np.float32)
        ids = list(map(str, range(count)))
        folder = write_store(tmp_path / dtype, ids, vectors, store_dtype=dtype, shard_size=1500)
        written = sum(file.stat().st_size for file in folder.glob("*.npy"))
        assert row.disk == pytest.approx(written, rel=0.01)
        assert row.memory == count * 32 * int(dtype[-2:]) // 8


def test_what_streams_works_with_the_memory_it_is_given():
    rows = rows_of(IDLE, 1e9, max_memory="4GB")
    flat, funnel, graph = rows["flat", "12:768"], rows["funnel", "12:768"], rows["HNSW", "2:32"]
    assert (flat.memory, flat.least) == (1536 * 10**9, 4 * 10**9)
    assert (funnel.memory, funnel.least) == (64 * 10**9, 4 * 10**9)
    assert graph.least == graph.memory
    assert funnel.disk == flat.disk + rows["flat", "2:32"].disk
    assert rows_of(IDLE, 1000)["flat", "2:32"].least == 64_000


def test_fits_means_this_machines_memory():
    rows = rows_of(replace(IDLE, memory=10**9), 1e6)
    assert rows["flat", "6:128"].fits
    assert not rows["flat", "12:768"].fits
    assert rows["IVF", "12:768"].fits
    assert rows["funnel", "12:768"].fits


def test_a_scan_takes_each_passage_once_a_query():
    rows = rows_of(only(scan=LinearCost(1e-9, 1e-10)), 1e6)
    assert rows["flat", "6:128"].milliseconds == pytest.approx({1: 13.8, 64: 13.8})
    assert rows["funnel", "12:768"].milliseconds[1] == pytest.approx(4.2)
    assert rows["IVF", "6:128"].milliseconds[1] == pytest.approx((8192 + 256) * 13.8e-6)
    assert rows["HNSW", "6:128"].milliseconds[1] == 0


def test_reading_a_store_is_shared_by_the_queries_of_a_batch():
    rows = rows_of(replace(IDLE, reading=1e-9), 1e6)
    assert rows["flat", "6:128"].milliseconds == pytest.approx({1: 128, 64: 2})
    assert rows["IVF", "6:128"].milliseconds[1] == 0


def test_opening_counts_the_shards_that_are_touched():
    rows = rows_of(replace(IDLE, opening=1e-3), 16384 * 5)
    assert rows["flat", "2:32"].milliseconds[1] == pytest.approx(5 + 5)  # the pass, then the rows scored exactly
    many = rows_of(replace(IDLE, opening=1e-3), 16384 * 10**6)["HNSW", "2:32"]
    assert many.milliseconds[1] == pytest.approx(400, rel=1e-3)  # each of the 4 x 100 rows lies in a shard of its own


def test_lists_of_the_best_cost_the_logarithm_of_what_was_seen():
    kept = 100 + 32 + 3
    flat = rows_of(only(choose=1e-6), 1e6)["flat", "2:32"]
    assert flat.milliseconds[64] == pytest.approx(1e-3 * kept * (1 + math.log(1e6 / kept)))
    # One query looks at two blocks of half as many, each with a list of its own.
    assert flat.milliseconds[1] == pytest.approx(2e-3 * kept * (1 + math.log(5e5 / kept)))
    codes = 1e6 * 128 / 8192
    pq = rows_of(only(keep=1e-6), 1e6)["IVF", "2:32"]
    assert pq.milliseconds[1] == pytest.approx(1e-3 * 400 * (1 + math.log(codes / 400)))
    assert pq.settings == "nprobe=128"
    every = rows_of(only(code=LinearCost(1e-6, 0)), 1e6)["IVF", "2:32"]
    assert every.milliseconds[1] == pytest.approx(1e-3 * codes)


def test_fetched_rows_are_scored_once():
    rows = rows_of(replace(IDLE, fetching=LinearCost(0, 1e-9), rescoring=LinearCost(0, 1e-6)), 1e6)
    assert rows["HNSW", "6:128"].milliseconds[64] == pytest.approx(400 * 128e-6)
    assert rows["flat", "6:128"].milliseconds[1] == pytest.approx(135 * 128e-6)
    assert rows["funnel", "6:128"].milliseconds[1] == pytest.approx(1000 * 128e-3 + 1035 * 32e-6, rel=0.01)
    assert rows["HNSW", "6:128"].fetched == 400


def test_a_graph_grows_with_the_logarithm_and_never_past_all_passages():
    visits = [GROWTH.visits(10**power, 400) for power in (6, 7, 8, 9)]
    steps = np.diff(visits)
    assert steps.min() > 0
    assert steps.max() / steps.min() == pytest.approx(1, abs=0.05)
    assert GROWTH.visits(8192, 64) == pytest.approx(8192 * (1 - math.exp(-1300 / 8192)))
    assert GROWTH.visits(1000, 10_000) == pytest.approx(1000)
    assert GROWTH.visits(1e9, 400) <= 64 * 400


def test_the_order_of_ways_at_a_million():
    times = {key: row.milliseconds[1] for key, row in rows_of(MACHINE, 1e6).items()}
    assert times["flat", "2:32"] < times["flat", "6:128"] < times["flat", "12:768"]
    assert times["IVF", "12:768"] < times["funnel", "12:768"] < times["flat", "12:768"]
    assert times["flat", "2:32"] < times["funnel", "6:128"] < times["funnel", "12:768"]
    large = rows_of(MACHINE, 1e9)
    assert large["flat", "12:768"].milliseconds[1] == pytest.approx(1000 * times["flat", "12:768"], rel=0.02)
    assert large["HNSW", "12:768"].milliseconds[1] < 100 * times["HNSW", "12:768"]


@pytest.mark.parametrize("passages", [1, 2, 40, 1001])
def test_very_few_passages(passages):
    for row in estimate(MACHINE, passages, SIZES):
        assert 0 < row.milliseconds[64] <= row.milliseconds[1] < 10
        assert row.fetched <= passages


def test_lines_go_through_both_points_and_never_below_nothing():
    line = LinearCost.through((32, 1.0), (512, 10.6))
    assert (line(32), line(512), line(128)) == pytest.approx((1.0, 10.6, 2.92))
    steep, falling = LinearCost.through((32, 0.0), (512, 10.0)), LinearCost.through((32, 2.0), (512, 1.0))
    assert steep(0) == 0
    assert steep(512) == pytest.approx(10)
    assert (falling.each, falling.number) == (1.0, 0.0)


SMALL = {"depth": 20, "threads": 1, "table_bytes": 4 << 20, "nodes": 600}
ROWS = {32: (4 << 20) // 4 // 32, 512: (4 << 20) // 4 // 512}  # of the tables that are scanned
PIECES = {  # in the order in which they are timed
    "opening": 1e-3,
    "call": 5e-3,
    "reading": 1e-3 + 2e-9 * 512 * ROWS[512],
    "copying": 4e-3,
    "fetching 32": 1e-3 + 8 * 1000 * 32e-8,
    "fetching 512": 1e-3 + 8 * 1000 * 512e-8,
    "rescoring 32": 1e-3 + 8 * 1000 * 16e-8,
    "rescoring 512": 1e-3 + 8 * 1000 * 256e-8,
    "in caches": 3e-6 * 2048,
    "scan 32": 32e-9 * ROWS[32],
    "scan 512": 512e-9 * ROWS[512],
    "scan of few": 32e-9 * 8192,
    "code 8": 8e-9 * 65536,
    "code 64": 64e-9 * 65536,
    "code of many": 8e-9 * 65536 + 1e-3,
    "visit 32": 32e-8 * 2048,
    "visit 512": 512e-8 * 2048,
    "hop": 1.0,
}


def measured(monkeypatch, times, **options):
    """What a machine is found to be on which each piece takes so long; every piece runs once."""
    left = iter(times)

    def timed(run, budget):
        run()
        return next(left)

    monkeypatch.setattr(measure, "_best_time", timed)
    machine = measure_machine(**SMALL, **options)
    assert next(left, None) is None
    return machine


def test_what_the_pieces_took_makes_the_machine(monkeypatch):
    before = faiss.omp_get_max_threads()
    machine = measured(monkeypatch, PIECES.values(), batches=(1,))
    assert faiss.omp_get_max_threads() == before
    assert (machine.threads, machine.depth, machine.store_dtype) == (1, 20, "float16")
    assert machine.bandwidth == pytest.approx(2 * (4 << 20) / 4e-3)
    assert (machine.opening, machine.call, machine.reading) == pytest.approx((1e-3, 3e-3, 2e-9))
    assert machine.fetching(768) == pytest.approx(768e-8)
    assert machine.rescoring(768) == pytest.approx(384e-8)
    rates = machine.rates[1]
    assert (rates.scan(768), rates.code(64), rates.visit(768)) == pytest.approx((768e-9, 64e-9, 768e-8))
    assert rates.choose == pytest.approx(0, abs=1e-12)
    assert min(rates.keep, rates.hop) > 0
    assert 0 <= machine.growth.power <= 1
    json.dumps(machine.to_json())
    times = {
        key: row.milliseconds[1] for key, row in rows_of(replace(machine, rates={1: rates, 64: rates}), 1e7).items()
    }
    assert times["IVF", "12:768"] < times["flat", "12:768"]
    assert times["flat", "2:32"] < times["flat", "12:768"]


def test_nothing_is_free_on_a_machine_whose_measurements_disagree(monkeypatch):
    pieces = 8 + 2 * 10
    for times in ([1e-3] * pieces, [1.0, *[1e-3] * (pieces - 1)], [1e-9] * pieces):
        machine = measured(monkeypatch, times, batches=(1, 64))
        assert min(machine.bandwidth, machine.opening, machine.reading, machine.call) > 0
        assert min(machine.fetching(768), machine.rescoring(768)) > 0
        for rates in machine.rates.values():
            assert min(rates.scan(768), rates.code(64), rates.visit(768)) > 0
        for row in estimate(machine, 1e7, SIZES):
            assert all(0 < value < math.inf for value in row.milliseconds.values())


def test_the_best_of_the_runs_that_a_budget_allows(ticking):
    ran = []
    # The clock is read for the end, then twice a run and once after it: three seconds each.
    assert measure._best_time(lambda: ran.append(1), budget=7.0) == 1
    assert len(ran) == 1 + 3


def test_a_clock_that_stands_still_measures_more_than_nothing(monkeypatch):
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: 5.0))
    assert 0 < measure._best_time(lambda: None, budget=0.0) < 1e-6


def test_all_sizes_are_those_of_a_store_or_a_model(tmp_path, tiny_bert, write_store):
    for size in (Size(6, 4), Size(2, 2)):
        write_store(tmp_path / "reps" / f"L{size.layer}-D{size.dim}", ["a"], np.ones((1, size.dim)), size=size)
    assert str(model_sizes(None, str(tmp_path / "reps"))) == "2:2,6:4"
    assert str(model_sizes("all", model_name_or_path=str(tiny_bert))) == "4:32"
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text((tiny_bert / "config.json").read_text())
    EncoderConfig(sizes=Sizes.parse("2:8,4:32")).save(model)
    assert str(model_sizes("all", model_name_or_path=str(model))) == "2:8,4:32"
    assert str(model_sizes("3:16", model_name_or_path=str(model))) == "3:16"


def test_a_plan_in_words_and_as_json(tmp_path, monkeypatch, write_store):
    asked = {}
    monkeypatch.setattr(table, "measure_machine", lambda **options: asked.update(options) or MACHINE)
    (arguments,), _ = parse_flags([PlanArguments], ["--plan", "--passages", "1e9", "--plan_batch", "8"], "search", "")
    plan = plan_search(arguments, "2:32,12:768", depth=7, threads=3)
    assert (asked["depth"], asked["batches"], asked["threads"]) == (7, (8,), 3)
    lines = str(plan).splitlines()
    assert lines[0].startswith("1,000,000,000 passages in float16")
    assert "ms at 64" in lines[1]
    assert any("64.0 GB *" in line and "2:32@1000,12:768" in line for line in lines)
    assert lines[-1].startswith("*: more than the 16.0 GB")
    figures = json.loads(json.dumps(plan.to_json()))
    assert figures["passages"] == 10**9
    assert {row["size"] for row in figures["rows"]} == {"2:32", "12:768"}
    reps = write_store(tmp_path / "L6-D4", [str(i) for i in range(50)], np.ones((50, 4)), size=Size(6, 4))
    small = plan_search(PlanArguments(plan=True), None, passage_reps=str(reps))
    assert (small.passages, asked["depth"]) == (50, 1000)
    assert "*" not in str(small)


@pytest.mark.parametrize("passages", ["0", "0.5", "-3", "nan", "inf"])
def test_numbers_of_passages_that_are_none(passages):
    with pytest.raises(UserError, match="--passages"):
        parse_flags([PlanArguments], ["--plan", f"--passages={passages}"], "search", "")


def test_what_a_plan_refuses(monkeypatch):
    monkeypatch.setattr(table, "measure_machine", lambda **options: MACHINE)
    with pytest.raises(UserError, match="--plan_batch"):
        PlanArguments(plan_batch=0)
    with pytest.raises(UserError, match="passages"):
        parse_flags([PlanArguments], ["--passages", "many"], "search", "")
    for sizes in (None, "all", "demi"):
        with pytest.raises(UserError) as refusal:
            model_sizes(sizes)
        assert "--passage_reps" in refusal.value.hint
    with pytest.raises(UserError, match="6-128"):
        model_sizes("6-128")
    with pytest.raises(UserError, match="--passages is missing"):
        plan_search(PlanArguments(plan=True), "2:32")
    with pytest.raises(UserError, match="--depth"):
        plan_search(PlanArguments(passages=10), "2:32", depth=0)
