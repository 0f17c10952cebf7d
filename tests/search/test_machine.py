"""Measuring the machine: the parts that were timed make its rates, and nothing costs zero."""

import json
from types import SimpleNamespace

import pytest

from starbucks_retrieval import clock
from starbucks_retrieval.search import machine as machine_module
from starbucks_retrieval.search.estimate import estimate
from starbucks_retrieval.search.machine import LinearCost, measure_machine
from starbucks_retrieval.sizes import Sizes

faiss = pytest.importorskip("faiss")

SIZES = Sizes.parse("2:32,6:128,12:768")
SMALL = {"depth": 20, "threads": 1, "table_bytes": 4 << 20}
ROWS = {32: (4 << 20) // 4 // 32, 512: (4 << 20) // 4 // 512}  # of the tables that are scanned
PARTS = {  # in the order in which they are timed
    "opening": 1e-3,
    "call": 5e-3,
    "reading": 1e-3 + 2e-9 * 512 * ROWS[512],
    "copying": 4e-3,
    "fetching 32": 1e-3 + 8 * 1000 * 32e-8,
    "fetching 512": 1e-3 + 8 * 1000 * 512e-8,
    "rescoring 32": 1e-3 + 8 * 1000 * 16e-8,
    "rescoring 512": 1e-3 + 8 * 1000 * 256e-8,
    "scan 32": 32e-9 * ROWS[32],
    "scan 512": 512e-9 * ROWS[512],
    "scan of few": 32e-9 * 8192,
}


def measured(monkeypatch, times, **options):
    """The rates of a machine on which the parts take these times; every part runs once."""
    left = iter(times)

    def timed(run, budget):
        run()
        return next(left)

    monkeypatch.setattr(machine_module, "_best_time", timed)
    machine = measure_machine(**SMALL, **options)
    assert next(left, None) is None
    return machine


def test_lines_go_through_both_points_and_never_below_zero():
    line = LinearCost.through((32, 1.0), (512, 10.6))
    assert (line(32), line(512), line(128)) == pytest.approx((1.0, 10.6, 2.92))
    steep, falling = LinearCost.through((32, 0.0), (512, 10.0)), LinearCost.through((32, 2.0), (512, 1.0))
    assert steep(0) == 0
    assert steep(512) == pytest.approx(10)
    assert (falling.each, falling.number) == (1.0, 0.0)


def test_the_times_of_the_parts_make_the_rates(monkeypatch):
    before = faiss.omp_get_max_threads()
    machine = measured(monkeypatch, PARTS.values(), batches=(1,))
    assert faiss.omp_get_max_threads() == before
    assert (machine.threads, machine.depth, machine.store_dtype) == (1, 20, "float16")
    assert machine.bandwidth == pytest.approx(2 * (4 << 20) / 4e-3)
    assert (machine.opening, machine.call, machine.reading) == pytest.approx((1e-3, 3e-3, 2e-9))
    assert machine.fetching(768) == pytest.approx(768e-8)
    assert machine.rescoring(768) == pytest.approx(384e-8)
    assert machine.rates[1].scan(768) == pytest.approx(768e-9)
    assert machine.rates[1].choose == pytest.approx(0, abs=1e-12)
    json.dumps(machine.to_json())
    times = {(row.search, str(row.size)): row.milliseconds[1] for row in estimate(machine, 1e7, SIZES)}
    assert times["flat", "2:32"] < times["flat", "12:768"]


def test_nothing_is_free_on_a_machine_whose_measurements_disagree(monkeypatch):
    parts = 8 + 2 * 3
    for times in ([1e-3] * parts, [1.0, *[1e-3] * (parts - 1)], [1e-9] * parts):
        machine = measured(monkeypatch, times, batches=(1, 64))
        assert min(machine.bandwidth, machine.opening, machine.reading, machine.call) > 0
        assert min(machine.fetching(768), machine.rescoring(768)) > 0
        assert all(rates.scan(768) > 0 for rates in machine.rates.values())
        for row in estimate(machine, 1e7, SIZES):
            assert all(0 < value < float("inf") for value in row.milliseconds.values())


def test_the_best_of_the_runs_that_a_budget_allows(ticking):
    ran = []
    # The clock is read for the end, then twice a run and once after it: three seconds each.
    assert machine_module._best_time(lambda: ran.append(1), budget=7.0) == 1
    assert len(ran) == 1 + 3


def test_a_clock_that_stands_still_measures_more_than_zero(monkeypatch):
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: 5.0))
    assert 0 < machine_module._best_time(lambda: None, budget=0.0) < 1e-6
