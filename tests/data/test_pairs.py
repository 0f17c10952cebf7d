"""Scored pairs: formats, spellings, splits and subsets."""

import gzip
import json
import logging
import sys
import types

import pytest
from conftest import hub_builder

from starbucks_retrieval.data import ScoredPair, open_pairs, scan
from starbucks_retrieval.errors import UserError

QUOTED = ['"It\'s a black eye," said Sulzberger.', '5" x 3", he said: ""quote""']


@pytest.fixture
def write(tmp_path):
    def to(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return to


@pytest.fixture
def splits(write):
    lines = ["split\tscore\tsentence1\tsentence2", *(f"{s}\t{i}\ta{i}\tb{i}" for i, s in enumerate("tdtede"))]
    names = {"t": "train", "d": "dev", "e": "test"}
    return write("s.tsv", "".join(names.get(line[0], "s") + line[1:] + "\n" for line in lines))


@pytest.mark.parametrize(
    ("header", "subset"),
    [("split\tscore\tsentence1\tsentence2", "x"), ("subset\tscore\tsentence1\tsentence2", "x"), (None, "")],
)
def test_tsv(write, header, subset):
    cells = [*([subset] if header else []), "4.400", *QUOTED]
    path = write("p.tsv", f"{header}\n" * bool(header) + "\t".join(cells) + "\n")
    assert list(open_pairs(path)) == [ScoredPair(*QUOTED, 4.4, subset)]


def test_tsv_under_a_header_of_three(write):
    path = write("p.tsv", "sentence1\tsentence2\tscore\na\tb\t.5\n\nc\td\t1e0\r\n")
    pairs = open_pairs(path)
    assert list(pairs.numbered()) == [(2, ScoredPair("a", "b", 0.5, "")), (4, ScoredPair("c", "d", 1.0, ""))]
    assert list(pairs.rows(1)) == [ScoredPair("c", "d", 1.0, "")]


@pytest.mark.parametrize("score", ["score", "label", "similarity_score"])
@pytest.mark.parametrize("first, second", [("sentence1", "sentence2"), ("text1", "text2")])
def test_spellings(write, score, first, second):
    row = {score: 3, first: "a", second: None, "genre": "news", "year": 2012}
    assert list(open_pairs(write("p.jsonl", json.dumps(row)))) == [ScoredPair("a", "", 3.0, "")]
    tsv = write("p.tsv", f"{second}\t{first}\t{score}\nb\ta\t3\n")
    assert list(open_pairs(tsv)) == [ScoredPair("a", "b", 3.0, "")]


def test_gz_and_parquet_and_folders(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"score": i / 4, "sentence1": f"a{i}", "sentence2": QUOTED[0], "subset": "MSRpar"} for i in range(3)]
    wanted = [ScoredPair(f"a{i}", QUOTED[0], i / 4, "MSRpar") for i in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert list(open_pairs(str(tmp_path / "p.jsonl.gz"))) == wanted
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert list(open_pairs(str(tmp_path / "p.parquet"))) == wanted
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "pairs.jsonl").write_text(text)
    assert list(open_pairs(str(tmp_path / "folder"))) == wanted


def test_a_split_of_a_file(splits):
    assert [pair.sentence1 for pair in open_pairs(splits, split="train")] == ["a0", "a2"]
    assert list(open_pairs(splits, split="dev").numbered()) == [
        (3, ScoredPair("a1", "b1", 1.0, "dev")),
        (6, ScoredPair("a4", "b4", 4.0, "dev")),
    ]
    assert [pair.sentence1 for pair in open_pairs(splits, split="test").rows(1, 2)] == ["a5"]
    assert len(list(open_pairs(splits))) == 6


def test_a_split_that_is_not_there(splits):
    with pytest.raises(UserError, match=r"s\.tsv has no split 'validation'") as raised:
        list(open_pairs(splits, split="validation"))
    assert raised.value.hint == "name one of train, dev, test"


def test_a_file_without_a_split_column_is_of_every_split(write, caplog):
    path = write("p.tsv", "1\ta\tb\n2\tc\td\n")
    with caplog.at_level(logging.INFO):
        assert [pair.score for pair in open_pairs(path, split="test")] == [1.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 2 rows have no column split; they are read for split 'test'"
    ]


def test_subset_comes_before_split(write):
    row = {"split": "test", "subset": "MSRvid", "score": 1, "sentence1": "a", "sentence2": "b"}
    path = write("p.jsonl", json.dumps(row))
    assert [pair.subset for pair in open_pairs(path, split="test")] == ["MSRvid"]


