"""Candidates from a run."""

from __future__ import annotations

import logging
import math

import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.data import read_run
from starbucks_retrieval.mine.candidates import candidates_from_run

from .conftest import id_row, opened, write_jsonl


@pytest.fixture
def collection(tmp_path):
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"_id": f"d{i}", "text": f"text {i}"} for i in range(12)])
    groups = [id_row("1", ["d1", "d2"]), id_row("2", ["d0"])]
    topics, _, docids = opened(write_jsonl(tmp_path / "g.jsonl", groups), corpus)
    return topics, docids


def run_of(tmp_path, *lines):
    path = tmp_path / "run.trec"
    path.write_text("".join(f"{query} Q0 {docid} 1 {score} tag\n" for query, docid, score in lines))
    return read_run(path)


def test_order_is_by_score_then_docid_whatever_the_ranks(tmp_path, collection, caplog):
    lines = [("1", "d9", 1), ("1", "d1", 2.5), ("1", "d10", 1), ("1", "elsewhere", 3), ("1", "d3", 1), ("x", "d3", 1)]
    with caplog.at_level(logging.WARNING, "starbucks_retrieval"):
        found = candidates_from_run(run_of(tmp_path, *lines), *collection, 3)
    assert found.rows.tolist() == [[1, 9, 3], [-1, -1, -1]]
    assert found.scores[0].tolist() == [2.5, 1, 1]
    assert found.positive_scores[0] == 2.5
    assert all(map(math.isnan, found.positive_scores[1:]))
    assert "1 results of the run are of documents" in caplog.text and "nothing for 1 of 2 queries" in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [(("1", "d1", "nan"), "not finite"), (("1", "y", 1), "no document"), (("x", "d1", 1), "no doc")],
)
def test_a_run_that_cannot_be_used_is_refused(tmp_path, collection, line, message):
    with pytest.raises(UserError, match=message):
        candidates_from_run(run_of(tmp_path, line), *collection, 3)
