"""A grid over scored pairs is what the stage sts gives."""

from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval.cli import run_door
from starbucks_retrieval.grid.__main__ import main
from starbucks_retrieval.results import read_results
from starbucks_retrieval.sts import StsArguments, sts


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
def test_the_grid_of_scored_pairs(tiny_bert, tmp_path, monkeypatch, capsys, measure):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)

    def text() -> str:
        return " ".join(f"w{k}" for k in rng.integers(0, 95, 6))

    rows = ["score\tsentence1\tsentence2", *(f"{rng.random() * 5:.2f}\t{text()}\t{text()}" for _ in range(30))]
    (tmp_path / "mine.tsv").write_text("\n".join(rows) + "\n")
    argv = ["--task", "sts", "--model_name_or_path", str(tiny_bert), "--data", "mine.tsv", "--measures", measure]
    assert run_door(main, [*argv, "--layers", "2,4", "--dims", "8,32"]) == 0
    found = read_results("grid.json")
    expected = sts(
        StsArguments(str(tiny_bert), data=["mine.tsv"], measure=measure, sizes="2:8,2:32,4:8,4:32", output=None)
    )
    assert found.cells == expected.cells and len(found.cells) == 4
    assert f"mine, {measure} (30 pairs)" in capsys.readouterr().out
