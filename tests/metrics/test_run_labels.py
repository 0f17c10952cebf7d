"""One rule for what runs are called, and that all stages keep to it."""

from __future__ import annotations

import json
import logging

import pytest

from starbucks_retrieval.browse import BrowseArguments, browse
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate import EvaluateArguments, evaluate
from starbucks_retrieval.metrics.run_labels import RunIdentity, run_labels, run_titles
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.sizes import Size

SMALL = Size(6, 128)


@pytest.mark.parametrize(
    ("path", "tag", "size", "sets", "label"),
    [
        ("runs/bm25.trec.gz", "x", None, (), "bm25"),
        ("runs/ours.scifact.L6-D128.trec", "starbucks-6:128", SMALL, ("scifact",), "ours"),
        ("runs/ours-6-128.run", "", SMALL, (), "ours"),
        ("mine/L6-D128.trec", "starbucks-6:128", SMALL, (), "starbucks"),  # nothing is left of the name: the tag
        ("mine/L6-D128.trec", "6:128", SMALL, (), "mine"),  # nor of the tag: the folder
        ("mine/scifact.trec", "bm25", None, ("beir/scifact", "scifact"), "mine"),
        ("runs/scifacts.trec", "", None, ("scifact",), "scifacts"),  # a part is a word of the name
    ],
)
def test_the_rule(path, tag, size, sets, label):
    assert run_labels([RunIdentity(path, tag, size, sets)]) == [label]


def test_runs_of_one_cell_get_distinct_labels():
    def identity(path: str, cell: str) -> RunIdentity:
        return RunIdentity(path, cells=frozenset({cell}))

    assert run_labels([identity("a/x.trec", "on s"), identity("b/x.trec", "on t")]) == ["x", "x"]
    assert run_labels([identity("a/x.trec", "on s"), identity("b/x.trec", "on s")]) == ["a/x", "b/x"]
    twice = [identity("1/a/x.trec", "on s"), identity("2/a/x.trec", "on s")]
    assert run_labels(twice) == ["1/a/x.trec", "2/a/x.trec"]
    with pytest.raises(UserError, match="are both ours on s"):
        run_labels(twice, "ours")
    with pytest.raises(UserError, match="3 labels for 2 runs"):
        run_labels(twice, ["a", "b", "c"])


def test_the_size_is_shown_where_a_label_has_several():
    sizes = [Size(2, 32), SMALL, None, SMALL]
    assert run_titles(["a", "a", "b", "c"], sizes) == ["a 2:32", "a 6:128", "b", "c"]


def test_all_stages_call_a_run_the_same(tmp_path, caplog):
    """Tables, findings, pages and reports of runs whose files are called by their sizes."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{i}", "text": "t"}) + "\n" for i in range(3)))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{i}", "text": "t"}) + "\n" for i in range(2)))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t1\n")
    runs = []
    for size in ("2:32", "6:128"):
        path = tmp_path / f"L{size.replace(':', '-D')}.trec"
        path.write_text(f"q0 Q0 d0 1 nan mine-{size}\nq1 Q0 d1 1 1 mine-{size}\n")
        runs.append(str(path))
    caplog.set_level(logging.INFO)
    evaluation = evaluate(EvaluateArguments(runs, str(folder), measures="RR@10", output=tmp_path / "out.json"))
    expected = ["mine 2:32", "mine 6:128"]
    assert [row.title for row in evaluation.rows] == expected
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("serious")]
    assert [line.split(": ")[1] for line in said] == expected
    assert [run["label"] for run in browse(BrowseArguments(runs, str(folder))).figures["runs"]] == expected
    inputs = read_inputs([tmp_path / "out.json"])
    assert [method.label for method in inputs.methods] == ["mine"]
    assert [warning.split(":")[0] for warning in inputs.warnings] == ["mine, set at 2", "mine, set at 6"]
