"""Queries: formats, spellings, and the split of a BEIR folder."""

import json

import pytest

from starbucks_retrieval.data import Query, open_queries
from starbucks_retrieval.errors import UserError


@pytest.fixture
def beir(tmp_path):
    rows = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(6)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td\t1\nq1\td\t0\n")
    return str(tmp_path)


@pytest.mark.parametrize("query_id", ["query_id", "_id", "qid"])
@pytest.mark.parametrize("text", ["query", "text", "query_text"])
def test_spellings(tmp_path, query_id, text):
    (tmp_path / "q.jsonl").write_text(json.dumps({query_id: 3, text: "why?"}))
    assert list(open_queries(str(tmp_path / "q.jsonl"))) == [Query("3", "why?")]


def test_tsv(tmp_path):
    (tmp_path / "topics.txt").write_text("q 1\twhy?\n☕\tكيف\n", encoding="utf-8")
    assert list(open_queries(str(tmp_path / "topics.txt"))) == [Query("q 1", "why?"), Query("☕", "كيف")]
    (tmp_path / "topics.txt").write_text("query_id\tquery\n1\twhy?\n")
    assert list(open_queries(str(tmp_path / "topics.txt"))) == [Query("1", "why?")]
    (tmp_path / "topics.txt").write_text("1\twhy?\n2\tand\thow?\n")
    with pytest.raises(UserError, match=r"topics\.txt:2: 3 columns, wanted query_id<tab>query"):
        list(open_queries(str(tmp_path / "topics.txt")))


def test_wrong_columns(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"qid": 1, "question": "why?"}')
    with pytest.raises(UserError, match=r"q\.jsonl:1: no column query, text or query_text: the row has qid, question"):
        list(open_queries(str(tmp_path / "q.jsonl")))


def test_beir_folder_gives_all_queries_or_those_of_a_split(beir):
    assert [q.query_id for q in open_queries(beir)] == [f"q{i}" for i in range(6)]
    judged = open_queries(beir, split="test")
    assert list(judged) == [Query("q1", "question 1"), Query("q4", "question 4")]
    assert list(judged.rows(1, 9)) == [Query("q4", "question 4")]
    assert [number for number, _ in judged.numbered()] == [2, 5]


def test_beir_folder_without_that_split(beir):
    with pytest.raises(UserError, match=r"holds no qrels/train\.tsv") as raised:
        open_queries(beir, split="train")
    assert "test" in raised.value.hint


def test_a_row_without_id_is_an_error_in_a_split_too(tmp_path, beir):
    with open(tmp_path / "queries.jsonl", "a") as handle:
        handle.write('{"text": "nameless"}\n')
    with pytest.raises(UserError, match=r"queries\.jsonl:7: no column query_id, _id or qid"):
        list(open_queries(beir, split="test"))
