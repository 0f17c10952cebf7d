"""Training groups in every layout."""

import gzip
import json
import logging

import pytest

from starbucks_retrieval.data import Group, Passage, open_groups
from starbucks_retrieval.data.groups import text_id
from starbucks_retrieval.errors import UserError


@pytest.fixture
def groups(tmp_path):
    def write(*rows, name="train.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return open_groups(str(tmp_path / name))

    return write


INLINE = {
    "query_id": 7,
    "query": "what is crema",
    "positive_passages": [{"docid": "p", "title": "Crema", "text": "foam"}],
    "negative_passages": [{"docid": 1, "text": "milk"}, {"docid": "n", "title": None, "text": "water"}],
}
INLINE_GROUP = Group(
    "7",
    "what is crema",
    ("p",),
    ("1", "n"),
    {"p": Passage("p", "Crema", "foam"), "1": Passage("1", "", "milk"), "n": Passage("n", "", "water")},
)


def test_tevatron_rows_with_texts(groups):
    assert list(groups(INLINE, INLINE)) == [INLINE_GROUP, INLINE_GROUP]


def test_tevatron_rows_from_parquet_and_gz(tmp_path):
    import pyarrow
    import pyarrow.parquet

    row = json.loads(json.dumps(INLINE))
    row["negative_passages"][0]["docid"] = "1"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t.parquet")
    assert list(open_groups(str(tmp_path / "t.parquet"))) == [INLINE_GROUP]
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(json.dumps(INLINE).encode()))
    assert list(open_groups(str(tmp_path / "t.jsonl.gz"))) == [INLINE_GROUP]


@pytest.mark.parametrize("spelling", ["query", "query_text"])
def test_tevatron_rows_with_ids(groups, spelling):
    row = {"query_id": "q", spelling: "t", "positive_document_ids": ["a", 2], "negative_document_ids": [3, "b", 3]}
    assert list(groups(row)) == [Group("q", "t", ("a", "2"), ("3", "b"), None)]


def test_triples_tsv(tmp_path):
    (tmp_path / "triples.tsv").write_text("q one\tpos\tneg\nq one\tpos\tother\n")
    first, second = open_groups(str(tmp_path / "triples.tsv"))
    assert first == Group(
        text_id("q one"),
        "q one",
        (text_id("pos"),),
        (text_id("neg"),),
        {text_id("pos"): Passage(text_id("pos"), "", "pos"), text_id("neg"): Passage(text_id("neg"), "", "neg")},
    )
    assert (second.query_id, second.positive_ids) == (first.query_id, first.positive_ids)
    assert second.negative_ids != first.negative_ids


def test_pairs(groups):
    only, several, triple = groups(
        {"query": "q", "positive": "p"},
        {"anchor": "q", "positive": ["p", "p2", "p"], "negative": ["n", "p"]},
        {"query_id": "own", "anchor": "q", "positive": "p", "negative": "n"},
    )
    assert (only.query_id, only.positive_ids, only.negative_ids) == (text_id("q"), (text_id("p"),), ())
    assert several.positive_ids == (text_id("p"), text_id("p2"))
    assert several.negative_ids == (text_id("n"),)  # what is a positive too is no negative
    assert set(several.passages) == {text_id("p"), text_id("p2"), text_id("n")}
    assert triple.query_id == "own"


@pytest.mark.parametrize("name", ["question", "text", "sentence1", "text1", "query_text", "anchor", "query"])
def test_rows_of_sentence_transformers_and_angle(groups, name):
    """Their columns: a query under one of many names, a positive, negatives in one column or in one each."""
    one, many = groups(
        {name: "q", "positive": "p", "negative": "n"},
        {name: "q", "positive": "p", "negative_2": "n2", "negative_10": "n10", "negative_1": "n1", "negative_3": ""},
    )
    assert (one.query, one.positive_ids, one.negative_ids) == ("q", (text_id("p"),), (text_id("n"),))
    assert many.negative_ids == (text_id("n1"), text_id("n2"), text_id("n10"))


def test_of_several_columns_that_could_be_the_query_the_plainest_is_it(groups):
    named, equal, null = groups(
        {"query": "q", "text": "other", "positive": "p"},
        {"query": "q", "anchor": "q", "positive": "p"},
        {"query": None, "anchor": None, "text": "q", "positive": "p", "negative": None, "negative_1": None},
    )
    assert [group.query for group in (named, equal, null)] == ["q", "q", "q"]
    assert null.negative_ids == ()


def test_the_positive_of_questions_and_answers(groups):
    rows = groups({"question": "q", "answer": "a"}, {"query": "q", "answer": "short", "positive": "p"})
    assert [group.positive_ids for group in rows] == [(text_id("a"),), (text_id("p"),)]


def test_columns_that_are_empty_in_a_row_are_not_its_positives(groups):
    """A table of mixed rows has all columns in each."""
    text, ids = groups(
        {"positive_passages": None, "positive_document_ids": [], "query": "q", "positive": "p"},
        {"positive_passages": None, "positive_document_ids": ["d"], "query": "q", "query_id": 1, "positive": None},
    )
    assert text.positive_ids == (text_id("p"),) and ids.positive_ids == ("d",)
    with pytest.raises(UserError, match="columns positive_document_ids and positive are filled, and each could hold"):
        list(groups({"positive_document_ids": ["d"], "query": "q", "query_id": 1, "positive": "p"}))


