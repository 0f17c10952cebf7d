"""search --plan: bytes as stores take them, times that follow the model, and what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from starbucks_retrieval.cli import parse_flags, run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.search import PlanArguments, SearchArguments
from starbucks_retrieval.search import estimate as estimate_module
from starbucks_retrieval.search.__main__ import main
from starbucks_retrieval.search.estimate import estimate, estimate_searches, planned_sizes
from starbucks_retrieval.search.machine import LinearCost, MachineRates, ScanRates
from starbucks_retrieval.sizes import Size, Sizes

SIZES = Sizes.parse("2:32,6:128,12:768")
FREE = LinearCost(0.0, 0.0)
NOTHING = ScanRates(scan=FREE, choose=0.0)
IDLE = MachineRates(
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
)
USUAL = ScanRates(LinearCost(1e-9, 2e-10), 5e-8)
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
    """Estimates by kind and size."""
    found = estimate(machine, passages, sizes, **options)
    return {("flat" if row.search == "flat" else "funnel", str(row.size)): row for row in found}


def only(**rates):
    """A machine on which nothing but these takes time."""
    busy = replace(NOTHING, **rates)
    return replace(IDLE, rates={1: busy, 64: busy})


def test_exact_search_at_every_size_and_a_funnel_above_the_smallest():
    assert [(row.search, str(row.size)) for row in estimate(IDLE, 1e6, SIZES)] == [
        ("flat", "2:32"),
        ("flat", "6:128"),
        ("2:32@1000,6:128", "6:128"),
        ("flat", "12:768"),
        ("2:32@1000,12:768", "12:768"),
    ]


def test_a_funnel_never_shrinks():
    assert not any(row.search.startswith("2:64") for row in estimate(IDLE, 1e6, Sizes.parse("2:64,4:32")))


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


def test_streaming_works_with_the_memory_it_is_given():
    rows = rows_of(IDLE, 1e9, max_memory=4 * 10**9)
    flat, funnel = rows["flat", "12:768"], rows["funnel", "12:768"]
    assert (flat.memory, flat.least_memory) == (1536 * 10**9, 4 * 10**9)
    assert (funnel.memory, funnel.least_memory) == (64 * 10**9, 4 * 10**9)
    assert funnel.disk == flat.disk + rows["flat", "2:32"].disk
    assert rows_of(IDLE, 1000)["flat", "2:32"].least_memory == 64_000


def test_fits_means_this_machines_memory():
    rows = rows_of(replace(IDLE, memory=10**9), 1e6)
    assert rows["flat", "6:128"].fits
    assert not rows["flat", "12:768"].fits
    assert rows["funnel", "12:768"].fits


def test_a_scan_takes_each_passage_once_a_query():
    rows = rows_of(only(scan=LinearCost(1e-9, 1e-10)), 1e6)
    assert rows["flat", "6:128"].milliseconds == pytest.approx({1: 13.8, 64: 13.8})
    assert rows["funnel", "12:768"].milliseconds[1] == pytest.approx(4.2)


def test_reading_a_store_is_shared_by_the_queries_of_a_batch():
    rows = rows_of(replace(IDLE, reading=1e-9), 1e6)
    assert rows["flat", "6:128"].milliseconds == pytest.approx({1: 0, 64: 2}), "few queries scan float16 as it is"
    rows = rows_of(replace(IDLE, reading=1e-9, store_dtype="float32"), 1e6)
    assert rows["flat", "6:128"].milliseconds == pytest.approx({1: 128, 64: 2})


def test_opening_counts_the_shards_that_are_touched():
    rows = rows_of(replace(IDLE, opening=1e-3), 16384 * 5)
    assert rows["flat", "2:32"].milliseconds[1] == pytest.approx(5 + 5)  # the pass, then the rows scored exactly


def test_lists_of_the_best_cost_the_logarithm_of_the_passages():
    kept = 100 + 32 + 3
    flat = rows_of(only(choose=1e-6), 1e6)["flat", "2:32"]
    # FAISS multiplies blocks of 2^24 numbers, of 2^22 for few queries, each with its own list. The scan of float16 has one.
    assert flat.milliseconds[64] == pytest.approx(2e-3 * kept * (1 + math.log(1e6 / 2 / kept)))
    assert flat.milliseconds[1] == pytest.approx(1e-3 * kept * (1 + math.log(1e6 / kept)))
    single = rows_of(replace(only(choose=1e-6), store_dtype="float32"), 1e6)["flat", "2:32"]
    assert single.milliseconds[1] == pytest.approx(8e-3 * kept * (1 + math.log(1e6 / 8 / kept)))


def test_fetched_rows_are_scored_once():
    rows = rows_of(replace(IDLE, fetching=LinearCost(0, 1e-9), rescoring=LinearCost(0, 1e-6)), 1e6)
    assert rows["flat", "6:128"].milliseconds[1] == pytest.approx(135 * 128e-6)
    assert rows["funnel", "6:128"].milliseconds[1] == pytest.approx(1000 * 128e-3 + 1035 * 32e-6, rel=0.01)
    assert rows["funnel", "6:128"].fetched == 1000


def test_the_order_of_searches_at_a_million():
    times = {key: row.milliseconds[1] for key, row in rows_of(MACHINE, 1e6).items()}
    assert times["flat", "2:32"] < times["flat", "6:128"] < times["flat", "12:768"]
    assert times["flat", "2:32"] < times["funnel", "6:128"] < times["funnel", "12:768"] < times["flat", "12:768"]
    one, thousand = (rows_of(replace(MACHINE, store_dtype="float32"), count)["flat", "12:768"] for count in (1e6, 1e9))
    assert thousand.milliseconds[1] == pytest.approx(1000 * one.milliseconds[1], rel=0.02)
    large = rows_of(MACHINE, 1e9)["flat", "12:768"].milliseconds[1] / times["flat", "12:768"]
    assert 950 < large < 1000, "one list of the best grows with the logarithm"


@pytest.mark.parametrize("passages", [1, 2, 40, 1001])
def test_very_few_passages(passages):
    for row in estimate(MACHINE, passages, SIZES):
        assert 0 < row.milliseconds[64] <= row.milliseconds[1] < 10
        assert row.fetched <= passages


def test_all_sizes_are_those_of_a_store_or_a_model(tmp_path, tiny_bert, write_store):
    for size in (Size(6, 4), Size(2, 2)):
        write_store(tmp_path / "reps" / f"L{size.layer}-D{size.dim}", ["a"], np.ones((1, size.dim)), size=size)
    assert str(planned_sizes(None, str(tmp_path / "reps"))) == "2:2,6:4"
    assert str(planned_sizes("all", model_name_or_path=str(tiny_bert))) == "4:32"
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text((tiny_bert / "config.json").read_text())
    EncoderConfig(sizes=Sizes.parse("2:8,4:32")).save(model)
    assert str(planned_sizes("all", model_name_or_path=str(model))) == "2:8,4:32"
    assert str(planned_sizes("3:16", model_name_or_path=str(model))) == "3:16"


def test_estimates_as_text_and_as_json(tmp_path, monkeypatch, write_store):
    options = {}
    monkeypatch.setattr(estimate_module, "measure_machine", lambda **given: options.update(given) or MACHINE)
    (plan,), _ = parse_flags([PlanArguments], ["--plan", "--passages", "1e9", "--plan_batch", "8"], "search", "")
    found = estimate_searches(SearchArguments(sizes="2:32,12:768", depth=7, threads=3), plan)
    assert (options["depth"], options["batches"], options["threads"]) == (7, (8,), 3)
    lines = str(found).splitlines()
    assert lines[0].startswith("1,000,000,000 passages in float16")
    assert "ms at 64" in lines[1]
    assert any("64.0 GB *" in line and "2:32@1000,12:768" in line for line in lines)
    assert lines[-1].startswith("*: more than the 16.0 GB")
    figures = json.loads(json.dumps(found.to_json()))
    assert figures["passages"] == 10**9
    assert {row["size"] for row in figures["rows"]} == {"2:32", "12:768"}
    assert {row["way"] for row in figures["rows"]} == {"flat", "2:32@1000,12:768"}
    assert all(row["least"] <= row["memory"] for row in figures["rows"])
    reps = write_store(tmp_path / "L6-D4", [str(i) for i in range(50)], np.ones((50, 4)), size=Size(6, 4))
    small = estimate_searches(SearchArguments(passage_reps=str(reps)), PlanArguments(plan=True))
    assert (small.passages, options["depth"]) == (50, 1000)
    assert "*" not in str(small)


@pytest.mark.parametrize("passages", ["0", "0.5", "-3", "nan", "inf"])
def test_impossible_numbers_of_passages(passages):
    with pytest.raises(UserError, match="--passages"):
        parse_flags([PlanArguments], ["--plan", f"--passages={passages}"], "search", "")


def test_refusals(monkeypatch, capsys):
    monkeypatch.setattr(estimate_module, "measure_machine", lambda **options: MACHINE)
    with pytest.raises(UserError, match="--plan_batch"):
        PlanArguments(plan_batch=0)
    with pytest.raises(UserError, match="passages"):
        parse_flags([PlanArguments], ["--passages", "many"], "search", "")
    for sizes in (None, "all", "demi"):
        with pytest.raises(UserError) as refusal:
            planned_sizes(sizes)
        assert "--passage_reps" in refusal.value.hint
    with pytest.raises(UserError, match="6-128"):
        planned_sizes("6-128")
    with pytest.raises(UserError, match="--passages is missing"):
        estimate_searches(SearchArguments(size="2:32"), PlanArguments(plan=True))
    with pytest.raises(UserError, match="--depth"):
        estimate_searches(SearchArguments(size="2:32", depth=0), PlanArguments(passages=10))
    for flags in (["--index", "HNSW32"], ["--load_index", "folder"]):
        assert run_command(main, ["--plan", "--passages", "1e6", "--sizes", "2:32", *flags]) == 2
        assert "--plan estimates exact search and funnels, not approximate indexes" in capsys.readouterr().err
