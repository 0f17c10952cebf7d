"""The best size within a budget, the front, the knee and the proposed sizes, against exhaustive search."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from starbucks_retrieval.choose import (
    ChooseArguments,
    SizeCandidate,
    build_candidates,
    choose,
    find_knee,
    pareto_front,
    propose_sizes,
)
from starbucks_retrieval.choose.__main__ import main
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.sizes import Size, Sizes

LAYERS, DIMS = (2, 4, 6), (8, 32, 128)
QUALITY = {(2, 8): 0.1, (2, 32): 0.3, (2, 128): 0.35, (4, 8): 0.15, (4, 32): 0.4, (4, 128): 0.5}
QUALITY |= {(6, 8): 0.12, (6, 32): 0.45, (6, 128): 0.6}


def results(quality=QUALITY, dataset="a", label="m", timed=True, **more) -> Results:
    cells = [Cell(dataset, "nDCG@10", Size(*place), value, 10) for place, value in quality.items()]
    costs = {
        f"{layer}:{dim}": {"bytes_per_passage": 4 * dim, **({"query_ms": 1.5 * layer} if timed else {})}
        for layer, dim in quality
    }
    return Results("grid", label, cells, {"costs": costs, **more})


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_results("a.json", results())
    write_results("untimed.json", results(timed=False))
    return tmp_path


def made(quality=QUALITY, timed=True) -> list[SizeCandidate]:
    return build_candidates({"a": results(quality, timed=timed)})[0]


def test_the_best_under_budgets():
    assert str(choose(ChooseArguments("a.json")).best.size) == "6:128"
    assert str(choose(ChooseArguments("a.json", budget_ms=6)).best.size) == "4:128"
    assert str(choose(ChooseArguments("a.json", budget_ms=6, bytes_per_passage=128)).best.size) == "4:32"
    assert str(choose(ChooseArguments("a.json", bytes_per_passage=128)).best.size) == "6:32"
    found = choose(ChooseArguments("a.json", bytes_per_passage=32))
    assert str(found.best.size) == "4:8"  # 6:8 costs more and is worse
    assert found.best in found.front


def pairs(**more) -> Results:
    """Queries and passages of layers 0, 2 and 6 at 32 dims: passages cost nothing per query, so deep ones are better."""
    quality = {(0, 0): 0.2, (0, 2): 0.22, (0, 6): 0.3, (2, 2): 0.35, (2, 6): 0.5, (6, 0): 0.1, (6, 2): 0.2, (6, 6): 0.6}
    cells = [Cell("a", "nDCG@10", Size(n, 32), value, 10, Size(m, 32)) for (n, m), value in quality.items()]
    costs = {f"{n}:32": {"bytes_per_passage": 64, "query_ms": 0.1 + n, "passage_ms": 0.2 + 3 * n} for n in (0, 2, 6)}
    return Results("grid", "m", cells, {"costs": costs, **more})


def test_queries_of_a_shallow_layer_are_chosen_for_deep_passages():
    write_results("pairs.json", pairs(shared_space="5ace"))
    found = choose(ChooseArguments("pairs.json", budget_ms=3))
    assert (found.best.name, found.best.costs) == (
        "2:32/6:32",
        {"bytes_per_passage": 64, "query_ms": 2.1, "passage_ms": 18.2},
    )
    assert [one.name for one in found.front] == ["0:32/6:32", "2:32/6:32", "6:32"]
    assert found.to_json()["best"]["passage_size"] == "6:32"
    assert "2:32/6:32" in found.table()
    assert choose(ChooseArguments("pairs.json", budget_ms=3, passage_ms=10)).best.name == "2:32"
    with pytest.raises(UserError, match=r"passage_ms 0.1[\s\S]*least is 0.2, at 0:32"):
        choose(ChooseArguments("pairs.json", passage_ms=0.1))
    assert str(propose_sizes(build_candidates({"p": pairs(shared_space="5ace")})[0], 2)) == "0:32,6:32"


def test_pairs_that_search_refuses_are_no_candidates():
    assert [one.name for one in build_candidates({"p": pairs()})[0]] == ["0:32", "2:32", "6:32"]


def test_layer_0_has_a_cost_without_milliseconds():
    candidates = build_candidates({"p": Results("grid", "m", pairs(shared_space="x").cells, {"shared_space": "x"})})[0]
    assert [one.name for one in pareto_front(candidates)] == ["0:32/6:32", "2:32/6:32", "6:32"]


def test_the_cheapest_that_is_good_enough():
    found = choose(ChooseArguments("a.json", min_quality=0.4))
    assert str(found.best.size) == "4:32" and "cheapest" in found.reason
    assert str(choose(ChooseArguments("a.json", min_quality=0.4, bytes_per_passage=512)).best.size) == "4:32"


def test_what_does_not_fit_is_said_with_what_is_nearest():
    with pytest.raises(UserError, match=r"budget_ms 2[\s\S]*least is 3, at 2:8"):
        choose(ChooseArguments("a.json", budget_ms=2))
    with pytest.raises(UserError, match=r"min_quality 0.9[\s\S]*best is 0.6000, at 6:128"):
        choose(ChooseArguments("a.json", min_quality=0.9))
    with pytest.raises(UserError, match=r"query_ms, which was not measured"):
        choose(ChooseArguments("untimed.json", budget_ms=5))


def test_the_front_is_what_nothing_dominates():
    rng = np.random.default_rng(3)
    quality = {(n, d): float(rng.integers(0, 6)) / 10 for n in range(1, 7) for d in (8, 16, 32, 64)}
    candidates = made(quality)
    expected = {
        one.size
        for one in candidates
        if not any(
            other.quality >= one.quality
            and other.size.layer <= one.size.layer
            and other.size.dim <= one.size.dim
            and other != one
            for other in candidates
        )
    }
    for timed in (True, False):  # layers stand for milliseconds that were not measured
        assert {one.size for one in pareto_front(made(quality, timed))} == expected
    assert [one.log_cost for one in pareto_front(candidates)] == sorted(
        one.log_cost for one in pareto_front(candidates)
    )


def test_the_knee_is_where_quality_stops_to_pay():
    quality = {(2, 8): 0.1, (2, 16): 0.7, (2, 32): 0.72, (2, 64): 0.73, (2, 128): 0.74}
    assert str(find_knee(made(quality)).size) == "2:16"
    assert str(find_knee(made({(2, 8): 0.5})).size) == "2:8"
    assert str(find_knee(made({(2, 8): 0.5, (2, 16): 0.4})).size) == "2:8"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_proposed_sizes_are_the_best_of_all_chains(count):
    candidates = made()
    by_size = {one.size: one for one in candidates}
    full = Size(6, 128)

    def area(chain):
        steps = itertools.pairwise(chain)
        return sum(by_size[low].quality * (by_size[high].log_cost - by_size[low].log_cost) for low, high in steps)

    chains = [
        (*rest, full)
        for rest in itertools.combinations(sorted(set(by_size) - {full}), count - 1)
        if all(a.layer <= b.layer and a.dim <= b.dim for a, b in zip(rest, (*rest, full)[1:]))
    ]
    found = propose_sizes(candidates, count)
    assert tuple(found) in chains
    assert area(tuple(found)) == pytest.approx(max(map(area, chains)))
    assert propose_sizes(candidates[::-1], count) == found


def test_sizes_that_cannot_be_proposed():
    with pytest.raises(UserError, match=r"no 6 of the measured sizes[\s\S]*--auto_sizes 5"):
        propose_sizes(made(), 6)
    with pytest.raises(UserError, match="full size 6:128 is not measured"):
        propose_sizes(made({(2, 128): 0.1, (6, 8): 0.2}), 2)
    with pytest.raises(UserError, match="below 1"):
        propose_sizes(made(), 0)


def test_data_sets_are_averaged_and_sizes_that_one_lacks_left_out(caplog):
    other = {place: value / 2 for place, value in QUALITY.items() if place != (2, 8)} | {(4, 8): math.nan}
    write_results("b.json", results(other, "b", timed=False))
    caplog.set_level("WARNING", "starbucks_retrieval")
    found = choose(ChooseArguments(["a.json", "b.json"], budget_ms=100))
    assert found.datasets == ["a", "b"]
    assert found.best.quality == pytest.approx(0.45) and found.best.by_dataset == {"a": 0.6, "b": 0.3}
    assert {one.size for one in found.front}.isdisjoint({Size(2, 8), Size(4, 8)})
    assert "2:8, 4:8" in caplog.text


def test_files_that_cannot_be_chosen_from():
    write_results("both.json", Results("grid", "m", [*results().cells, Cell("a", "RR", Size(2, 8), 1, 10)]))
    with pytest.raises(UserError, match="several measures: nDCG@10, RR"):
        choose(ChooseArguments("both.json"))
    assert choose(ChooseArguments("both.json", measure="RR")).best.quality == 1
    with pytest.raises(UserError, match="nothing is measured by AP"):
        choose(ChooseArguments("both.json", measure="AP"))
    write_results("other.json", results(dataset="b", label="another"))
    with pytest.raises(UserError, match="several models: another, m"):
        choose(ChooseArguments(["a.json", "other.json"]))
    write_results("deltas.json", Results("deltas", "m", results().cells))
    with pytest.raises(UserError, match="deltas, not qualities"):
        choose(ChooseArguments("deltas.json"))
    write_results("run.json", Results("evaluate", "m", [Cell("a", "nDCG@10", None, 0.5, 10)]))
    with pytest.raises(UserError, match="no sizes in run"):
        choose(ChooseArguments("run.json"))
    write_results("c.json", results())
    with pytest.raises(UserError, match="measured twice at 2:8"):
        choose(ChooseArguments(["a.json", "c.json"]))
    write_results("less.json", Results("grid", "m", results().cells, {"costs": {"2:8": {"bytes_per_passage": 32}}}))
    with pytest.raises(UserError, match="no bytes_per_passage for 2:32"):
        choose(ChooseArguments("less.json"))


def test_without_costs_bytes_are_those_of_float16(caplog):
    write_results("bare.json", Results("sts", "m", results().cells))
    caplog.set_level("WARNING", "starbucks_retrieval")
    assert choose(ChooseArguments("bare.json", bytes_per_passage=64)).best.size == Size(6, 32)
    assert "float16" in caplog.text


def test_the_command(capsys):
    assert run_command(main, ["--input", "a.json", "--budget_ms", "6", "--auto_sizes", "3"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["size", "nDCG@10", "bytes_per_passage", "query_ms"]
    assert [line.split()[1] for line in lines if "*" in line] == ["4:128"]
    assert lines[-1].startswith("--sizes ") and len(Sizes.parse(lines[-1].removeprefix("--sizes "))) == 3
    assert "4:128: the highest nDCG@10 that fits, 0.5000" in err
    assert run_command(main, ["--input", "a.json", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["size"] == "6:128"
    assert run_command(main, ["--input", "a.json", "--budget_ms", "1"]) == 2


def searched(**more) -> Results:
    """Over 1,000 passages, search takes a hundredth of a millisecond a dimension; as much again for every thousand more."""
    found = results(costs_measured={"search": {"passages": 1000}}, **more)
    for size, cost in found.more["costs"].items():
        dim = Size.parse(size).dim
        cost |= {"search_ms": 0.01 * dim, "search_ms_per_million": 10.0 * dim}
    return found


def test_a_budget_is_for_encoding_and_search(capsys):
    write_results("searched.json", searched())
    within = {7: "4:32", 10: "4:128", 10.5: "6:128"}  # without search, 6 ms would do for four layers and 9 for six
    assert {ms: choose(ChooseArguments("searched.json", budget_ms=ms)).best.name for ms in within} == within
    found = choose(ChooseArguments("searched.json", budget_ms=7))
    assert found.notes == ["4:32: 6 ms to encode a query, 0.32 ms to search 1,000 passages exactly"]
    assert found.best.to_json()["search_ms"] == 0.32 and "search_ms_per_million" not in found.best.costs
    many = choose(ChooseArguments("searched.json", budget_ms=20, passages=1e5))
    assert many.best.name == "4:8" and many.best.costs["search_ms"] == pytest.approx(0.08 + 80 * 0.099)
    assert many.notes[0] == "4:8: 6 ms to encode a query, 8 ms to search 100,000 passages exactly"
    assert "search --funnel auto" in many.notes[1]
    assert choose(ChooseArguments("searched.json", passages=500)).best.costs["search_ms"] == pytest.approx(0.64)
    assert run_command(main, ["--input", "searched.json", "--budget_ms", "3", "--passages", "1e6"]) == 2
    assert "at 2:8; search takes most of the time" in capsys.readouterr().err


def test_every_budget_limits_its_costs():
    found = searched()
    for size, cost in found.more["costs"].items():
        cost |= {"passage_ms": 0.5 * Size.parse(size).layer}
    write_results("all.json", found)
    assert choose(ChooseArguments("all.json", passage_ms=2)).best.name == "4:128"
    assert choose(ChooseArguments("all.json", passage_ms=2, budget_ms=6.5, bytes_per_passage=128)).best.name == "4:32"
    with pytest.raises(UserError, match=r"no size fits --passage_ms 0.9\n  the least is 1, at 2:8$"):
        choose(ChooseArguments("all.json", passage_ms=0.9))  # whatever search takes
    with pytest.raises(UserError, match="--passage_ms needs passage_ms, which was not measured"):
        choose(ChooseArguments("a.json", passage_ms=2))
    del found.more["costs"]["4:32"]["passage_ms"]
    write_results("all.json", found)
    with pytest.raises(UserError, match=r"all\.json has passage_ms for some sizes and not for 4:32"):
        choose(ChooseArguments("all.json", passage_ms=2))


def test_a_search_that_was_not_timed_is_told(caplog):
    choose(ChooseArguments("a.json", budget_ms=6))
    assert "--budget_ms counts encoding alone" in caplog.text
    with pytest.raises(UserError, match="--passages needs search_ms"):
        choose(ChooseArguments("a.json", passages=1e6))
    with pytest.raises(UserError, match="--passages 0"):
        ChooseArguments("a.json", passages=0)
    damaged = searched()
    del damaged.more["costs"]["2:8"]["search_ms"]
    write_results("damaged.json", damaged)
    with pytest.raises(UserError, match="search_ms for some sizes and not for 2:8"):
        choose(ChooseArguments("damaged.json"))
    damaged = searched()
    damaged.more["costs_measured"]["search"]["passages"] = 0
    write_results("damaged.json", damaged)
    with pytest.raises(UserError, match="cannot be read"):
        choose(ChooseArguments("damaged.json"))


@pytest.mark.parametrize(
    ("busy", "budget", "warned"), [("9 processes", 100.0, True), ("9 processes", None, False), (None, 100.0, False)]
)
def test_times_of_a_busy_machine_are_warned_of(tmp_path, monkeypatch, caplog, busy, budget, warned):
    monkeypatch.chdir(tmp_path)
    write_results("m.json", results(costs_measured={"busy": busy}))
    choose(ChooseArguments("m.json", budget_ms=budget))
    assert ("m.json were measured on a busy machine: 9 processes" in caplog.text) == warned


DEEP = {(3, 8): 0.1, (3, 32): 0.3, (3, 128): 0.4, (6, 8): 0.2, (6, 32): 0.59, (6, 128): 0.6}


def test_a_size_that_the_model_was_not_made_for_is_told(tmp_path, capsys):
    made = {"model_sizes": "2:8,6:128", "fitted_layers": []}
    write_results("m.json", results(**made))
    assert choose(ChooseArguments("m.json")).notes == []  # 6:128
    (note,) = choose(ChooseArguments("m.json", budget_ms=6)).notes
    assert note.startswith("4:128 was neither trained nor fitted (the model has 2:8,6:128)") and len(note) < 120
    write_results("m.json", results(**made | {"fitted_layers": [0, 2, 4, 6]}))
    assert choose(ChooseArguments("m.json", budget_ms=6)).notes == []
    assert (
        choose(ChooseArguments("a.json", budget_ms=6)).notes == []
    )  # a file that does not say what the model was made for
    write_results("m.json", results(**made))
    assert run_command(main, ["--input", "m.json", "--budget_ms", "6", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["notes"] == [note] and err.splitlines()[-1] == note


def test_both_sizes_of_a_pair_are_looked_at():
    write_results("pairs.json", pairs(shared_space="5ace", model_sizes="6:32", fitted_layers=[6]))
    assert choose(ChooseArguments("pairs.json", budget_ms=3)).notes[0].startswith("2:32 was neither trained nor fitted")


def test_cutting_the_width_alone_is_recommended_where_the_figures_show_it():
    write_results("deep.json", results(DEEP))
    (note,) = choose(ChooseArguments("deep.json")).notes
    assert note == (
        "cheap: 6:32, all layers and a cut width, keeps 98% of the nDCG@10 of 6:128 in 25% of its bytes; 3:32 keeps 50%"
    )
    assert choose(ChooseArguments("deep.json", bytes_per_passage=128)).notes == [note]  # which chooses 6:32 itself
    assert choose(ChooseArguments("deep.json", bytes_per_passage=32)).notes == []  # too many bytes
    assert choose(ChooseArguments("deep.json", budget_ms=5)).notes == []  # six layers are too slow
    assert (
        choose(ChooseArguments("deep.json", min_quality=0.3, bytes_per_passage=32 * 4))
        .notes[0]
        .startswith("cheap: 6:32")
    )
    write_results("flat.json", results(DEEP | {(3, 32): 0.59}))
    assert choose(ChooseArguments("flat.json")).notes == []  # fewer layers keep as much
    write_results("steep.json", results(DEEP | {(6, 32): 0.5, (6, 8): 0.1}))
    assert choose(ChooseArguments("steep.json")).notes == []  # the cut width does not keep it
    write_results("one.json", results({place: value for place, value in DEEP.items() if place[0] == 6}))
    assert choose(ChooseArguments("one.json")).notes == []  # fewer layers were not measured
