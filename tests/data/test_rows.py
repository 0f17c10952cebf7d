"""Rows in memory, as a Dataset or as dicts, wherever the name of a file is taken."""

from __future__ import annotations

import datasets
import pytest

from starbucks_retrieval.data import open_corpus, open_groups, open_pairs, open_queries, read_qrels
from starbucks_retrieval.data.documents import open_documents
from starbucks_retrieval.data.pairs import open_labelled
from starbucks_retrieval.data.records import count_records
from starbucks_retrieval.data.sources import as_path
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.fit import FitArguments
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.train import TrainArguments

GROUPS = [{"text": f"q{i}", "positive": f"p{i}", "negative": f"n{i}"} for i in range(5)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "make", [list, tuple, datasets.Dataset.from_list, iter], ids=["list", "tuple", "Dataset", "iter"]
)
def test_readers_take_rows(make):
    assert [group.query for group in open_groups(make(GROUPS))] == [f"q{i}" for i in range(5)]
    passages = [{"docid": 1, "text": "x", "metadata": {}}, {"docid": 2, "text": None, "metadata": {}}]
    assert [p.text for p in open_corpus(make(passages))] == ["x", ""]
    assert list(open_documents(make(passages[:1]))) == ["x"]
    assert [q.query_id for q in open_queries(make([{"qid": "a", "text": "x"}]))] == ["a"]
    assert [p.score for p in open_pairs(make([{"sentence1": "a", "sentence2": "b", "score": 0.5}]))] == [0.5]
    assert [t.label for t in open_labelled(make([{"text": "a", "label": 3}]))] == ["3"]
    assert read_qrels(make([{"query-id": "q", "corpus-id": "d", "score": 2}])) == {"q": {"d": 2}}


def test_equal_rows_have_one_file_and_a_selection_of_a_data_set_another(tmp_path):
    whole = datasets.Dataset.from_list(GROUPS)
    path = as_path(whole)
    assert as_path(datasets.Dataset.from_list(GROUPS)) == path and as_path(path) == path
    part = as_path(whole.select([3, 1]))
    assert [group.query for group in open_groups(part)] == ["q3", "q1"]
    assert count_records(open_groups(path)) == (5, True)
    assert as_path(GROUPS) == as_path(tuple(GROUPS))
    assert len(list((tmp_path / "cache" / "rows").iterdir())) == 3
    assert as_path(tmp_path) == str(tmp_path)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "the list of rows is empty"),
        (datasets.Dataset.from_list([]), "the data set has no rows"),
        ([{"text": "a"}, "b"], "row 2 is of type str, not a dict"),
        ([{"text": object()}], "row 1 cannot be written as JSON"),
        ({"train": GROUPS}, "a mapping with the keys train is no list of rows"),
        (datasets.DatasetDict(train=datasets.Dataset.from_list(GROUPS)), "a mapping with the keys train"),
        (7, "int is neither a name nor rows"),
    ],
)
def test_what_is_no_list_of_rows(rows, problem, tmp_path):
    with pytest.raises(UserError, match=problem):
        open_groups(rows)
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_arguments_of_functions_take_rows():
    data = datasets.Dataset.from_list(GROUPS)
    path = as_path(data)
    assert TrainArguments("m", dataset_path=data).collections == [path]
    assert TrainArguments("m", dataset_path=[data, "more.jsonl"]).collections == [path, "more.jsonl"]
    assert TrainArguments("m", dataset_path=GROUPS).collections == [as_path(GROUPS)]
    assert TrainArguments("m", dataset_path=["a", "b"], corpus_path=GROUPS).corpus_path == as_path(GROUPS)
    assert EncodeArguments("m", "e", dataset_path=data).collection == path
    assert EncodeArguments("m", "e", corpus_path=GROUPS).collection == as_path(GROUPS)
    assert FitArguments("m", "o", dataset_path=data, query_path=[data]).query_path == [path]
    assert MineArguments(dataset_path=GROUPS, corpus_path=data, output_path="o.jsonl", bm25=True).corpus_path == path
    with pytest.raises(UserError, match="corpus_path has 2 collections"):
        EncodeArguments("m", "e", corpus_path=[data, data])
