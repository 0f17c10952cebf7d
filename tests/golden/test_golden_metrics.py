"""Measures equal those of an independent program, with ties and missing queries."""

from __future__ import annotations

import pytest

from starbucks_retrieval.metrics.measures import parse_measures, remove_identical_ids, score, trec_order


@pytest.mark.parametrize(
    ("section", "measure", "drop_self"),
    [
        ("mrr10", "RR@10", False),
        ("mrr1", "RR@1", False),
        ("ndcg10_linear", "nDCG@10", False),
        ("ndcg10_linear_drop_self", "nDCG@10", True),
    ],
)
def test_golden_measures(golden, section, measure, drop_self):
    metrics = golden["metrics"]
    run = remove_identical_ids(metrics["run"]) if drop_self else metrics["run"]
    scores = score(metrics["qrels"], run, parse_measures(measure))
    assert scores.mean[measure] == pytest.approx(metrics[section]["mean"], abs=1e-9)
    assert scores.per_query[measure] == pytest.approx(metrics[section]["per_query"], abs=1e-9)


def test_golden_order(golden):
    metrics = golden["metrics"]
    assert {query_id: trec_order(ranking) for query_id, ranking in metrics["run"].items()} == metrics["trec_order"]
