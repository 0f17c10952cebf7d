import json
from dataclasses import replace

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.measures import parse_measures, score
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_choice import choose_funnel, cost
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.sizes import Size

SMALL, MIDDLE, FULL = Size(2, 4), Size(4, 16), Size(6, 64)
COUNT = 900


class Problem:
    """Passages, queries and judgements at three sizes; the smaller the size, the blurrier its vectors."""

    def __init__(self, open_written, blur, queries=30, seed=1):
        rng = np.random.default_rng(seed)
        self.ids = [f"d{number}" for number in rng.permutation(COUNT)]
        full = rng.standard_normal((COUNT, 64)).astype(np.float32)
        targets = rng.integers(0, COUNT, queries)
        vectors = full[targets] + 0.7 * rng.standard_normal((queries, 64)).astype(np.float32)
        self.query_ids = [f"q{i}" for i in range(queries)]
        self.queries, self.vectors, self.stores = {}, {}, {}
        for size in (SMALL, MIDDLE, FULL):
            project = np.linalg.qr(rng.standard_normal((64, 64)))[0][:, : size.dim].astype(np.float32)
            noise = blur[size] * rng.standard_normal((COUNT, size.dim)).astype(np.float32)
            self.vectors[size] = full @ project + noise
            self.queries[size] = vectors @ project
            self.stores[size] = open_written(
                self.ids, self.vectors[size], f"p{size.layer}", size=size, fingerprint=f"f{size.layer}"
            )
        self.qrels = {
            query_id: {self.ids[row]: 2, self.ids[(row + 1) % COUNT]: 1, self.ids[(row + 2) % COUNT]: -1, "gone": 1}
            for query_id, row in zip(self.query_ids, targets)
        }

    def choose(self, **options):
        return choose_funnel(self.queries, self.query_ids, self.stores, self.qrels, **options)

    def ndcg(self, funnel, depth=10):
        """nDCG@10 of the run that a funnel gives, by the measure's own tool."""
        run, done = {}, 0
        for rows, scores in funnel_search(self.queries, self.stores, funnel.at_depth(depth)):
            for line, values in zip(rows, scores):
                run[self.query_ids[done]] = {self.ids[row]: float(value) for row, value in zip(line, values)}
                done += 1
        return score(self.qrels, run, parse_measures("nDCG@10")).mean["nDCG@10"]


@pytest.fixture
def problem(open_written):
    return Problem(open_written, {SMALL: 0.2, MIDDLE: 0.1, FULL: 0.0})


GRID = (20, 50, 100, 200, 400)


def every_funnel():
    found = [Funnel.parse(str(size)) for size in (SMALL, MIDDLE, FULL)]
    for keep in (10, *GRID):
        found += [Funnel.parse(f"{a}@{keep},{b}") for a, b in [(SMALL, MIDDLE), (SMALL, FULL), (MIDDLE, FULL)]]
        found += [Funnel.parse(f"{SMALL}@{keep},{MIDDLE}@{less},{FULL}") for less in (10, *GRID) if less < keep]
    return [funnel.at_depth(10) for funnel in found]


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95, 1.0])
def test_no_cheaper_funnel_is_as_good(problem, target):
    """Against running every funnel and scoring its run."""
    choice = problem.choose(target=target, keeps=GRID)
    full = problem.ndcg(Funnel.parse(str(FULL)))
    assert choice.full_score == pytest.approx(full, abs=1e-9)
    assert choice.score == pytest.approx(problem.ndcg(choice.funnel), abs=1e-9)
    assert choice.score >= target * full - 1e-9
    for funnel in every_funnel():
        if cost(funnel, COUNT) < cost(choice.funnel, COUNT):
            assert problem.ndcg(funnel) < target * full
    assert choice.cost_ratio == cost(Funnel.parse(f"{FULL}@10"), COUNT) / cost(choice.funnel, COUNT)


