from __future__ import annotations

import math
import random

import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.metrics.measures import (
    float32_scores,
    is_mean,
    parse_measures,
    remove_identical_ids,
    score,
    trec_order,
    trec_top,
)

NAN, INF = float("nan"), float("inf")


def test_every_measure_breaks_ties_by_descending_docid():
    run = {"q": dict.fromkeys(["a", "b", "c"], 1.0)}
    best_last = parse_measures("RR RR@2 P@1 Success@1 nDCG@1 R@1 AP@1 Judged@1 RR@3")
    for docid, expected in (("c", 1.0), ("a", 0.0)):
        mean = score({"q": {docid: 1}}, run, best_last).mean
        assert mean.pop("RR") == (1.0 if expected else pytest.approx(1 / 3))
        assert mean.pop("RR@3") == (1.0 if expected else pytest.approx(1 / 3))
        assert set(mean.values()) == {expected}


def test_docids_compare_as_text_by_their_bytes():
    run = dict.fromkeys(["9", "10", "A", "a", "é", "z", "😀", "\uffee"], 0.5)
    assert trec_order(run) == ["😀", "\uffee", "é", "z", "a", "A", "9", "10"]
    assert trec_order(run) == sorted(run, key=str.encode, reverse=True)


def test_scores_compare_as_float32_as_in_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    run = {"a": 1.0 + 1e-12, "b": 1.0}
    assert trec_order(run) == ["b", "a"]
    theirs = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"recip_rank"}).evaluate({"q": run})
    assert theirs["q"]["recip_rank"] == score({"q": {"a": 1}}, {"q": run}, parse_measures("RR")).mean["RR"] == 0.5


def test_the_top_is_the_start_of_the_order():
    for seed in range(50):
        rng = random.Random(seed)
        run = {f"d{i}": rng.choice([0.0, 1.0, 2.5, NAN, INF, 1e39]) for i in range(rng.randrange(30))}
        for depth in (1, 5, 40):
            assert [docid for _, docid in trec_top(run, depth)] == trec_order(run)[:depth]
    assert trec_top({"a": 1.0, "b": 2.0, "c": 2.0}, 2) == [(2.0, "c"), (2.0, "b")]


def test_non_finite_scores_are_the_lowest():
    run = {"nan": NAN, "inf": INF, "minus": -INF, "low": -1e30, "high": 2.0, "huge": 1e39}
    assert trec_order(run) == ["huge", "high", "low", "nan", "minus", "inf"]
    assert float32_scores({"a": NAN, "b": 1.5}).tolist() == [-INF, 1.5]


def test_equal_to_pytrec_eval_on_tied_scores():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = random.Random(7)
    run = {f"q{i}": {f"d{rng.randrange(200)}": rng.randrange(12) / 4 for _ in range(60)} for i in range(40)}
    qrels = {q: {docid: rng.randrange(-1, 4) for docid in rng.sample(sorted(r), 12)} for q, r in run.items()}
    scores = score(qrels, run, parse_measures("nDCG@10 AP(rel=2) R(rel=2)@20 P@5 RR(rel=2) RR(rel=2)@10 nDCG"))
    graded = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10", "P_5", "ndcg"}).evaluate(run)
    strict = pytrec_eval.RelevanceEvaluator(qrels, {"map", "recall_20", "recip_rank"}, relevance_level=2).evaluate(run)
    for query_id in qrels:
        reciprocal = strict[query_id]["recip_rank"]
        expected = {
            "nDCG@10": graded[query_id]["ndcg_cut_10"],
            "nDCG": graded[query_id]["ndcg"],
            "P@5": graded[query_id]["P_5"],
            "AP(rel=2)": strict[query_id]["map"],
            "R(rel=2)@20": strict[query_id]["recall_20"],
            "RR(rel=2)": reciprocal,
            "RR(rel=2)@10": reciprocal if reciprocal > 1 / 11 else 0.0,
        }
        assert {name: values[query_id] for name, values in scores.per_query.items()} == pytest.approx(expected)
    assert scores.mean["nDCG@10"] == pytest.approx(sum(r["ndcg_cut_10"] for r in graded.values()) / len(qrels))


