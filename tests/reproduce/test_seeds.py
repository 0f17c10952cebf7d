"""A table of several seeds: its asterisks, the verdicts and the page of `report` are one test over queries and seeds."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from starbucks_retrieval.metrics.equivalence import mean_difference
from starbucks_retrieval.metrics.results import Cell, Results, read_results, write_results
from starbucks_retrieval.metrics.seeds import correlation_values
from starbucks_retrieval.report import drawing
from starbucks_retrieval.reproduce import ReproduceArguments, results
from starbucks_retrieval.reproduce.api import plan_reproduction, write_tables
from starbucks_retrieval.reproduce.claims import judge

TABLE = """\
title: Rows with seeds
source: a test
rows:
  - &trained
    name: SRL
    train: {retrieval: {preset: starbucks-msmarco, sizes: "2:32,12:768"}, sts: {preset: starbucks-sts, sizes: "2:32,12:768"}}
  - {<<: *trained, name: again, measure: {max_tokens_per_batch: 4096}}
  - name: full
    train: {retrieval: {preset: full-msmarco}, sts: {preset: full-sts}}
  - {name: bare}
columns: [MS MARCO, STS-B]
sizes: 2:32,12:768
layout: by_size
baseline: SRL
claims:
  - {id: a, says: full is on par with SRL, row: full, than: SRL, kind: on_par, margin: 0.4}
"""
IDS = [f"{i:02}" for i in range(40)]
GOLD = dict(zip(IDS, np.random.default_rng(0).integers(0, 6, 40).astype(float).tolist()))


def measured(name: str, seed: int, task: str, sizes) -> Results:
    """Made-up scores; a row without training has the same ones for all seeds, and `again` the models of SRL."""
    model = f"{0 if name == 'bare' else seed}{'SRL' if name == 'again' else name}"
    of_model, own = (np.random.default_rng([*f"{text}{task}".encode()]) for text in (model, name + model))
    shift, cells = of_model.normal(0, 0.1), []
    for size in sizes:
        scores = 0.5 + shift + of_model.normal(0, 0.1, 40) + own.normal(0, 0.02, 40) + 0.2 * (name == "bare")
        scores += np.array([*GOLD.values()]) * (0.1 + 0.2 * abs(shift)) if task == "sts" else 0
        value = float(spearmanr([*GOLD.values()], scores).statistic if task == "sts" else scores.mean())
        names = {"sts": ("STS-B", "spearman"), "retrieval": ("MS MARCO", "RR@10")}[task]
        cells.append(Cell(*names, size, value, 40, values=dict(zip(IDS, scores.tolist()))))
    more = {"fingerprint": model} | ({"gold": {"STS-B": GOLD}} if task == "sts" else {})
    return Results("grid", name, cells, more)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch):
    """A function of the number of seeds: plan, scores, and the comparisons of table and page as rows."""
    monkeypatch.setattr(drawing, "_drawn", lambda *_, **__: dict.fromkeys(("png", "svg"), b"<svg></svg>"))
    monkeypatch.setattr(results, "is_done", lambda job, root: True)
    (tmp_path / "t.yaml").write_text(TABLE)

    def make(seeds: int):
        arguments = ReproduceArguments(str(tmp_path / "t.yaml"), output_dir=str(tmp_path), seeds=seeds)
        plan = plan_reproduction(arguments)
        for one in plan.measured:
            for seed, (job,) in enumerate(one.seeds):
                made = measured(one.row, seed, "sts" if one.set == "STS-B" else "retrieval", plan.sizes)
                job.folder(tmp_path).mkdir(parents=True, exist_ok=True)
                write_results(job.folder(tmp_path) / job.output, made)
        out = Path(write_tables(plan, arguments, tmp_path)["output"])
        files = (out / "comparisons.csv", out / "page" / "comparisons.csv")
        return plan, results.collect(plan, tmp_path)[0], [rows(file) for file in files], out

    return make


def rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    found = csv.DictReader(io.StringIO(path.read_text()))
    return {(row["size"].split()[-1], row["method"], row["data set"]): row for row in found}


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_makes_the_tests_of_the_table(tables, seeds):
    plan, scores, (table, page), out = tables(seeds)
    assert table.keys() == page.keys() and len(table) == 3 * 2 * 2
    for key, row in table.items():
        assert row["test"] == page[key]["test"] and row["significant"] == page[key]["significant"]
        for name in ("difference", "p", "low", "high"):
            assert float(row[name]) == pytest.approx(float(page[key][name])), (key, name)
    size = next(iter(plan.sizes))
    for name, same in (("full", False), ("again", True), ("bare", False)):
        runs = {one: [measured(one, seed, "retrieval", plan.sizes).cells[0] for seed in range(seeds)] for one in (name, "SRL")}  # fmt: skip
        ours, theirs = ([[*cell.values.values()] for cell in runs[one]] for one in (name, "SRL"))
        expected = mean_difference(ours, theirs, same) if seeds > 1 else mean_difference(ours[0], theirs[0])
        row = table[str(size), name, "MS MARCO"]
        assert (float(row["p"]), float(row["low"])) == pytest.approx((expected.p_value, expected.interval()[0]))
    notes = (out / "page" / "index.html").read_text()
    assert "queries alone" not in notes
    assert ("bare: one run, the same for all 3 seeds" in notes) == (seeds == 3)
    assert [cell.value for cell in read_results(out / "rows" / "0.json").cells] == [
        cell.value for cell in scores["SRL"].cells.values()
    ]


def test_correlations_of_seeds_are_tested_over_pairs(tables):
    plan, scores, (table, _), _ = tables(3)
    size = next(iter(plan.sizes))
    ours, theirs = (
        [
            correlation_values([*GOLD.values()], [*measured(name, seed, "sts", [size]).cells[0].values.values()])
            for seed in range(3)
        ]
        for name in ("full", "SRL")
    )
    expected = mean_difference(ours, theirs)
    row = table[str(size), "full", "STS-B"]
    assert row["test"] == "t-test over pairs and seeds"
    assert (float(row["p"]), float(row["high"])) == pytest.approx((expected.p_value, expected.interval()[1]))
    plan.scale.__dict__["testable"] = True
    (found,) = judge(plan, scores, [("MS MARCO", "RR@10"), ("STS-B", "spearman")])
    low, high = expected.interval()
    assert f"STS-B {size} {expected.value:+.4f} [{low:+.4f}, {high:+.4f}]" in found.because


def test_rows_with_one_and_several_seeds_are_not_tested(tables, tmp_path):
    plan, scores, _, _ = tables(3)
    plan.scale.__dict__["testable"] = True
    for by_seed in scores["full"].by_seed.values():
        del by_seed[1:]
    (found,) = judge(plan, scores, [("MS MARCO", "RR@10")])
    assert found.verdict == "not testable here" and "one method has 1 seeds and the other 3" in found.because
