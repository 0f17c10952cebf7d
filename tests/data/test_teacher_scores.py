"""A teacher's scores in training rows: all layouts, and malformed rows."""

import json

import pytest

from starbucks_retrieval.data import open_groups, scan
from starbucks_retrieval.data.groups import text_id
from starbucks_retrieval.errors import UserError

IDS = {"query_id": 1, "query": "q", "positive_document_ids": ["p"], "negative_document_ids": ["m", "n"]}
SCORED = {**IDS, "positive_scores": [9.5], "negative_scores": [-3, 2e-1]}


@pytest.fixture
def groups(tmp_path):
    def write(*rows, name="scored.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return open_groups(str(tmp_path / name))

    return write


def scores_of(records):
    return [group.scores for group in records]


def test_rows_with_ids(groups):
    found = scores_of(groups(SCORED, IDS, {**IDS, "positive_scores": None, "negative_scores": None}))
    assert found == [{"p": 9.5, "m": -3.0, "n": 0.2}, None, None]
    assert list(found[0]) == ["p", "m", "n"]
    assert all(type(score) is float for score in found[0].values())


def test_rows_with_passages(groups):
    row = {
        "query_id": 1,
        "query": "q",
        "positive_passages": [{"docid": 1, "text": "a"}, {"docid": "p", "text": "b"}],
        "negative_passages": [{"docid": "n", "text": "c"}],
        "positive_scores": [4, 5],
        "negative_scores": [0.5],
    }
    assert scores_of(groups(row)) == [{"1": 4.0, "p": 5.0, "n": 0.5}]


def test_rows_with_texts(groups):
    p, o, n = map(text_id, "pon")
    found = groups(
        {"query": "q", "positive": "p", "negative": "n", "positive_scores": 3, "negative_scores": 1.5},
        {"query": "q", "positive": "p", "negative": ["n", "o"], "positive_scores": [3], "negative_scores": [1, 2]},
        {"query": "q", "positive": "p", "positive_scores": 3},
        {"query": "q", "positive": "p", "negative": [], "positive_scores": [3], "negative_scores": []},
    )
    assert scores_of(found) == [{p: 3.0, n: 1.5}, {p: 3.0, n: 1.0, o: 2.0}, {p: 3.0}, {p: 3.0}]


def test_a_tsv_file_under_a_header(tmp_path):
    (tmp_path / "t.tsv").write_text("query\tpositive\tnegative\tpositive_scores\tnegative_scores\nq\tp\tn\t1e1\t-.5\n")
    assert scores_of(open_groups(str(tmp_path / "t.tsv"))) == [{text_id("p"): 10.0, text_id("n"): -0.5}]


@pytest.mark.parametrize("width", ["float64", "float32", "int32"])
def test_tables_keep_them_though_they_look_like_vectors(tmp_path, width):
    import datasets
    import pyarrow
    import pyarrow.parquet

    scores = pyarrow.list_(getattr(pyarrow, width)())
    table = pyarrow.table(
        {
            "query_id": ["1", "2"],
            "query": ["q", "r"],
            "positive_document_ids": [["p"], ["p"]],
            "negative_document_ids": [["m", "n"], []],
            "positive_scores": pyarrow.array([[9], None], scores),
            "negative_scores": pyarrow.array([[-3, 2], None], scores),
        }
    )
    wanted = [{"p": 9.0, "m": -3.0, "n": 2.0}, None]
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert scores_of(open_groups(str(tmp_path / "t.parquet"))) == wanted
    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    assert scores_of(open_groups(str(tmp_path / "saved"))) == wanted


def test_ids_listed_more_than_once(groups):
    row = {
        **IDS,
        "positive_document_ids": ["p", "o", "p"],
        "negative_document_ids": ["n", "p", "n"],
        "positive_scores": [1, 2, 1.0],
        "negative_scores": [3, 7, 3],
    }
    (group,) = groups(row)
    assert group.negative_ids == ("n",)
    assert group.scores == {"p": 1.0, "o": 2.0, "n": 3.0}  # the 7 was p's score as a negative, which it is not


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positive_scores": [1, 2]}, "positive_scores has 2 scores for 1 passage"),
        ({"negative_scores": [1]}, "negative_scores has 1 score for 2 passages"),
        ({"negative_scores": 1}, "negative_scores has 1 score for 2 passages"),
        ({"positive_scores": []}, "positive_scores has 0 scores for 1 passage"),
        ({"negative_document_ids": []}, "negative_scores has 2 scores for 0 passages"),
        ({"positive_scores": None}, "the row has negative_scores but no positive_scores"),
        ({"negative_scores": None}, "the row has positive_scores but no negative_scores"),
        ({"positive_scores": ["high"]}, "positive_scores is 'high', not a number"),
        ({"positive_scores": ["1_0"]}, "positive_scores is '1_0', not a number"),
        ({"positive_scores": [None]}, "positive_scores is null, not a number"),
        ({"positive_scores": [True]}, "positive_scores is a boolean, not a number"),
        ({"positive_scores": [[1]]}, "positive_scores is a list, not a number"),
        ({"positive_scores": {"p": 1}}, "positive_scores is a mapping, not a list"),
        ({"negative_scores": [1, float("nan")]}, "negative_scores is nan, not a finite number"),
        ({"negative_scores": [1, float("-inf")]}, "negative_scores is -inf, not a finite number"),
        ({"negative_scores": [1, 10**400]}, "negative_scores is inf, not a finite number"),
        ({"negative_scores": [1, "1e999"]}, "negative_scores is inf, not a finite number"),
        ({"negative_document_ids": ["n", "n"]}, "negative_scores has -3.0 and 0.2 for one passage, 'n'"),
    ],
)
def test_bad_scores_name_the_line(groups, changes, message):
    with pytest.raises(UserError, match=r"scored\.jsonl:2: ") as raised:
        list(groups(SCORED, {**SCORED, **changes}))
    assert message in raised.value.what
    assert raised.value.hint


def test_a_missing_column_is_a_side_left_out(groups):
    row = dict(SCORED)
    del row["negative_scores"]
    with pytest.raises(UserError, match="the row has positive_scores but no negative_scores") as raised:
        list(groups(row))
    assert raised.value.hint == "score both sides, or neither"


def test_judgements_are_no_teacher(tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "why"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t2\nq\tb\t0\n")
    assert scores_of(open_groups(str(tmp_path))) == [None]


def test_the_digest_covers_them(groups):
    plain = scan(groups(IDS), "groups")
    scored = scan(groups(SCORED), "groups")
    swapped = scan(groups({**SCORED, "negative_scores": [0.2, -3]}), "groups")
    assert len({plain.digest, scored.digest, swapped.digest}) == 3
    assert (plain.count, scored.count) == (1, 1)
    same = {**SCORED, "positive_scores": ["9.5"], "negative_scores": [-3.0, 0.2]}
    assert scan(groups(same), "groups").digest == scored.digest
    # Rows without scores keep the digest they had before rows could have any.
    assert plain.digest == "d6bdad9d9062adf58885e6df838a3315"
