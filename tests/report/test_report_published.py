from __future__ import annotations

import json

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.report.layouts import SignificanceMarks, ablation_table, averages_table, by_size_table
from starbucks_retrieval.report.published import read_published
from starbucks_retrieval.sizes import Size

PAPER = {
    "starbucks": {
        "sizes": {"Demi": "2,32", "Trenta": "12,768"},
        "table1": {"SRL": {"STS-B": 0.71, "STS12": 0.61, "Average": 0.66, "MS MARCO": 0.31}},
        "table4": {
            "SRL": {
                "Demi": {"STS-B": 0.7, "STS12": 0.6, "Average": 0.65, "MS MARCO": 0.3},
                "Trenta": {"STS-B": 0.72, "STS12": None, "Average": 0.67, "MS MARCO": 0.99},
            }
        },
        "table2": {"STS (STS-B Spearman)": {"without_KL": {"Demi": 0.68, "Trenta": 0.7, "Average": 0.69}}},
        "readme_tableA2": {
            "SRL": {"Demi": {"SciFact": 0.4, "Average": 0.4}, "Trenta": {"SciFact": 0.5, "Average": 0.5}}
        },
    }
}


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "reference.json").write_text(json.dumps(PAPER))
    return read_published(tmp_path / "reference.json")


@pytest.fixture
def inputs(write):
    cells = []
    for size in (Size(2, 32), Size(12, 768)):
        cells += [Cell(name, "spearman", size, 0.5, 100) for name in ("stsb", "STS12")]
        cells += [Cell("msmarco-dev", "RR@10", size, 0.2, 10), Cell("beir/scifact", "nDCG@10", size, 0.3, 10)]
    return read_inputs([write("a.json", cells)])


def test_published_rows_are_printed_beside_ours(inputs, paper):
    model_sizes = inputs.choose_sizes()
    table = by_size_table(inputs, model_sizes, SignificanceMarks(None, "none"), paper)
    ours, theirs = table.blocks[0].rows
    assert not ours.published
    assert theirs.name == "SRL (published)"
    assert [cell.value for cell in theirs.cells] == [0.7, 0.6, 0.65, 0.3, 0.4]
    assert [cell.value for cell in table.blocks[1].rows[1].cells] == [0.72, None, None, 0.99, 0.5]
    over = averages_table(inputs, model_sizes, paper).blocks[0].rows[1]
    assert [cell.value for cell in over.cells] == [0.71, 0.61, 0.66, 0.31, None]


def test_published_figures_are_neither_best_nor_compared(inputs, paper):
    method = inputs.methods[0]
    table = by_size_table(inputs, inputs.choose_sizes(), SignificanceMarks(method, "none"), paper)
    for row in (row for block in table.blocks for row in block.rows if row.published):
        assert not any(cell.best or cell.comparison for cell in row.cells)
    assert all(not cell.best for cell in table.cells)  # ours alone has nobody to be better than


def test_every_form_says_published(inputs, paper):
    table = averages_table(inputs, inputs.choose_sizes(), paper)
    assert r"| _SRL (published)_ | _0.7100_ |" in table.to_markdown()
    assert r"\textit{SRL (published)} & \textit{0.7100}" in table.to_latex()
    assert "SRL,published,0.71," in table.to_csv()
    assert any("They were not measured here" in note for note in table.notes)


def test_ablations_stand_in_their_own_table_alone(inputs, paper):
    model_sizes = inputs.choose_sizes()
    block = ablation_table(inputs, model_sizes, paper).blocks[0]
    assert [(row.label, [cell.value for cell in row.cells]) for row in block.rows] == [
        ("ours", [0.5, 0.5, 0.5]),
        ("SRL", [0.7, 0.72, 0.71]),
        ("SMAE-SRL without KL", [0.68, 0.7, 0.69]),
    ]
    table = by_size_table(inputs, model_sizes, SignificanceMarks(None, "none"), paper)
    assert not any("KL" in row.label for block in table.blocks for row in block.rows)


def test_an_average_is_laid_beside_one_over_the_same_sets_only(write, paper):
    size = Size(2, 32)
    cells = [Cell(name, "spearman", size, 0.5, 100) for name in ("STS-B", "STS12", "mine")]
    inputs = read_inputs([write("a.json", cells)])
    table = by_size_table(inputs, inputs.choose_sizes(), SignificanceMarks(None, "none"), paper)
    assert [cell.value for cell in table.blocks[0].rows[1].cells] == [0.7, 0.6, None, None]


def test_other_measures_and_sizes_get_no_published_rows(write, paper):
    for cell in (Cell("STS-B", "pearson", Size(2, 32), 0.5, 9), Cell("STS-B", "spearman", Size(3, 32), 0.5, 9)):
        inputs = read_inputs([write("a.json", [cell])])
        table = by_size_table(inputs, inputs.choose_sizes(), SignificanceMarks(None, "none"), paper)
        assert [row.name for row in table.blocks[0].rows] == ["ours"]


def test_the_published_quora_figures_come_with_a_warning(write, paper):
    for dataset, warned in (("beir/quora", True), ("scifact", False)):
        cells = [Cell(name, "nDCG@10", Size(2, 32), 0.5, 9) for name in (dataset, "scifact")]
        inputs = read_inputs([write("a.json", cells)])
        notes = by_size_table(inputs, inputs.choose_sizes(), SignificanceMarks(None, "none"), paper).notes
        assert any("Quora" in note for note in notes) is warned


def test_other_files_are_user_errors(tmp_path):
    for content in ("[]", "{}", "{", '{"starbucks": {"sizes": 3}}', '{"starbucks": {"sizes": {"a": "x"}}}'):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(UserError, match="does not hold published figures"):
            read_published(tmp_path / "x.json")
    with pytest.raises(UserError, match="no such file"):
        read_published(tmp_path / "none.json")


def test_the_real_tables(shared):
    paper = read_published(shared / "reference_results.json")
    assert [method.label for method in paper.methods][-1] == "SMAE-SRL (Starbucks)"
    starbucks = paper.methods[-1]
    assert starbucks.sized[("stsb", "spearman"), Size(2, 32)] == 0.7455
    assert starbucks.averages["msmarco", "rr@10"] == 0.3116
    assert starbucks.sized[("quora", "ndcg@10"), Size(10, 512)] == 0.0178
    assert [method.averages["stsb", "spearman"] for method in paper.ablations] == [0.8067, 0.8073, 0.7951]
