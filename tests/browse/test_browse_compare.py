"""What a run gained and lost against the first."""

from __future__ import annotations

from starbucks_retrieval.browse import compare_runs
from starbucks_retrieval.browse.compare import summarize_runs

FIRST = {"q": {"a": 9.0, "b": 8.0, "c": 7.0, "d": 6.0}}
SECOND = {"q": {"d": 9.0, "a": 8.0, "e": 7.0}}
QRELS = {"q": {"a": 1, "b": 2, "d": 3, "e": 1, "z": 2, "y": 1, "n": 0}}


def test_gains_losses_and_moves_within_the_depth():
    (query,) = compare_runs([FIRST, SECOND], ["q"], QRELS, [{"q": 0.5}, {"q": 0.75}], depth=2)
    first, second = query.results
    assert [hit.docid for hit in first.hits] == ["a", "b"]
    assert [(hit.docid, hit.rank, hit.before, hit.grade) for hit in second.hits] == [("d", 1, 4, 3), ("a", 2, 1, 1)]
    assert (first.gained, first.lost, first.change, first.relevant) == (0, [], 0.0, 2)
    assert (second.gained, second.change, second.shared, second.relevant) == (1, 0.25, 1, 2)
    assert [(hit.docid, hit.before, hit.rank) for hit in second.lost] == [("b", 2, None)]
    assert query.relevant == 6
    assert [row[0].docid for row in query.missed] == ["z", "e", "y"]  # by grade, then as judged
    assert [hit.rank for hit in query.missed[1]] == [None, 3]
    assert query.docids == {"a", "b", "d", "z", "e", "y"}


def test_the_grade_from_which_a_passage_is_relevant():
    (query,) = compare_runs([FIRST, SECOND], ["q"], QRELS, None, depth=2, relevance=3)
    assert (query.relevant, query.results[1].gained, query.results[1].lost) == (1, 1, [])


def test_a_query_that_a_run_lacks_and_none_judged():
    queries = compare_runs([FIRST, {}], ["q", "other"], None)
    assert [len(result.hits) for query in queries for result in query.results] == [4, 0, 0, 0]
    assert queries[0].results[1].value is None and queries[0].missed == []


def test_ties_are_put_in_order_as_measures_do():
    (query,) = compare_runs([{"q": {"a": 1.0, "b": 1.0}}], ["q"])
    assert [hit.docid for hit in query.results[0].hits] == ["b", "a"]


def test_summaries_count_queries_and_passages():
    qrels = {"p": {"x": 1}, "q": {"a": 1, "e": 1}}
    runs = [{"p": {"x": 1.0}, "q": {"a": 1.0}}, {"p": {"w": 1.0}, "q": {"e": 1.0, "a": 0.5}}]
    values = [{"p": 1.0, "q": 0.5}, {"p": 0.0, "q": 0.75}]
    first, second = summarize_runs(compare_runs(runs, ["p", "q"], qrels, values), 2)
    assert (first.mean, first.better, first.worse, first.relevant) == (0.75, 0, 0, 2)
    assert (second.mean, second.better, second.worse, second.relevant) == (0.375, 1, 1, 2)
    assert (second.gained, second.lost, second.changes, second.values) == (1, 1, [0.25, -1.0], [0.75, 0.0])