def test_a_header_may_number_its_negatives(tmp_path):
    (tmp_path / "t.tsv").write_text("anchor\tpositive\tnegative_1\tnegative_2\nq\tp\tn1\tn2\n")
    (group,) = open_groups(str(tmp_path / "t.tsv"))
    assert (group.query, group.negative_ids) == ("q", (text_id("n1"), text_id("n2")))


def test_scores_stand_in_the_order_of_numbered_negatives(groups):
    row = {"query": "q", "positive": "p", "negative_2": "b", "negative_1": "a"}
    (group,) = groups({**row, "positive_scores": 9, "negative_scores": [1, 2]})
    assert group.scores == {text_id("p"): 9.0, text_id("a"): 1.0, text_id("b"): 2.0}


def test_a_row_of_no_layout_is_sent_to_the_page_that_shows_them(groups):
    with pytest.raises(UserError) as raised:
        list(groups({"sentence1": "a", "sentence2": "b", "score": 1.0}))
    assert "docs/howto/data.md" in raised.value.hint and "--task sts" in raised.value.hint


def test_a_passage_on_both_sides_is_a_positive(groups):
    row = {"query_id": 1, "query": "q", "positive_document_ids": ["a"], "negative_document_ids": ["a", "b"]}
    assert next(iter(groups(row))).negative_ids == ("b",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query_id": 1, "query": "q", "positive_passages": []}, "the row has no positives"),
        ({"query_id": 1, "query": "q", "positive_document_ids": None}, "the row has no positives"),
        ({"query": "q", "positive": []}, "the row has no positives"),
        ({"query": "q", "reply": "p"}, "no column positive_passages or positive_document_ids or positive"),
        ({"query": "q", "positive_document_ids": ["a"]}, "no column query_id, _id or qid"),
        ({"query_id": 1, "positive_document_ids": ["a"]}, "no column query, text or query_text"),
        ({"title": "q", "positive": "p"}, "no column query, anchor, question, text, sentence1, text1 or query_text"),
        ({"query": "q", "anchor": "a", "positive": "p"}, "the columns query and anchor differ"),
        ({"text": "q", "sentence1": "a", "positive": "p"}, "the columns text and sentence1 differ"),
        ({"text": 5, "positive": "p"}, "text is a number, not a string"),
        ({"text": "q", "positive": "p", "negative_1": 5}, "negative_1 is a number, not a list"),
        ({"query": "q", "positive": [["p"]]}, "positive holds a list, not a text"),
        ({"query": "q", "positive": "p", "negative": 5}, "negative is a number, not a list"),
        ({"query_id": 1, "query": "q", "positive_passages": ["p"]}, "positive_passages holds a string, not a passage"),
        ({"query_id": 1, "query": "q", "positive_passages": {"docid": ["p"]}}, "is a mapping, not a list"),
        ({"query_id": 1, "query": "q", "positive_passages": [{"docid": "p"}]}, "no column text or contents"),
        ({"query_id": 1, "query": "q", "positive_document_ids": ["a", 1.5]}, "positive_document_ids is a number"),
        (
            {**INLINE, "negative_passages": [{"docid": "p", "title": "Crema", "text": "another"}]},
            "the id 'p' has two different texts",
        ),
    ],
)
def test_bad_rows_name_the_line(groups, row, message):
    with pytest.raises(UserError, match=r"train\.jsonl:2: ") as raised:
        list(groups(INLINE, row))
    assert message in raised.value.what
    assert raised.value.hint


def test_bad_triples(tmp_path):
    (tmp_path / "t.tsv").write_text("q\tp\tn\nq\tp\n")
    with pytest.raises(UserError, match=r"t\.tsv:2: 2 columns, wanted query<tab>positive<tab>negative"):
        list(open_groups(str(tmp_path / "t.tsv")))


@pytest.fixture
def beir(tmp_path):
    queries = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(5)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq3\tb\t1\nq3\ta\t2\nq3\tc\t0\nq1\ta\t0\nq0\tz\t1\n"
    )
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq4\tb\t1\n")
    return tmp_path


def test_beir_folder(beir, caplog):
    with caplog.at_level(logging.WARNING):
        records = open_groups(str(beir))
    assert list(records) == [
        Group("q0", "question 0", ("z",), (), None),
        Group("q3", "question 3", ("a", "b"), ("c",), None),
    ]
    assert list(records.rows(1)) == [Group("q3", "question 3", ("a", "b"), ("c",), None)]
    assert [record.getMessage() for record in caplog.records] == [f"{beir}: 1 of 3 queries have no positive; skipped"]
    assert [group.query_id for group in open_groups(str(beir), split="dev")] == ["q4"]


def test_beir_folder_with_a_judgement_of_an_unknown_query(beir):
    with open(beir / "qrels" / "train.tsv", "a") as handle:
        handle.write("q99\ta\t1\n")
    with pytest.raises(UserError, match=r"\(train\) judges 1 query not among the queries, the first is 'q99'"):
        open_groups(str(beir))


def test_beir_folder_without_positives(beir):
    (beir / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta\t0\n")
    with pytest.raises(UserError, match="has no grade above 0"):
        open_groups(str(beir))


def test_beir_folder_with_a_query_twice(beir):
    with open(beir / "queries.jsonl", "a") as handle:
        handle.write('{"_id": "q3", "text": "again"}\n')
    with pytest.raises(UserError, match=r"queries\.jsonl:6: the id 'q3' occurs a second time, first at line 4"):
        open_groups(str(beir))