def test_equal_to_pytrec_eval_on_random_runs_with_ties():
    """Every measure that both know, on 20 runs of few scores, at full depth and none."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    theirs_by_ours = {"nDCG@10": "ndcg_cut_10", "AP": "map", "R@100": "recall_100", "P@20": "P_20", "Rprec": "Rprec"}
    theirs_by_ours |= {"nDCG": "ndcg", "RR": "recip_rank", "Success@5": "success_5", "Bpref": "bpref", "infAP": "infAP"}
    theirs_by_ours |= {"AP@30": "map_cut_30", "IPrec@0.1": "iprec_at_recall_0.10", "NumRet": "num_ret"}
    for seed in range(20):
        rng = random.Random(seed)
        docids = [f"d{i}" for i in range(150)]
        qrels = {f"q{i}": {d: rng.randrange(-2, 4) for d in rng.sample(docids, 30)} for i in range(12)}
        run = {q: {d: rng.randrange(5) / 3 for d in rng.sample(docids, rng.randrange(1, 100))} for q in [*qrels][:-1]}
        ours = score(qrels, run, parse_measures(" ".join([*theirs_by_ours, "RR@5", "RR@1"]))).per_query
        judge = pytrec_eval.RelevanceEvaluator(qrels, set(theirs_by_ours.values()))
        for query_id, theirs in judge.evaluate(run).items():
            for name, key in theirs_by_ours.items():
                assert ours[name][query_id] == pytest.approx(theirs[key], abs=1e-6), (seed, name)
            for depth in (1, 5):
                expected = theirs["recip_rank"] if theirs["recip_rank"] > 0.99 / depth else 0.0
                assert ours[f"RR@{depth}"][query_id] == pytest.approx(expected)
        assert all(values["q11"] == 0 for values in ours.values())


def test_negative_grades_are_not_relevant_to_any_tool():
    run = {"1": {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}}
    names = "nDCG@4 AP P@2 RR@4 Judged@2 Compat(p=0.8) nDCG(dcg='exp-log2')@4 ERR@4 Accuracy@4 nDCG(gains={2:5})@4"
    measures = []
    for name in names.split():
        try:
            measures += parse_measures(name)
        except UserError:
            assert name.startswith(("nDCG(dcg", "ERR"))  # a Perl script computes these
    negative, zero = (score({"1": {"a": grade, "b": 2, "c": 1, "e": 1}}, run, measures).mean for grade in (-2, 0))
    assert negative == pytest.approx(zero)
    assert negative["Judged@2"] == 1.0
    # trec_eval takes what is below zero for not judged where that matters.
    assert score({"1": {"a": -1, "b": 1}}, run, parse_measures("Bpref")).mean["Bpref"] == 1.0


def test_counts_are_distinguished_from_means():
    means = [
        str(measure) for measure in parse_measures("RR@10 nDCG NumQ NumRet NumRel Judged@5 SetP") if is_mean(measure)
    ]
    assert means == ["RR@10", "nDCG", "Judged@5", "SetP"]


def test_gain_is_linear():
    ideal = 3 + 1 / math.log2(3)
    scores = score({"q": {"a": 3, "b": 1}}, {"q": {"b": 2.0, "a": 1.0}}, parse_measures("nDCG@10"))
    assert scores.mean["nDCG@10"] == pytest.approx((1 + 3 / math.log2(3)) / ideal)


def test_the_mean_is_over_judged_queries_however_few_have_results():
    qrels = {f"q{i}": {"d": 1} for i in range(1200)}  # more than one batch
    run = {f"q{i}": {"d": 1.0} for i in (0, 511, 512, 1199)} | {"q5": {}, "stranger": {"d": 1.0}}
    scores = score(qrels, run, parse_measures("RR@10 R@1000 Judged@10"))
    assert scores.mean == pytest.approx(dict.fromkeys(["RR@10", "R@1000", "Judged@10"], 4 / 1200))
    assert list(scores.per_query["RR@10"]) == list(qrels)
    assert scores.per_query["RR@10"]["q5"] == 0.0


def test_a_run_without_any_judged_query_scores_zero():
    assert score({"q": {"d": 1}}, {}, parse_measures("nDCG@10 RR@10")).mean == {"nDCG@10": 0.0, "RR@10": 0.0}


def test_counts_are_summed():
    scores = score({"q": {"d": 1}, "r": {"e": 1}}, {"q": {"d": 1.0}, "r": {"f": 1.0}}, parse_measures("NumQ NumRel"))
    assert scores.mean == {"NumQ": 2, "NumRel": 2}


def test_remove_identical_ids_leaves_the_run_it_was_given():
    run = {"a": {"a": 3.0, "b": 2.0}, "b": {"a": 1.0}}
    assert remove_identical_ids(run) == {"a": {"b": 2.0}, "b": {"a": 1.0}}
    assert "a" in run["a"]


def test_measures_parse_from_spaces_commas_and_parameters():
    names = ["RR@10", "nDCG@10", "P(rel=2)@5", "SetF(beta=2.0,rel=2)"]
    for text in (
        " ".join(names),
        ", ".join(names),
        ",".join(names),
        "MRR@10 nDCG@10 RR@10 P(rel=2)@5 SetF(beta=2.0, rel=2)",
    ):
        assert [str(measure) for measure in parse_measures(text)] == names


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("", "no measure", "RR@10"),
        ("RR@10 ndcg@10", "'ndcg@10'", "nDCG@10"),
        ("frob@3", "'frob@3'", "RR@10"),
        ("P@ten", "'P@ten'", "P@5"),
        ("RR@0", "'RR@0'", "P@5"),
        ("P", "'P'", "P@5"),
        ("AP(rel='a')", "AP(rel='a')", "P@5"),
        ("RR(judged_only=True)@10", "no installed tool", "parameters"),
        ("__import__('os')", "__import__", "P@5"),
    ],
)
def test_a_bad_measure_is_named_with_a_remedy(text, what, hint):
    with pytest.raises(UserError) as error:
        parse_measures(text)
    assert what in error.value.what
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ndcg_cut_10", "nDCG@10"),
        ("ndcg_cut.10", "nDCG@10"),
        ("recall_1000", "R@1000"),
        ("P_5", "P@5"),
        ("map", "AP"),
        ("map_cut_100", "AP@100"),
        ("recip_rank", "RR"),
        ("bpref", "Bpref"),
        ("success_5", "Success@5"),
    ],
)
def test_names_of_trec_eval_are_read(theirs, ours):
    assert [str(measure) for measure in parse_measures(f"{theirs}, {ours}")] == [ours]


@pytest.mark.parametrize(
    ("word", "what", "hint"),
    [("ndcg_cut", "names 9 measures", "nDCG@10"), ("ndcg_cut_ten", "ndcg_cut_ten", "")],
)
def test_names_of_trec_eval_that_are_no_measure(word, what, hint):
    with pytest.raises(UserError, match=what) as caught:
        parse_measures(word)
    assert hint in caught.value.hint
