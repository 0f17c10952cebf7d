"""Result files: what is written is read back, and what is not one is refused."""

from __future__ import annotations

import json
import math

import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.metrics.results import (
    Cell,
    Results,
    dataset_name,
    macro_mean,
    read_results,
    set_of,
    write_results,
)
from starbucks_retrieval.sizes import Size

CELLS = [
    Cell("dl19", "nDCG@10", Size(6, 128), 0.5, 2, values={"q1": 0.25, "q2": 0.75}),
    Cell("dl19", "nDCG@10", Size(2, 32), 0.25, 2, passage_size=Size(12, 768), label="other"),
    Cell("STS-B", "spearman", None, -0.125, 1379),
]


def test_what_is_written_is_read_back(tmp_path):
    results = Results("grid", "Starbucks", CELLS, {"milliseconds": {"6:128": 3.5}}, "grid")
    write_results(tmp_path / "new" / "r.json", results)
    assert read_results(tmp_path / "new" / "r.json") == results
    content = json.loads((tmp_path / "new" / "r.json").read_text())
    assert (content["format"], content["version"], content["kind"]) == ("starbucks-results", 1, "grid")
    assert content["cells"][2] == {"dataset": "STS-B", "measure": "spearman", "value": -0.125, "count": 1379}
    assert content["cells"][1]["size"] == "2:32"


def test_a_figure_that_does_not_exist_is_null_and_never_zero(tmp_path):
    write_results(tmp_path / "r.json", Results("sts", "x", [Cell("STS12", "spearman", None, math.nan, 3)]))
    text = (tmp_path / "r.json").read_text()
    assert "NaN" not in text and json.loads(text)["cells"][0]["value"] is None
    assert math.isnan(read_results(tmp_path / "r.json").cells[0].value)


def test_a_zero_is_written(tmp_path):
    write_results(tmp_path / "r.json", Results("sts", "x", [Cell("s", "m", None, 0.0, 0)]))
    assert json.loads((tmp_path / "r.json").read_text())["cells"] == [
        {"dataset": "s", "measure": "m", "value": 0.0, "count": 0}
    ]


def test_methods_of_one_file_are_distinguished_by_label():
    ours, other = Results("evaluate", "ours", CELLS, {"k": 1}).by_label()
    assert (ours.label, [cell.dataset for cell in ours.cells]) == ("ours", ["dl19", "STS-B"])
    assert (other.label, other.cells[0].label, other.cells[0].size) == ("other", None, Size(2, 32))
    assert other.more == {"k": 1}


def test_more_does_not_overwrite_the_fields():
    content = Results("sts", "x", [], {"kind": "forged", "note": 1}).to_json()
    assert (content["kind"], content["note"]) == ("sts", 1)


GOOD = {"format": "starbucks-results", "version": 1, "kind": "sts", "label": "x", "cells": []}
CELL = {"dataset": "d", "measure": "m", "value": 1.0, "count": 2}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "cannot be read as JSON"),
        ([], "is not a result file"),
        ({**GOOD, "format": "starbucks-store"}, "is not a result file"),
        ({**GOOD, "version": 2}, "version 2"),
        ({**GOOD, "version": None}, "version None"),
        ({"format": "starbucks-results", "version": 1}, "is damaged: kind is missing"),
        ({**GOOD, "cells": [{"dataset": "d"}]}, r"is damaged: cells\[0\].measure is missing"),
        (
            {**GOOD, "cells": [{**CELL, "value": "high"}]},
            r"is damaged: cells\[0\].value is 'high', expected a valid number",
        ),
        ({**GOOD, "cells": [{**CELL, "size": "six"}]}, "is damaged: cannot read the size 'six'"),
        ({**GOOD, "cells": [{**CELL, "values": [1]}]}, r"cells\[0\].values is \[1\], expected an object"),
    ],
)
def test_what_is_no_result_file_is_refused(tmp_path, content, what):
    (tmp_path / "r.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=what) as error:
        read_results(tmp_path / "r.json")
    assert str(tmp_path / "r.json") in error.value.what
    assert error.value.hint


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="no file"):
        read_results(tmp_path / "nowhere.json")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_results(tmp_path / "r.json", Results("sts", "old", []))
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        write_results(tmp_path / "r.json", Results("sts", "new", []))
    assert read_results(tmp_path / "r.json").label == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_file_says_whether_its_sizes_are_a_grid(tmp_path):
    write_results(tmp_path / "r.json", Results("sts", "x", CELLS, {}, "grid"))
    assert json.loads((tmp_path / "r.json").read_text())["layout"] == "grid"
    read = read_results(tmp_path / "r.json")
    assert (read.layout, read.more) == ("grid", {})
    assert {part.layout for part in read.by_label()} == {"grid"}


@pytest.mark.parametrize(
    ("kind", "flags", "layout"),
    [
        ("grid", None, "grid"),
        ("sts", {"grid": False, "layers": "2,4", "dims": None}, "grid"),
        ("transfer", {"grid": False, "layers": None, "dims": None}, "list"),
        ("sts", None, None),
        ("evaluate", {"layers": "2"}, None),
    ],
)
def test_a_file_that_does_not_say_it_is_known_by_its_stage_and_flags(tmp_path, kind, flags, layout):
    more = {} if flags is None else {"provenance": {"configuration": flags}}
    write_results(tmp_path / "r.json", Results(kind, "x", CELLS, more))
    assert read_results(tmp_path / "r.json").layout == layout


def test_forums_count_as_one_set(tmp_path):
    assert {set_of(f"beir/cqadupstack/{forum}") for forum in ("gis", "tex")} == {"beir/cqadupstack"}
    assert [set_of(name) for name in ("cqadupstack-gis", "cqadupstack", "beir/quora", "gis")] == [
        *("cqadupstack", "cqadupstack", "beir/quora", "gis")
    ]
    # 0.3 of the forums and 0.9 of the other: a mean over data sets would be 0.5.
    assert macro_mean({"cqadupstack-gis": 0.2, "cqadupstack-tex": 0.4, "quora": 0.9}) == pytest.approx(0.6)
    assert dataset_name(tmp_path / "cqadupstack" / "gis") == "cqadupstack/gis"
    assert dataset_name(tmp_path / "scifact") == "scifact"
