"""Which pairs a name, a file and a split stand for."""

import sys
import types

import pytest
from conftest import hub_builder

from starbucks_retrieval.data.pairs import open_split_of_pairs
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sentences.tasks import SETS, open_pair_sets


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def to(name, column, values):
        rows = [f"{value}\t{i}\ta{i}\tb{i}" for i, value in enumerate(values)]
        (tmp_path / name).write_text("\n".join([f"{column}\tscore\tsentence1\tsentence2", *rows]) + "\n")
        return name

    return to


def scores(collection, split=None):
    return [pair.score for pair in open_split_of_pairs(collection, split)]


def test_a_column_that_names_splits_chooses_and_one_that_names_subsets_does_not(write):
    splits = write("a.tsv", "split", ["train", "test", "dev", "test"])
    subsets = write("b.tsv", "split", ["MSRpar", "OnWN", "MSRpar"])
    assert scores(splits) == [1, 3]
    assert scores(splits, "dev") == [2]
    assert scores(subsets) == scores(subsets, "test") == [0, 1, 2]
    assert scores(subsets, "MSRpar") == [0, 2]
    with pytest.raises(UserError, match=r"b\.tsv has no split 'OnWM'") as raised:
        scores(subsets, "OnWM")
    assert raised.value.hint == "name one of MSRpar, OnWN"
    with pytest.raises(UserError, match=r"a\.tsv has no split 'validation'"):
        scores(splits, "validation")
    assert scores(write("c.tsv", "subset", ["x", "y", "z"]), "test") == [0, 1, 2]


def test_names_of_the_papers_whatever_their_spelling(write):
    write("stsb.tsv", "split", ["test"] * 3)
    write("STS12.tsv.txt", "subset", ["x"] * 3)
    write("my-own.tsv", "subset", ["x"] * 3)
    sets = open_pair_sets(["stsb.tsv", "STS12.tsv.txt", "my-own.tsv", "again=my-own.tsv", "sickr=my-own.tsv"])
    assert [one.name for one in sets] == ["STS-B", "STS12", "my-own", "again", "SICK-R"]
    assert sets[0].numbers == [2, 3, 4] and sets[0].scores.tolist() == [0, 1, 2]
    assert sets[2].digest == sets[3].digest == sets[0].digest


def test_sentevals_sick_is_another_set_than_mtebs(tmp_path, monkeypatch, caplog):
    """SentEval's file has 4,927 test pairs; the hub's SICK-R has all 9,927."""
    monkeypatch.chdir(tmp_path)
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    lines = [f"{i}\tthis is {i}\tthat is {i}\t{1 + i % 5}\tNEUTRAL\n" for i in range(4927)]
    (tmp_path / "SICK_test_annotated.txt").write_text(head + "".join(lines))
    for word in ("SICK_test_annotated.txt", "SICK-R-test=SICK_test_annotated.txt", "SICK-R=SICK_test_annotated.txt"):
        [one] = open_pair_sets([word])
        assert one.name == "SICK-R-test" and len(one.numbers) == 4927 and one.sentences[1][1] == "that is 1"
    assert "tables call it SICK-R-test" in caplog.text
    (tmp_path / "sickr.tsv").write_text(head + "".join(lines[:100]))
    assert open_pair_sets(["sickr.tsv"])[0].name == "SICK-R"
    with pytest.raises(UserError, match="4,927 test pairs, is on no hub") as caught:
        open_pair_sets(["SICK-R-test"])
    assert "SICK_test_annotated.txt" in caught.value.hint


def test_names_come_from_the_hub(monkeypatch):
    asked = []

    def load_dataset_builder(name, config):
        asked.append(name)
        rows = [{"sentence1": "a", "sentence2": "b", "score": i} for i in range(3)]
        return hub_builder({"train": rows[:1], "test": rows})

    module = types.ModuleType("datasets")
    module.load_dataset_builder = load_dataset_builder
    monkeypatch.setitem(sys.modules, "datasets", module)
    sets = open_pair_sets(["sts12", "SICKR", "mteb/sts16-sts"])
    assert [one.name for one in sets] == ["STS12", "SICK-R", "STS16"]
    assert asked == [SETS["STS12"], SETS["SICK-R"], SETS["STS16"]]
    assert all(len(one.numbers) == 3 for one in sets)


def test_a_local_file_of_a_names_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "STS12").mkdir()
    (tmp_path / "STS12" / "pairs.tsv").write_text("1\ta\tb\n2\tc\td\n3\te\tf\n")
    [one] = open_pair_sets(["STS12"])
    assert one.source.endswith("pairs.tsv")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1\ta\tb", "2\tc\td"], "p.tsv has 2 scored pairs"),
        (["2\ta\tb", "2\tc\td", "2.0\te\tf"], "all 3 scores of p.tsv are 2"),
        (["1\ta\tb", "nan\tc\td", "2\te\tf"], "p.tsv:2: score is 'nan', not a number"),
        (["1\ta\tb", "x\ta", "2\te\tf"], "p.tsv:2: 2 columns"),
    ],
)
def test_bad_pairs(tmp_path, monkeypatch, rows, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.tsv").write_text("\n".join(rows))
    with pytest.raises(UserError, match=message) as raised:
        open_pair_sets(["p.tsv"])
    assert raised.value.hint


def test_one_name_for_two_sets(write):
    write("stsb.tsv", "split", ["test"] * 3)
    write("STS-B.tsv", "split", ["test"] * 3)
    with pytest.raises(UserError, match="two sets are called STS-B"):
        open_pair_sets(["stsb.tsv", "STS-B.tsv"])
    with pytest.raises(UserError, match="no such file"):
        open_pair_sets(["nowhere.tsv"])
    with pytest.raises(UserError, match="no set of pairs"):
        open_pair_sets([])
