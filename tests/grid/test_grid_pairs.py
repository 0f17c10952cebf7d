"""A grid over scored pairs is what the stage sts gives."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.grid.__main__ import main
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.sts import StsArguments, sts


@pytest.fixture(autouse=True)
def pairs(tmp_path, monkeypatch):
    """mine.tsv, thirty pairs, where the test runs."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)

    def text() -> str:
        return " ".join(f"w{k}" for k in rng.integers(0, 95, 6))

    rows = ["score\tsentence1\tsentence2", *(f"{rng.random() * 5:.2f}\t{text()}\t{text()}" for _ in range(30))]
    (tmp_path / "mine.tsv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("layers", slow_except(["2"], ["2", "2,4"]))
def test_costs_are_measured_on_sentences(tiny_bert, layers):
    argv = ["--task", "sts", "--model_name_or_path", str(tiny_bert), "--data", "mine.tsv", "--measure_cost"]
    assert run_command(main, [*argv, "--layers", layers, "--dims", "8,32"]) == 0
    found = read_results("grid.json")
    assert found.layout == "grid"
    assert {size: cost["bytes_per_passage"] for size, cost in found.more["costs"].items()} == {
        f"{layer}:{dim}": 2 * dim for layer in layers.split(",") for dim in (8, 32)
    }
    assert all(cost["query_ms"] > 0 and cost["passage_ms"] > 0 for cost in found.more["costs"].values())
    assert found.more["costs_measured"]["queries"] == 50


@pytest.mark.parametrize("measure", slow_except(["pearson"], ["spearman", "pearson"]))
def test_the_grid_of_scored_pairs(tiny_bert, capsys, measure):
    argv = ["--task", "sts", "--model_name_or_path", str(tiny_bert), "--data", "mine.tsv", "--measures", measure]
    assert run_command(main, [*argv, "--layers", "2,4", "--dims", "8,32"]) == 0
    found = read_results("grid.json")
    expected = sts(
        StsArguments(str(tiny_bert), data=["mine.tsv"], measure=measure, sizes="2:8,2:32,4:8,4:32", output=None)
    )
    assert found.cells == expected.cells and len(found.cells) == 4
    assert f"mine, {measure} (30 pairs)" in capsys.readouterr().out
