from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval.evaluate import preflight, preflight_qrels
from starbucks_retrieval.evaluate.preflight import recognise_truncation

NAN, INF = float("nan"), float("inf")


def sound(queries: int = 30, depth: int = 20) -> tuple[dict, dict]:
    """A run and qrels with nothing wrong: documents of its own for every query, no ties, one of them relevant."""
    run = {f"q{q:02}": {f"d{q}-{i}": float(depth - i) for i in range(depth)} for q in range(queries)}
    return run, {query_id: {next(iter(ranking)): 1} for query_id, ranking in run.items()}


def found(*args) -> dict:
    findings = preflight(*args)
    assert all("\n" not in finding.what + finding.remedy and finding.remedy for finding in findings)
    return {finding.kind: finding for finding in findings}


def test_a_sound_run_has_no_findings():
    assert preflight(*sound()) == []


def test_missing_queries_are_counted_and_named():
    run, qrels = sound()
    del run["q03"], run["q17"]
    run["q09"] = {}
    finding = found(run, qrels)["missing_queries"]
    assert (finding.count, finding.sample, finding.serious) == (3, ("q03", "q09", "q17"), True)


def test_missing_queries_at_the_end_of_the_qrels_mean_a_truncated_run():
    run, qrels = sound()
    for query_id in ("q27", "q28", "q29"):
        del run[query_id]
    findings = found(run, qrels)
    assert findings.keys() == {"truncated_run"}
    assert findings["truncated_run"].count == 3
    assert "last of the qrels" in findings["truncated_run"].what
    assert findings["truncated_run"].serious


def test_missing_queries_at_the_end_of_the_topics_mean_a_truncated_run():
    run, qrels = sound()
    del run["q03"], run["q17"]
    order = [*run, "q17", "unjudged", "q03"]
    assert found(run, qrels).keys() == {"missing_queries"}
    assert "last of the queries" in found(run, qrels, order)["truncated_run"].what


def test_a_last_query_cut_short_means_a_truncated_run():
    run, qrels = sound()
    del run["q03"]
    last = list(run)[-1]
    run[last] = dict(list(run[last].items())[:4])
    assert "has 4 results, every other one 20" in found(run, qrels)["truncated_run"].what
    # Where depths differ anyway, or the short query stands in the middle, it tells nothing.
    run["q07"].popitem()
    assert found(run, qrels).keys() == {"missing_queries"}
    run["q07"]["d7-19"] = 1.0
    run[last], run["q05"] = {f"x{i}": float(-i) for i in range(20)}, {"d5-0": 1.0}
    assert found(run, qrels).keys() == {"missing_queries"}


def test_unjudged_queries_are_a_note():
    run, qrels = sound()
    del qrels["q04"]
    finding = found(run, qrels)["unjudged_queries"]
    assert (finding.count, finding.sample, finding.serious) == (1, ("q04",), False)


def test_non_finite_scores():
    run, qrels = sound()
    run["q01"]["d1-3"] = NAN
    run["q02"].update({"d2-0": INF, "d2-1": -INF})
    findings = found(run, qrels)
    assert findings.keys() == {"non_finite_scores"}  # equal infinities are not called a tie as well
    finding = findings["non_finite_scores"]
    assert (finding.count, finding.sample, finding.serious) == (3, ("q01", "q02"), True)


def test_ties_inside_the_top_ten_and_across_its_end():
    run, qrels = sound()
    run["q01"]["d1-1"] = run["q01"]["d1-0"]
    run["q02"]["d2-10"] = run["q02"]["d2-9"]  # ranks 10 and 11
    run["q03"]["d3-11"] = run["q03"]["d3-10"]  # ranks 11 and 12 decide nothing in the top ten
    run["q04"]["d4-1"] = run["q04"]["d4-0"] - 1e-9  # equal as float32
    finding = found(run, qrels)["tied_scores"]
    assert (finding.count, finding.sample, finding.serious) == (3, ("q01", "q02", "q04"), False)


