"""Intervals, equivalence, families of corrections, seeds and Williams' test in a report."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr, ttest_1samp, ttest_rel

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.equivalence import CorrelationDifference, correlation_difference, mean_difference
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.metrics.seeds import correlation_values
from starbucks_retrieval.metrics.significance import compare_correlations
from starbucks_retrieval.provenance import training_settings
from starbucks_retrieval.report.__main__ import main
from starbucks_retrieval.report.comparisons import SignificanceMarks, differences_table
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.report.layouts import by_size_table
from starbucks_retrieval.sizes import Size

SIZE = Size(2, 8)
BASE = np.linspace(0.2, 0.8, 30)


def cell(values, dataset="web", measure="nDCG@10", size=SIZE):
    named = {f"q{i:02}": float(value) for i, value in enumerate(values)}
    return Cell(dataset, measure, size, float(np.mean(values)), len(values), values=named)


def tables(files, *, seeds=False, measures=None, **options):
    """(by_size, differences) against the method `base`."""
    inputs = read_inputs(files, seeds=seeds, measures=measures)
    sizes = inputs.choose_sizes()
    [reference] = [method for method in inputs.methods if method.label == "base"]
    marker = SignificanceMarks(reference, options.pop("correction", "none"), **options)
    return by_size_table(inputs, sizes, marker), differences_table(inputs.methods, sizes, marker)


def of(table, label, column=0):
    return next(row.cells[column] for block in table.blocks for row in block.rows if row.label == label)


@pytest.fixture
def files(write):
    rng = np.random.default_rng(0)
    near, far = BASE + rng.normal(0, 0.01, 30), BASE - 0.1 + rng.normal(0, 0.01, 30)
    return [write(f"{name}.json", [cell(one)], name) for name, one in (("base", BASE), ("near", near), ("far", far))]


def test_marks_and_intervals_within_a_margin(files):
    by_size, differences = tables(files, margin=0.02)
    assert (of(by_size, "near").sign, of(by_size, "far").sign) == ("=", "*")
    values = read_inputs(files).methods[1].cells
    ours = np.array([*next(iter(values.values())).values.values()])
    low, high = ttest_1samp(ours - BASE, 0).confidence_interval()
    assert of(differences, "near").text == f"{(ours - BASE).mean():+.4f} [{low:+.4f}, {high:+.4f}]"
    assert any("within ±0.02" in note for note in by_size.notes) and "base" in differences.title
    assert r"\*" in differences.to_markdown() and "$^{=}$" in by_size.to_latex()
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(by_size.comparisons_to_csv()))}
    assert float(rows["near"]["low"]) == pytest.approx(low)
    below = ttest_1samp(ours - BASE, 0.02, alternative="less").pvalue
    above = ttest_1samp(ours - BASE, -0.02, alternative="greater").pvalue
    assert float(rows["near"]["p_equivalent"]) == pytest.approx(max(above, below))
    assert float(rows["near"]["p_non_inferior"]) == pytest.approx(above)


def test_a_correction_over_the_table_counts_all_comparisons(write):
    rng = np.random.default_rng(1)
    sizes = (Size(2, 8), Size(4, 16))
    made = [
        write(
            f"{name}.json", [cell(BASE + rng.normal(0.003, 0.01, 30) * (name != "base"), size=s) for s in sizes], name
        )
        for name in ("base", "one", "two")
    ]
    by_table, _ = tables(made, correction="bonferroni", family="table")
    by_size, _ = tables(made, correction="bonferroni")
    assert of(by_table, "one").comparison.corrected == pytest.approx(min(1, 4 * of(by_table, "one").comparison.p))
    assert of(by_size, "one").comparison.corrected == pytest.approx(min(1, 2 * of(by_size, "one").comparison.p))
    assert any("over all 4 comparisons of the table" in note for note in by_table.notes)


def test_files_of_one_label_are_seeds_if_so_named(write):
    rng = np.random.default_rng(2)
    values = {
        (name, seed): BASE + rng.normal(0, 0.02) + rng.normal(0, 0.02, 30)
        for name in ("base", "new")
        for seed in range(3)
    }
    made = [write(f"{name}{seed}.json", [cell(one)], name) for (name, seed), one in values.items()]
    by_size, differences = tables(made, seeds=True)
    means = [values["new", seed].mean() for seed in range(3)]
    assert of(by_size, "new").value == pytest.approx(np.mean(means))
    assert of(by_size, "new").text == f"{np.mean(means):.4f} ± {np.std(means, ddof=1):.4f}"
    assert r"$\pm$" in by_size.to_latex()
    pooled = [np.mean([values[name, seed] for seed in range(3)], axis=0) for name in ("new", "base")]
    comparison = of(by_size, "new").comparison
    assert comparison.delta == pytest.approx(np.mean(pooled[0] - pooled[1]))
    # A test over queries alone takes the seeds for given.
    assert comparison.p > 2 * ttest_rel(*pooled).pvalue
    assert any("up to 3 seeds" in note for note in differences.notes)
    with pytest.raises(UserError, match="base: web"):
        tables(made)
    expected = mean_difference([values["new", 0], values["new", 1]], [values["base", seed] for seed in range(3)])
    assert of(tables(made[:-1], seeds=True)[0], "new").comparison.interval == pytest.approx(expected.interval())
    unequal, _ = tables(made[:-2], seeds=True)
    assert any("one method has 1 seeds and the other 3" in note for note in unequal.notes)
    short = write("short.json", [cell(BASE[:20])], "new")
    with pytest.raises(UserError, match=r"over 30 in .* but over 20"):
        tables([*made, short], seeds=True)


def test_a_method_without_training_is_named_once_for_each_seed(write):
    rng = np.random.default_rng(4)
    runs = [BASE + rng.normal(0.05, 0.02) + rng.normal(0, 0.02, 30) for _ in range(3)]
    made = [write(f"new{i}.json", [cell(one)], "new") for i, one in enumerate(runs)]
    by_size, _ = tables([*made, *[write("base.json", [cell(BASE)], "base")] * 3], seeds=True)
    expected = mean_difference(runs, [BASE] * 3)
    assert of(by_size, "new").comparison.interval == pytest.approx(expected.interval())
    assert of(by_size, "base").text == f"{BASE.mean():.4f}"
    notes = read_inputs([*made, *[str(made[0].replace("new0", "base"))] * 3], seeds=True).notes
    assert any("base: one run, the same for all 3 seeds" in note for note in notes)


@pytest.mark.parametrize("measured_on", ["the same models", "others", "models of each set"])
def test_seeds_are_paired_where_the_models_are_the_same(write, measured_on):
    rng = np.random.default_rng(5)
    models = [BASE + rng.normal(0, 0.05) for _ in range(3)]
    runs = {name: [model + rng.normal(0, 0.01, 30) for model in models] for name in ("base", "new")}
    made = []
    for name, values in runs.items():
        for i, one in enumerate(values):
            mark = f"{i}:{'' if measured_on != 'others' else name}"
            more = {"fingerprints": {"web": mark}} if measured_on == "models of each set" else {"fingerprint": mark}
            made.append(write(f"{name}{i}.json", [cell(one)], name, **more))
    interval = of(tables(made, seeds=True)[0], "new").comparison.interval
    paired, nested = (mean_difference(runs["new"], runs["base"], same).interval() for same in (True, False))
    assert paired[1] - paired[0] < (nested[1] - nested[0]) / 2
    assert interval == pytest.approx(nested if measured_on == "others" else paired)


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
def test_correlations_are_tested_over_pairs_and_seeds(write, measure):
    rng = np.random.default_rng(6)
    gold = rng.integers(0, 6, 60).astype(float)
    correlate = {"spearman": spearmanr, "pearson": pearsonr}[measure]
    ids = [str(i) for i in range(60)]
    cosines = {name: [gold + rng.normal(0, noise, 60) for _ in range(3)] for name, noise in (("base", 2), ("new", 1))}
    made = []
    for name, runs in cosines.items():
        for i, one in enumerate(runs):
            value = float(correlate(gold, one).statistic)
            scored = Cell("STS-B", measure, SIZE, value, 60, values=dict(zip(ids, one.tolist())))
            known = {"STS-B": dict(zip(ids, gold.tolist()))}
            made.append(write(f"{name}{i}.json", [scored], name, "sts", gold=known))
    comparison = of(tables(made, seeds=True)[0], "new").comparison
    ours, theirs = (
        [correlation_values(gold, one, pearson=measure == "pearson") for one in cosines[name]]
        for name in ("new", "base")
    )
    expected = mean_difference(ours, theirs)
    assert (comparison.p, *comparison.interval) == pytest.approx((expected.p_value, *expected.interval()))
    assert comparison.test == "t-test over pairs and seeds"


def test_correlations_over_seeds_without_their_pairs_are_taken_for_independent(write):
    figures = {"base": (0.7, 0.72, 0.71), "new": (0.8, 0.83, 0.82)}
    made = [
        write(f"{name}{i}.json", [Cell("STS-B", "spearman", SIZE, value, 1000)], name, "sts")
        for name, values in figures.items()
        for i, value in enumerate(values)
    ]
    by_size = tables(made, seeds=True)[0]
    comparison = of(by_size, "new").comparison
    expected = correlation_difference(figures["new"], figures["base"], 1000)
    assert (comparison.p, *comparison.interval) == pytest.approx((expected.p_value, *expected.interval()))
    assert comparison.test == "t-test over independent pairs and seeds"
    assert any("needs all pairs (sts --keep_pairs true)" in note for note in by_size.notes)


def test_williams_stands_beside_fisher_where_pairs_are_kept(write):
    rng = np.random.default_rng(3)
    gold = rng.normal(size=60)
    shared = gold + rng.normal(0, 0.5, 60)
    columns = {"base": shared + rng.normal(0, 0.3, 60), "new": shared + rng.normal(0, 0.05, 60)}
    names = [str(i) for i in range(60)]
    made = []
    for name, column in columns.items():
        value = float(np.corrcoef(gold, column)[0, 1])
        one = Cell("STS-B", "pearson", SIZE, value, 60, values=dict(zip(names, column.tolist())))
        made.append(write(f"{name}.json", [one], name, "sts", gold={"STS-B": dict(zip(names, gold.tolist()))}))
    expected = compare_correlations(gold, columns["new"], columns["base"], pearson=True).p_value
    fisher, williams = (of(tables(made, correlation=test)[0], "new").comparison for test in ("fisher", "williams"))
    assert fisher.williams == williams.p == pytest.approx(expected) and fisher.p > williams.p
    r = np.corrcoef([gold, columns["new"], columns["base"]])
    assert williams.interval == pytest.approx(CorrelationDifference(r[0, 1], r[0, 2], 60, r[1, 2]).interval())
    assert (fisher.test, williams.test) == ("Fisher's z", "Williams' test")


def test_measures_are_filtered_by_any_of_their_names(write):
    made = [
        write(f"{n}.json", [cell(BASE, measure="RR@10"), cell(BASE, measure="nDCG@10")], n) for n in ("base", "new")
    ]
    assert {column.measure for column in read_inputs(made, measures=["mrr@10"]).columns} == {"RR@10"}
    with pytest.raises(UserError, match="--measures P@1: no file"):
        read_inputs(made, measures=["RR@10", "P@1"])


def trained(folder, **flags):
    folder.mkdir()
    train = {"objective": "srl", "false_negatives": "keep", "train_group_size": 8, "dataset_path": ["a.jsonl"], **flags}
    settings = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    record = {"configuration": {"train": train, "transformers": settings}, "history": [{"step": 5}]}
    (folder / "training.json").write_text(json.dumps(record))
    return folder


def test_methods_that_were_not_trained_alike_are_named(files, tmp_path, capsys, write):
    models = {
        "base": trained(tmp_path / "m1"),
        "near": trained(tmp_path / "m2", false_negatives="mask"),
        "far": trained(tmp_path / "m3", objective="distil"),  # without labels there are no negatives
    }
    assert training_settings(models["base"])["rows"] == 160 and training_settings(models["far"]) == {}
    known = [f"{name}={folder}" for name, folder in models.items() if name != "far"]
    argv = ["--input", *files, "--output_dir", str(tmp_path / "out"), "--no_figures", "--models", *known]
    assert run_command(main, argv) == 0
    assert "warnings: 1" in capsys.readouterr().err
    sentence = "Not like with like: --false_negatives is keep for base and mask for near."
    assert sentence in (tmp_path / "out" / "index.html").read_text()
    assert run_command(main, [*argv, "--output_dir", str(tmp_path / "no"), "--strict"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error: {sentence}"
    assert not (tmp_path / "no").exists()
    # Files of sts and grid know it themselves.
    one = write("one.json", [cell(BASE)], "one", "grid", training=training_settings(models["base"]))
    two = write("two.json", [cell(BASE)], "two", "grid", training={"false_negatives": "keep", "rows": 80})
    inputs = read_inputs([one, two])
    assert (
        inputs.unlike == [] and "Rows of training data that a process read: 160 for one and 80 for two." in inputs.notes
    )


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--models near", "names no method"),
        ("--models near=absent", "no training.json"),
        ("--margin 0.01", "--margin needs"),
        ("--margin 0 --baseline base", "a margin of 0"),
        ("--measures P@3", "--measures P@3"),
    ],
)
def test_bad_flags_are_two_lines(files, tmp_path, capsys, flags, what):
    argv = ["--input", *files, "--output_dir", str(tmp_path / "out"), "--no_figures", *flags.split()]
    assert run_command(main, argv) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2 and what in error[0]
    assert not (tmp_path / "out").exists()