def test_folders_and_hub_data_sets_have_splits_of_their_own(tmp_path, monkeypatch):
    import datasets

    datasets.disable_progress_bars()
    # Their column `split` is a column like any other: it does not choose among rows.
    row = {"score": 1.5, "sentence1": "a", "sentence2": "b", "split": "MSRpar"}
    table = datasets.Dataset.from_list([row, {**row, "split": "OnWN"}])
    datasets.DatasetDict(train=table.select([0]), test=table).save_to_disk(tmp_path / "both")
    wanted = [ScoredPair("a", "b", 1.5, "MSRpar"), ScoredPair("a", "b", 1.5, "OnWN")]
    assert list(open_pairs(str(tmp_path / "both"), split="test")) == wanted
    assert list(open_pairs(str(tmp_path / "both"))) == wanted[:1]
    table.save_to_disk(tmp_path / "one")
    assert list(open_pairs(str(tmp_path / "one"), split="OnWN")) == wanted[1:]

    module = types.ModuleType("datasets")
    module.load_dataset_builder = lambda name, config: hub_builder({"train": [], "test": [row]})
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert list(open_pairs("org/sts", split="test")) == wanted[:1]
    with pytest.raises(UserError, match="org/sts has no split 'dev'"):
        list(open_pairs("org/sts", split="dev"))


@pytest.mark.parametrize("name", ["ir:beir/scifact", "beir/scifact"])
def test_retrieval_sets_have_no_pairs(name):
    with pytest.raises(UserError, match=f"{name} has passages and queries, but no scored pairs"):
        open_pairs(name)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": "high", "sentence1": "a", "sentence2": "b"}, "score is 'high', not a number"),
        ({"score": "nan", "sentence1": "a", "sentence2": "b"}, "score is 'nan', not a number"),
        ({"score": "x" * 90, "sentence1": "a", "sentence2": "b"}, f"score is '{'x' * 40}…', not a number"),
        ({"score": "", "sentence1": "a", "sentence2": "b"}, "score is '', not a number"),
        ({"score": None, "sentence1": "a", "sentence2": "b"}, "score is null, not a number"),
        ({"score": float("nan"), "sentence1": "a", "sentence2": "b"}, "score is nan, not a finite number"),
        ({"score": float("inf"), "sentence1": "a", "sentence2": "b"}, "score is inf, not a finite number"),
        ({"sentence1": "a", "sentence2": "b"}, "no column score, label, similarity_score or relatedness_score"),
        ({"score": 1, "sentence2": "b"}, "no column sentence1, text1 or sentence_A"),
        ({"score": 1, "sentence1": "a", "sentence2": 2}, "sentence2, text2 or sentence_B is a number, not a string"),
        ({"score": 1, "sentence1": "a", "sentence2": "b", "subset": 1}, "subset is a number, not a string"),
    ],
)
def test_bad_rows_name_the_line(write, row, message):
    good = {"score": 1, "sentence1": "a", "sentence2": "b"}
    with pytest.raises(UserError, match=r"p\.jsonl:2: ") as raised:
        list(open_pairs(write("p.jsonl", f"{json.dumps(good)}\n{json.dumps(row)}\n")))
    assert message in raised.value.what
    assert raised.value.hint


def test_bad_tsv_lines(write):
    with pytest.raises(UserError, match=r"p\.tsv:2: score is '', not a number"):
        list(open_pairs(write("p.tsv", "1\ta\tb\n\ta\tb\n")))
    with pytest.raises(UserError, match=r"p\.tsv:1: 4 columns, wanted score<tab>sentence1<tab>sentence2"):
        list(open_pairs(write("p.tsv", "x\t1\ta\tb\n")))
    with pytest.raises(UserError, match="no such file"):
        open_pairs("nowhere/p.tsv")


def test_scan(write, caplog):
    text = "1.0\ta\tb\n1.0\ta\tb\n2\t \tb\n"  # a pair may come twice
    with caplog.at_level(logging.WARNING):
        found = scan(open_pairs(write("p.tsv", text)), "pairs")
    assert (found.count, found.empty, found.longest_id, found.ids_with_whitespace) == (3, 1, 0, 0)
    assert "1 of 3 pairs lack a sentence; they are kept" in caplog.text
    rows = [("1", "a", "b"), (1, "a", "b"), (2.0, " ", "b")]
    same = "".join(json.dumps(dict(zip(("score", "text1", "text2"), row))) + "\n" for row in rows)
    assert scan(open_pairs(write("p.jsonl", same)), "pairs").digest == found.digest
    for other in (text.replace("2", "3"), text.replace("a\tb", "b\ta", 1), text.replace("1.0\ta\tb\n", "", 1)):
        assert scan(open_pairs(write("o.tsv", other)), "pairs").digest != found.digest
    with pytest.raises(UserError, match=r"o\.tsv holds no pairs"):
        scan(open_pairs(write("o.tsv", "score\tsentence1\tsentence2\n")), "pairs")