def test_one_score_for_everything_is_serious():
    run, qrels = sound()
    flat = {query_id: dict.fromkeys(ranking, 0.0) for query_id, ranking in run.items()}
    assert found(flat, qrels)["tied_scores"].serious


def test_hubs_are_listed_worst_first():
    run, qrels = sound()
    for q, ranking in enumerate(run.values()):
        if q < 20:
            ranking["junk"] = 99.0
        if q < 14:
            ranking["lesser"] = 98.0
        if q < 8:
            ranking["popular"] = 97.0  # more than a tenth of 30, but not by more than thirty queries may vary
        ranking["deep"] = 0.5  # below the top ten of every query
    findings = found(run, qrels)
    assert findings.keys() == {"hub_documents"}
    finding = findings["hub_documents"]
    assert (finding.count, finding.sample, finding.serious) == (2, ("junk", "lesser"), True)
    assert "junk alone in 20 of 30 and judged relevant in 0" in finding.what


def test_a_document_that_is_relevant_wherever_it_sits_is_no_hub():
    run, qrels = sound()
    for query_id, ranking in run.items():
        ranking["survey"] = 99.0
        qrels[query_id]["survey"] = 1
    assert preflight(run, qrels) == []


def in_a_small_collection(documents: int, queries: int, seed: int = 7) -> tuple[dict, dict]:
    """A sound run over few documents, whose topics make some of them four times as popular as the average one."""
    rng = np.random.default_rng(seed)
    weights = rng.pareto(3, documents) + 1
    average = weights.mean()
    weights = np.minimum(weights, 4 * average)
    run, qrels = {}, {}
    for q in range(queries):
        drawn = rng.choice(documents, 11, replace=False, p=weights / weights.sum())
        run[f"q{q}"] = {f"d{d}": 1.0 - rank / 100 for rank, d in enumerate(drawn)}
        qrels[f"q{q}"] = {f"d{drawn[0]}": 1}
    return run, qrels


@pytest.mark.parametrize(
    ("documents", "queries"),
    [
        *((12, 30), (40, 25), (82, 35), (200, 60)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((82, 300), (1400, 225))),
    ],
)
def test_healthy_runs_over_small_collections_are_silent_and_a_hub_is_found(documents, queries):
    for seed in range(5):
        run, qrels = in_a_small_collection(documents, queries, seed)
        assert preflight(run, qrels, documents=documents) == []
    if documents < 40:
        return  # ten of twelve documents are in every top ten
    for ranking in run.values():
        ranking["junk"] = 2.0
    assert found(run, qrels)["hub_documents"].sample == ("junk",)


def test_the_size_of_the_collection_may_be_known_better_than_from_the_run():
    """The same fifty documents for all queries: half of a collection of a hundred, and hubs in one of a million."""
    rng = np.random.default_rng(3)
    run = {f"q{q}": {f"d{d}": 1.0 - i / 100 for i, d in enumerate(rng.permutation(20)[:11])} for q in range(60)}
    qrels = {query_id: {next(iter(ranking)): 1} for query_id, ranking in run.items()}
    assert preflight(run, qrels) == []
    (finding,) = preflight(run, qrels, documents=10**6)
    assert finding.kind == "hub_documents"


def test_cosine_models_are_not_advised_to_normalize():
    run, qrels = sound()
    for ranking in run.values():
        ranking["junk"] = 99.0
    assert "--normalize" in found(run, qrels)["hub_documents"].remedy
    cosines = {query_id: {docid: score / 100 for docid, score in ranking.items()} for query_id, ranking in run.items()}
    assert "--normalize" not in found(cosines, qrels)["hub_documents"].remedy


def test_hubs_need_twenty_queries():
    run, qrels = sound(queries=19)
    for ranking in run.values():
        ranking["junk"] = 99.0
    assert preflight(run, qrels) == []


