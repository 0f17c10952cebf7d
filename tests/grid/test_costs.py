"""What is made of measured times; no test here looks at a clock."""

from __future__ import annotations

import itertools
import logging

import pytest

from starbucks_retrieval.data import Passage, Query
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.grid import costs
from starbucks_retrieval.grid.costs import busy_reason, least, slowdown


def test_the_least_repetition_of_each_text_counts():
    assert least([[12.6, 1622.0, 300.0], [80.0, 12.8, 12.9], [13.0, 13.0, 13.0]]) == 12.8
    assert slowdown([[1.0, 1.0, 1.1], [2.0, 2.0, 2.0], [1.0, 5.0, 9.0]]) == 1.0
    assert slowdown([[1.0, 3.0, 4.0], [2.0, 4.0, 5.0]]) == 2.5


@pytest.mark.parametrize(
    ("slow", "load", "cores", "reason"),
    [
        (1.1, 2.0, 2, None),
        (1.1, None, 2, None),
        (1.5, 2.5, 2, None),
        (1.6, 0.1, 2, "a repetition takes 1.6 times the least one"),
        (1.0, 2.6, 2, "2.6 processes want to run on 2 cores"),
        (9.0, 8.0, 4, "a repetition takes 9.0 times the least one, and 8.0 processes want to run on 4 cores"),
    ],
)
def test_when_a_machine_is_busy(slow, load, cores, reason):
    assert busy_reason(slow, load, cores) == reason


@pytest.mark.parametrize(("load", "busy"), [(0.5, None), (40.0, "40.0 processes want to run on 2 cores")])
def test_costs_by_a_clock_of_our_own(tiny_bert, monkeypatch, caplog, load, busy):
    """A clock that goes on by a second whenever it is read."""
    monkeypatch.setattr(costs, "machine_load", lambda: (load, 2))
    ticks = itertools.count()
    texts = [f"w{i} w{i + 1}" for i in range(4)]
    caplog.set_level(logging.INFO)
    by_layer, how = costs.measure_costs(
        EncodeArguments(model_name_or_path=str(tiny_bert)),
        [1, 3],
        [Query(str(i), text) for i, text in enumerate(texts)],
        [Passage(str(i), "", text) for i, text in enumerate(texts)],
        clock=lambda: next(ticks),
    )
    assert by_layer == {layer: {"query_ms": 1000.0, "passage_ms": 250.0} for layer in (1, 3)}
    assert (how["repetitions"], how["slowdown"], how["load"], how["cores"], how["busy"]) == (3, 1.0, load, 2, busy)
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["timing 4 queries and 4 passages at 2 layers", "timing takes about 30 s"]
    assert any("the machine is busy" in line for line in said) == (busy is not None)
