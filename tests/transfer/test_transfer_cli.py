"""transfer through its door: labels that can be read off embeddings, and labels that cannot."""

import json
import sys

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.transfer import cross_validate, train_and_test
from starbucks_retrieval.transfer.__main__ import main


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """`apart.tsv`: a class has words of its own. `chance.tsv`: the same texts, labels thrown. `pairs.tsv`: equal or not."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 120)
    texts = [" ".join(f"w{i}" for i in rng.integers(40 * label, 40 * label + 40, 6)) for label in labels]
    splits = ["train"] * 80 + ["test"] * 40
    thrown = rng.permutation(labels)
    write = {
        "apart.tsv": [("label", "text"), *zip(labels, texts)],
        "chance.tsv": [("label", "text"), *zip(thrown, texts)],
        "split.tsv": [("label", "text", "split"), *zip(labels, texts, splits)],
        "MRPC.tsv": [
            ("label", "text", "text2", "split"),
            *((int(i % 3 > 0), a, a if i % 3 else b, s) for i, (a, b, s) in enumerate(zip(texts, texts[1:], splits))),
        ],
    }
    for name, rows in write.items():
        (tmp_path / name).write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return tmp_path


def run(tiny_bert, *flags):
    return run_command(main, ["--model_name_or_path", str(tiny_bert), "--folds", "2", "--pooling", "mean", *flags])


def test_classes_apart_are_told_and_thrown_ones_are_not(tiny_bert, tasks, capsys):
    assert run(tiny_bert, "--data", "apart.tsv", "chance.tsv", "--sizes", "1:16,4:32", "--output", "t.json") == 0
    out, err = capsys.readouterr()
    results = read_results("t.json")
    assert results.kind == "transfer"
    values = {(cell.dataset, str(cell.size)): cell.value for cell in results.cells}
    assert min(values["apart", size] for size in ("1:16", "4:32")) > 0.85
    assert all(0.3 < values["chance", size] < 0.7 for size in ("1:16", "4:32"))
    assert [line.split()[0] for line in out.splitlines()] == ["size", "1:16", "4:32"]
    assert out.split()[:4] == ["size", "apart", "chance", "Average"]
    assert err.splitlines()[-1].endswith("accuracy over texts: apart 120, chance 120; in t.json")


def test_the_seed_alone_chooses_the_folds(tiny_bert, tasks):
    contents, right = [], []
    for seed in "001":
        argv = ["--data", "chance.tsv", "--sizes", "1:16", "--output", "t.json", "--seed", seed, "--keep_texts"]
        assert run(tiny_bert, *argv) == 0
        contents.append((tasks / "t.json").read_bytes())
        right.append(read_results("t.json").cells[0].values)
    assert contents[0] == contents[1] and right[0] != right[2]


def test_a_test_part_is_never_trained_on(tiny_bert, tasks):
    assert run(tiny_bert, "--data", "split.tsv", "--output", "t.json", "--keep_texts") == 0
    [cell] = read_results("t.json").cells
    assert (cell.count, cell.measure) == (40, "accuracy") and cell.value > 0.85
    assert set(cell.values) == {str(i) for i in range(80, 120)}
    assert sum(cell.values.values()) / 40 == pytest.approx(cell.value)


def test_pairs_have_an_f1(tiny_bert, tasks, capsys):
    assert run(tiny_bert, "--data", "MRPC.tsv", "--json") == 0
    out, err = capsys.readouterr()
    accuracy, f1 = json.loads(out)["cells"]
    assert (accuracy["measure"], f1["measure"]) == ("accuracy", "f1")
    assert min(accuracy["value"], f1["value"]) > 0.9  # equal texts: |u - v| is zero
    wrong = round((1 - accuracy["value"]) * accuracy["count"])
    paraphrases = sum(i % 3 > 0 for i in range(80, 119))
    # Of one wrong text, one of both: 2 TP / (2 TP + FP + FN)
    assert f1["value"] in [pytest.approx(2 * right / (2 * right + wrong)) for right in range(paraphrases + 1)]
    assert err.splitlines()[-3].split() == ["size", "MRPC", "MRPC", "f1"]


def test_one_pass_for_all_sizes(tiny_bert, tasks, monkeypatch):
    passes = []
    embed = NestedEncoder.embed

    def counted(self, rows, sizes, **options):
        passes.append((len(rows), str(sizes)))
        return embed(self, rows, sizes, **options)

    monkeypatch.setattr(NestedEncoder, "embed", counted)
    assert run(tiny_bert, "--data", "MRPC.tsv", "--layers", "1,4", "--dims", "8,32", "--quiet") == 0
    assert passes == [(119, "1:8,1:32,4:8,4:32")]  # of 119 pairs' 238 texts, the distinct ones


def test_scikit_learn_missing(tiny_bert, tasks, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert run(tiny_bert, "--data", "apart.tsv") == 2
    assert "try: pip install scikit-learn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--folds", "1"], "--folds 1 is below 2"),
        (["--folds", "90"], "a class has "),
        (["--sizes", "4:64"], "size 4:64 needs 64 dimensions"),
        (["--output", "."], ". is a folder"),
    ],
)
def test_refusals(tiny_bert, tasks, capsys, flags, message):
    assert run(tiny_bert, "--data", "apart.tsv", *flags) == 2
    err = capsys.readouterr().err
    assert message in err and "try: " in err


def test_strength_is_chosen_by_dev_and_not_by_test():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 300)
    features = np.column_stack([targets + rng.normal(0, 0.3, 300), rng.normal(size=(300, 20))])
    train, dev, test = np.arange(100), np.arange(100, 200), np.arange(200, 300)
    told = train_and_test(features, targets, train, dev, test, 5, 0)
    shuffled = features.copy()
    shuffled[test] = shuffled[test][::-1]
    np.testing.assert_array_equal(train_and_test(shuffled, targets, train, dev, test, 5, 0), told[::-1])
    assert (told == targets[test]).mean() > 0.85
    assert (train_and_test(features, targets, train, dev[:0], test, 5, 0) == targets[test]).mean() > 0.85


def test_cross_validation_equals_scikit_learns_own():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict

    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 150)
    features = np.eye(3)[targets] + rng.normal(0, 0.6, (150, 3))
    folds = StratifiedKFold(3, shuffle=True, random_state=7)
    search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": [2.0**power for power in range(-2, 4)]}, cv=folds)
    expected = cross_val_predict(search, features, targets, cv=folds)
    found = cross_validate(features, targets, 3, 7)
    assert (found == expected).mean() > 0.98  # fits that start elsewhere end within their tolerance
    with pytest.raises(UserError, match="too few for 60 folds"):
        cross_validate(features, targets, 60, 7)