def test_identical_ids_come_with_their_remedy():
    run, qrels = sound()
    run["q00"]["q00"] = 50.0
    finding = found(run, qrels)["identical_ids"]
    assert (finding.count, finding.sample, finding.serious) == (1, ("q00",), False)
    assert "--remove_identical_ids" in finding.remedy
    for query_id, ranking in run.items():
        ranking[query_id] = 50.0
    assert found(run, qrels)["identical_ids"].serious


def test_identical_ids_that_only_coincide_are_a_note():
    """Queries and documents numbered from 1, as in adi and cranfield: the document of a query's number has any rank."""
    ids = [str(i) for i in range(1, 41)]
    run = {query_id: {docid: float((int(docid) * 7 + i * 11) % 41) for docid in ids} for i, query_id in enumerate(ids)}
    qrels = {query_id: {ids[i - 1]: 1} for i, query_id in enumerate(ids)}
    (finding,) = [one for one in preflight(run, qrels) if one.kind == "identical_ids"]
    assert (finding.count, finding.serious) == (40, False)
    assert "coincide" in finding.remedy
    for query_id in ids:
        run[query_id][query_id] = 50.0
    (finding,) = [one for one in preflight(run, qrels) if one.kind == "identical_ids"]
    assert finding.serious and "coincide" not in finding.remedy


def test_ranks_that_disagree_with_scores_are_serious_when_common():
    run, qrels = sound()
    finding = preflight(run, qrels, misranked=["q03"])[0]
    assert (finding.kind, finding.count, finding.sample, finding.serious) == ("misranked_queries", 1, ("q03",), False)
    assert preflight(run, qrels, misranked=["q03", "q04"])[0].serious
    assert "in 2 of 30 queries" in preflight(run, qrels, misranked=["q03", "q04"])[0].what


def test_results_in_several_places_are_a_note():
    run, qrels = sound()
    (finding,) = preflight(run, qrels, scattered=list(run))
    assert (finding.kind, finding.count, finding.serious) == ("scattered_queries", 30, False)


def test_negative_grades_and_queries_without_relevant_documents():
    assert preflight_qrels({"a": {"x": 1, "y": 0}}) == []
    negative, nothing_relevant = preflight_qrels(
        {"a": {"x": -1, "y": -2}, "b": {"x": 1, "y": -1}, "c": {"x": 0}, "d": {}}
    )
    assert (negative.kind, negative.count, negative.sample) == ("negative_grades", 3, ("a", "b"))
    assert (nothing_relevant.kind, nothing_relevant.count, nothing_relevant.sample) == (
        "nothing_relevant",
        3,
        ("a", "c", "d"),
    )
    assert not negative.serious and not nothing_relevant.serious


def test_missing_queries_that_are_the_last_of_another_run():
    run, qrels = sound()
    order = sorted(qrels, key=lambda query_id: query_id[::-1])
    for query_id in order[-3:]:
        del run[query_id]
    (finding,) = preflight(run, qrels)
    assert finding.kind == "missing_queries"
    assert recognise_truncation(finding, run.keys(), qrels, {}) == finding
    assert recognise_truncation(finding, run.keys(), qrels, {"other": list(qrels), "cut too": order[:-3]}) == finding
    cut = recognise_truncation(finding, run.keys(), qrels, {"other": list(qrels), "whole": ["unjudged", *order]})
    assert (cut.kind, cut.count, cut.serious) == ("truncated_run", 3, True)
    assert cut.what.endswith("they are the last of whole")
    assert recognise_truncation(finding, order[-3:], qrels, {"only these": order[-3:]}).kind == "missing_queries"


def test_documents_of_another_corpus():
    run, qrels = sound()
    other = {query_id: {f"MARCO_{docid}": value for docid, value in r.items()} for query_id, r in run.items()}
    finding = found(other, qrels)["no_judged_documents"]
    assert finding.serious
    assert "MARCO_d0-0" in finding.what
    assert "d0-0" in finding.what
    other["q05"]["d7-0"] = 0.1  # one shared id, even another query's, is enough
    assert "no_judged_documents" not in found(other, qrels)