def test_a_higher_target_costs_more(problem):
    ratios = [problem.choose(target=target, keeps=GRID).cost_ratio for target in (0.3, 0.6, 0.9, 0.999)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 2 * ratios[-1]


def rank_problem(open_written, rank):
    """One query; its relevant passage has a given rank at 2:2 and comes first at 6:64."""
    count = 20_000
    ids = [f"d{i:05}" for i in range(count)]
    small = np.zeros((count, 2), np.float32)
    small[:, 0] = np.arange(count)[::-1]
    full = np.zeros((count, 64), np.float32)
    full[rank - 1, 0] = 1
    stores = {
        Size(2, 2): open_written(ids, small, "small", size=Size(2, 2), shard_size=9000),
        FULL: open_written(ids, full, "full", size=FULL, fingerprint="beef", shard_size=9000),
    }
    queries = {size: np.eye(1, size.dim, dtype=np.float32) for size in stores}
    return queries, ["q"], stores, {"q": {ids[rank - 1]: 1}}


def test_a_shortlist_just_long_enough(open_written):
    problem = rank_problem(open_written, rank=150)
    for keeps, expected in [
        ((50, 100, 149, 150, 200), "2:2@150,6:64@10"),
        ((50, 100, 149, 200), "2:2@200,6:64@10"),
        ((50, 149), "6:64@10"),
    ]:
        choice = choose_funnel(*problem, keeps=keeps)
        assert str(choice.funnel) == expected
        assert (choice.score, choice.full_score) == (1, 1)
    assert choice.cost_ratio == 1
    assert "funnels is cheaper than 6:64 alone and keeps 99.0%" in str(choice)


def test_a_small_size_that_is_perfect_is_taken_alone(open_written):
    choice = choose_funnel(*rank_problem(open_written, rank=1))
    assert str(choice.funnel) == "2:2@10"
    assert choice.cost_ratio > 25


def test_steps_keep_the_depth_of_the_run(problem):
    choice = problem.choose(target=0.5, depth=120, keeps=GRID)
    assert choice.funnel.depth == 120
    assert all((step.keep or 0) >= 120 for step in choice.funnel.steps)
    assert choice.score == pytest.approx(problem.ndcg(choice.funnel, 120), abs=1e-9)


def test_the_choice_does_not_depend_on_memory(problem):
    def outcome(**options):
        values = problem.choose(target=0.9, keeps=GRID, **options).to_json()
        return {name: value for name, value in values.items() if "milliseconds" not in name}

    assert outcome() == outcome(max_memory=1_000_000) == outcome(threads=1, max_memory=1)


def test_steps_can_be_limited(problem):
    assert len(problem.choose(target=0.9, max_steps=1).funnel.steps) == 1
    tried = [problem.choose(target=0.9, max_steps=steps, keeps=GRID).tried for steps in (1, 2, 3)]
    assert tried[0] < tried[1] < tried[2]


def test_the_summary_names_figures(problem, ticking):
    choice = problem.choose(target=0.9, keeps=GRID)
    figures = json.loads(json.dumps(choice.to_json()))
    assert Funnel.parse(figures["funnel"]) == choice.funnel
    assert figures["full"] == "6:64" and figures["queries"] == 30
    assert choice.milliseconds == choice.full_milliseconds == pytest.approx(1000 / 30)
    assert str(choice).startswith(f"{choice.funnel}: nDCG@10 ")
    assert f"{choice.cost_ratio:.1f} times fewer numbers to multiply" in str(choice)
    for milliseconds, remark in ((1.0, False), (3.0, True)):
        measured = replace(choice, milliseconds=milliseconds, full_milliseconds=2.0)
        assert str(measured).endswith("with so few passages 6:64 alone is faster") == remark


def test_queries_without_judgements_do_not_count(problem):
    problem.qrels = dict(list(problem.qrels.items())[::2])
    kept = [i for i, query_id in enumerate(problem.query_ids) if query_id in problem.qrels]
    choice = problem.choose(target=0.9, keeps=GRID)
    assert choice.queries == len(kept) == 15
    assert choice.full_score == pytest.approx(problem.ndcg(Funnel.parse(str(FULL))), abs=1e-9)


def test_refusals(problem):
    for options, what in [
        ({"target": 0}, "--target 0 is not a share"),
        ({"target": 1.5}, "--target 1.5 is not a share"),
        ({"target": float("nan")}, "--target nan is not a share"),
        ({"depth": 0}, "--depth 0"),
    ]:
        with pytest.raises(UserError, match=what):
            problem.choose(**options)
    arguments = [problem.queries, problem.query_ids, problem.stores, problem.qrels]
    for position, value, what in [
        (2, {FULL: problem.stores[FULL]}, "several sizes, stored: 6:64"),
        (2, {}, "several sizes, stored: none"),
        (
            3,
            {"x1": {"d1": 1}},
            "none of the 30 queries is judged: their ids are like 'q0', those of the qrels like 'x1'",
        ),
        (3, {"q0": {"e1": 1}}, "none of the 1 relevant documents of the qrels is among the passages"),
        (3, {"q0": {"d1": 0}}, "none of the 0 relevant"),
    ]:
        with pytest.raises(UserError, match=what):
            choose_funnel(*arguments[:position], value, *arguments[position + 1 :])
    far = problem.queries[FULL] @ problem.vectors[FULL].T
    lowest = {query_id: {problem.ids[row]: 1} for query_id, row in zip(problem.query_ids, far.argmin(axis=1))}
    with pytest.raises(UserError, match="at 6:64 no relevant passage is among the first 10"):
        choose_funnel(*arguments[:3], lowest)
