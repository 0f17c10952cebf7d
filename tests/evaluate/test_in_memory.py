"""evaluate_run: runs and judgements in memory have the figures of files."""

import logging

import pytest
import torch

from starbucks_retrieval import UserError, evaluate_run
from starbucks_retrieval.evaluate import EvaluateArguments, evaluate
from starbucks_retrieval.search import Hit

RUN = {"1": {"10": 0.5, "11": 0.9, "12": 0.1}, "2": {"11": 2.0, "10": 1.5}, "4": {"9": 1.0}}
QRELS = {"1": {"10": 2, "12": 1}, "2": {"10": 1}, "3": {"9": 1}}


@pytest.fixture
def files(tmp_path):
    run, qrels = tmp_path / "run.trec", tmp_path / "qrels.txt"
    lines = [(q, d, s) for q, line in RUN.items() for d, s in sorted(line.items(), key=lambda pair: -pair[1])]
    run.write_text("".join(f"{q} Q0 {d} 1 {s} tag\n" for q, d, s in lines))
    qrels.write_text("".join(f"{q} 0 {d} {g}\n" for q, line in QRELS.items() for d, g in line.items()))
    return run, qrels


def test_the_figures_of_files(files):
    [result] = evaluate(EvaluateArguments(*files, measures="nDCG@10 RR@10 R@1000")).runs
    for run in (RUN, files[0], str(files[0])):
        for qrels in (QRELS, files[1], str(files[1])):
            found = evaluate_run(run, qrels, ["nDCG@10", "RR@10", "R@1000"])
            assert (found.mean, found.per_query) == (result.scores.mean, result.scores.per_query)
    assert evaluate_run(RUN, QRELS).mean.keys() == {"RR@10", "nDCG@10", "R@1000"}
    assert repr(evaluate_run(RUN, QRELS, "RR@10")) == "Scores(RR@10 0.3333; queries: 3)"


def test_ids_may_be_numbers_and_values_other_types():
    run = {int(q): {int(d): torch.tensor(s) for d, s in line.items()} for q, line in RUN.items()}
    qrels = {int(q): {int(d): float(g) for d, g in line.items()} for q, line in QRELS.items()}
    assert evaluate_run(run, qrels).mean == evaluate_run(RUN, QRELS).mean


def test_rankings_and_relevant_ids_without_numbers():
    run = {"1": ["11", "10", "12"], "2": ["11", "10"]}
    qrels = {"1": {"10", "12"}, "2": ["10"], "3": ("9",)}
    binary = {"1": {"10": 1, "12": 1}, "2": {"10": 1}, "3": {"9": 1}}
    assert evaluate_run(run, qrels).per_query == evaluate_run(RUN, binary).per_query


def test_findings_are_logged(caplog):
    with caplog.at_level(logging.WARNING):
        evaluate_run(RUN, QRELS)
    assert "1 of 3 judged queries have no results" in caplog.text


@pytest.mark.parametrize(
    ("run", "qrels", "message", "hint"),
    [
        ({"q": {"d": 1}}, QRELS, "share no query .*'q' and '1'", "judgements of the queries"),
        ([1, 2], QRELS, "run is a list, not a dictionary or a file", "query id"),
        (RUN, None, "qrels is a NoneType", "query id"),
        ({"1": 5}, QRELS, "the run of query '1' cannot be read: 5", "passage ids alone"),
        ({"1": "10"}, QRELS, "the run of query '1' cannot be read: 10", "passage ids alone"),
        ({"1": {"10": None}}, QRELS, "the run of query '1' cannot be read", "passage ids alone"),
        (RUN, {"1": {"10": 0.5}}, "the judgements of query '1' cannot be read", "passage ids alone"),
    ],
)
def test_bad_input(run, qrels, message, hint):
    with pytest.raises(UserError, match=message) as refused:
        evaluate_run(run, qrels)
    assert hint in refused.value.hint


def test_unknown_measures_and_dictionaries_for_evaluate(files):
    with pytest.raises(UserError, match="unknown measure"):
        evaluate_run(RUN, QRELS, "nDGC@10")
    for arguments in ((RUN, files[1]), (files[0], QRELS)):
        with pytest.raises(UserError, match="takes files, not dictionaries") as refused:
            EvaluateArguments(*arguments)
        assert "evaluate_run" in refused.value.hint
    with pytest.raises(UserError, match="takes EvaluateArguments, not a str"):
        evaluate(str(files[0]))


def test_hits_of_a_searcher():
    hits = {"q1": [Hit("d2", 0.5, "", ""), Hit("d1", 0.4, "", "")], "q2": []}
    scores = evaluate_run(hits, {"q1": ["d1"], "q2": ["d1"]}, "RR@10")
    assert scores.per_query["RR@10"] == {"q1": 0.5, "q2": 0.0}
