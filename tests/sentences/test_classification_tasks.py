"""Which labelled texts a name, a file and a folder stand for, and what is trained on."""

import json
import sys
import types

import pytest
from conftest import hub_builder

from starbucks_retrieval.data.pairs import LabelledText, open_labelled
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sentences.tasks import TASKS, open_tasks


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def to(name, *lines):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return name

    return to


def test_shapes_of_labelled_texts(write):
    assert list(open_labelled(write("a.tsv", "pos\tw1 w2", "neg\tw3"))) == [
        LabelledText("w1 w2", None, "pos", ""),
        LabelledText("w3", None, "neg", ""),
    ]
    assert list(open_labelled(write("b.tsv", "1\ta\tb"))) == [LabelledText("a", "b", "1", "")]
    assert list(open_labelled(write("c.tsv", "text\tlabel\tsplit", "a\tx\ttest"))) == [
        LabelledText("a", None, "x", "test")
    ]
    row = {"text1": "a", "text2": None, "label": 0, "idx": 7, "label_text": "no"}
    assert list(open_labelled(write("d.jsonl", json.dumps(row)))) == [LabelledText("a", "", "0", "")]
    row = {"text": "q", "coarse_label": 3, "fine_label": 26}
    assert list(open_labelled(write("e.jsonl", json.dumps(row)))) == [LabelledText("q", None, "3", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "label": -1}', "label is -1: it is withheld"),
        ('{"text": "a", "label": null}', "label is null, not a class"),
        ('{"text": "a", "label": ""}', "label is empty, not a class"),
        ('{"text": "a", "label": 0.5}', "label is a number, not a class"),
        ('{"text": "a"}', "no column label or coarse_label"),
        ('{"label": 1}', "no column text, sentence, sentence1 or text1"),
    ],
)
def test_bad_rows_name_the_line(write, line, message):
    with pytest.raises(UserError, match=r"p\.jsonl:2: ") as raised:
        list(open_labelled(write("p.jsonl", '{"text": "a", "label": 1}', line)))
    assert message in raised.value.what and raised.value.hint


def test_a_header_of_unknown_names_is_no_text(write):
    with pytest.raises(UserError, match=r"g\.tsv:1: 'sentence' and 'label' look like the names of columns"):
        list(open_labelled(write("g.tsv", "sentence\tlabel", "a\t1")))


def test_protocols(write):
    rows = [f"{i % 2}\tw{i}\t{split}" for i, split in enumerate(["train", "train", "dev", "dev", "test", "test"])]
    head = "label\ttext\tsplit"
    for name in ("own.tsv", "mr.tsv", "x.tsv"):
        write(name, head, *rows)
    write("plain.tsv", "0\ta", "1\tb")
    own, mr, sst, plain = open_tasks(["own.tsv", "mr.tsv", "sst-2=x.tsv", "plain.tsv"])
    assert own.name == "own" and not own.cross_validated
    assert [part.tolist() for part in (own.train, own.dev, own.test)] == [[0, 1], [2, 3], [4, 5]]
    assert mr.name == "MR" and mr.cross_validated and mr.train.tolist() == list(range(6))
    assert sst.name == "SST2" and len(sst.dev) == 2
    assert plain.cross_validated and plain.classes == ["0", "1"] and plain.seconds is None
    pairs = [f"{i % 2}\ta\tb\t{split}" for i, split in enumerate(["train", "train", "validation", "test"])]
    [mrpc] = open_tasks([write("MRPC.tsv", "label\ttext\ttext2\tsplit", *pairs)])
    assert mrpc.train.tolist() == [0, 1, 2] and not len(mrpc.dev) and mrpc.seconds == ["b"] * 4


def test_a_folder_of_splits(write):
    write("SST-2/train.tsv", "0\ta", "1\tb")
    write("SST-2/dev.tsv", "0\tc")
    write("SST-2/test.tsv", "1\td")
    [task] = open_tasks(["SST-2"])
    assert task.name == "SST2"
    assert {part: [task.texts[i] for i in getattr(task, part)] for part in ("train", "dev", "test")} == {
        "train": ["a", "b"],
        "dev": ["c"],
        "test": ["d"],
    }


def test_names_come_from_the_hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def load_dataset_builder(name, config):
        asked.append(name)
        rows = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
        return hub_builder(dict.fromkeys(("train", "validation", "dev", "test"), rows))

    module = types.ModuleType("datasets")
    module.load_dataset_builder = load_dataset_builder
    monkeypatch.setitem(sys.modules, "datasets", module)
    [mpqa, sst, cr] = open_tasks(["mpqa", "SST-2", "CR=another/cr"])
    assert set(asked) == {TASKS["MPQA"].hub, TASKS["SST2"].hub, "another/cr"}
    assert (sst.source, cr.source, len(cr.train)) == (TASKS["SST2"].hub, "another/cr", 4)
    assert mpqa.cross_validated and len(mpqa.train) == 4  # its dev part repeats others
    assert [len(part) for part in (sst.train, sst.dev, sst.test)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("p.tsv", ["0\ta", "0\tb"], "p.tsv has 2 texts of 1 classes"),
        ("p.tsv", [], "p.tsv has 0 texts of 0 classes"),
        ("trec.tsv", ["0\ta", "1\tb"], "trec.tsv does not say which texts are for training"),
        ("p.tsv", ["label\ttext\tsplit", "0\ta\ttrain", "1\tb\ttrain"], "needs texts of the splits train and test"),
        (
            "p.jsonl",
            ['{"label":1,"text":"a"}', '{"label":0,"text":"a","text2":"b"}'],
            "p.jsonl:2: some rows have one text",
        ),
    ],
)
def test_tasks_that_leave_nothing_to_learn(write, name, lines, message):
    with pytest.raises(UserError, match=message) as raised:
        open_tasks([write(name, *lines)])
    assert raised.value.hint


def test_one_name_for_two_tasks(write):
    write("a.tsv", "0\ta", "1\tb")
    with pytest.raises(UserError, match="two tasks are called x"):
        open_tasks(["x=a.tsv", "x=a.tsv"])
    with pytest.raises(UserError, match="no such file"):
        open_tasks(["nowhere.tsv"])
    with pytest.raises(UserError, match="no task is named"):
        open_tasks([])
