from __future__ import annotations

import csv
import io
import math

import pytest

from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.comparisons import SignificanceMarks
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.report.layouts import ablation_table, averages_table, by_size_table, mark_best
from starbucks_retrieval.report.tables import Block, CellComparison, Heading, Table, TableCell, TableRow
from starbucks_retrieval.sizes import Size


def laid_out(files, baseline=None, correction="none", sizes=None):
    """(averages, by_size, ablation) of the files."""
    inputs = read_inputs(files)
    model_sizes = inputs.choose_sizes(sizes)
    reference = next((method for method in inputs.methods if method.label == baseline), None)
    return (
        averages_table(inputs, model_sizes),
        by_size_table(inputs, model_sizes, SignificanceMarks(reference, correction)),
        ablation_table(inputs, model_sizes),
    )


def test_averages_over_sizes_as_markdown(two_methods):
    assert laid_out(two_methods)[0].to_markdown() == (
        "## Averages over sizes\n"
        "\n"
        "| method | STS-B Spearman | web nDCG@10 | docs nDCG@10 | Average nDCG@10 |\n"
        "| :-- | --: | --: | --: | --: |\n"
        "| new | **0.8000** | **0.6250** | 0.2500 | 0.4375 |\n"
        "| old | 0.7000 | 0.5000 | – | – |\n"
        "\n"
        "- Means over the sizes 2:8, 4:16.\n"
        "- – was not measured. A mean over sizes or data sets in which a figure is missing is missing too.\n"
    )


def test_every_size_as_latex(two_methods):
    assert laid_out(two_methods, "old")[1].to_latex().splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering\small",
        r"\caption{Every size}",
        r"\label{tab:by-size}",
        r"\begin{tabular}{@{}llrrrr@{}}",
        r"\toprule",
        r" &  & \multicolumn{1}{c}{Spearman} & \multicolumn{3}{c}{nDCG@10} \\",
        r"\cmidrule(lr){3-3} \cmidrule(lr){4-6}",
        r"size & method & STS-B & web & docs & Average \\",
        r"\midrule",
        r"2:8 & new & \textbf{0.8000}$^{*}$ & \textbf{0.7500}$^{*}$ & \textbf{0.2500} & \textbf{0.5000} \\",
        r" & old & 0.7000 & 0.5000 & \textbf{0.2500} & 0.3750 \\",
        r"\midrule",
        r"4:16 & new & \textbf{0.8000}$^{*}$ & \textbf{0.5000} & 0.2500 & 0.3750 \\",
        r" & old & 0.7000 & \textbf{0.5000} & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\parbox{\linewidth}{\footnotesize * differs from old (p \textless{} 0.05, two-tailed): "
        r"paired t-test over queries (2 comparisons) and Fisher's z, which takes correlations for independent "
        r"(2 comparisons); no correction. Both methods scored the same pairs, so a test that takes their correlations "
        r"for independent finds fewer differences than one for dependent correlations would, which needs all pairs "
        r"(sts --keep\_pairs true). Not tested, "
        r"and so without a mark: 1 comparisons, because a figure comes without those of single queries. "
        r"Averages are not tested: a test needs a count of queries or pairs, which an average lacks. -- was not measured. An average over data sets in which a "
        r"figure is missing is missing too.}",
        r"\end{table}",
    ]


def test_sizes_side_by_side_as_csv(two_methods):
    assert laid_out(two_methods)[2].to_csv().splitlines() == [
        "data set,method,source,2:8,4:16,Average",
        "STS-B Spearman,new,measured,0.8,0.8,0.8",
        "STS-B Spearman,old,measured,0.7,0.7,0.7",
        "web nDCG@10,new,measured,0.75,0.5,0.625",
        "web nDCG@10,old,measured,0.5,0.5,0.5",
        "docs nDCG@10,new,measured,0.25,0.25,0.25",
        "docs nDCG@10,old,measured,0.25,,",
        "Average nDCG@10,new,measured,0.5,0.375,0.4375",
        "Average nDCG@10,old,measured,0.375,,",
    ]


def test_p_values_are_those_of_the_hand(two_methods):
    table = laid_out(two_methods, "old")[1]
    rows = {(row["size"], row["data set"]): row for row in csv.DictReader(io.StringIO(table.comparisons_to_csv()))}
    assert set(rows) == {(size, name) for size in ("2:8", "4:16") for name in ("web", "STS-B")}
    # Student's t with 3 degrees of freedom has a closed form; here t = sqrt(15).
    t = math.sqrt(15)
    p = 1 - 2 / math.pi * (math.atan(t / math.sqrt(3)) + t * math.sqrt(3) / (3 + t * t))
    assert float(rows["2:8", "web"]["p"]) == pytest.approx(p, abs=1e-9)
    assert float(rows["4:16", "web"]["p"]) == pytest.approx(1.0)
    z = (math.atanh(0.8) - math.atanh(0.7)) / math.sqrt(2 / 997)
    assert float(rows["2:8", "STS-B"]["p"]) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-6)
    assert float(rows["2:8", "web"]["difference"]) == pytest.approx(0.25)
    assert [rows[key]["significant"] for key in (("2:8", "web"), ("4:16", "web"), ("2:8", "STS-B"))] == [
        "true",
        "false",
        "true",
    ]


def test_a_correction_counts_the_methods_compared_on_one_set_at_one_size(two_methods, write):
    third = write(
        "third.json", [Cell("web", "nDCG@10", Size(2, 8), 0.5, 4, values={f"q{i}": 0.5 for i in range(4)})], "third"
    )
    plain = laid_out([*two_methods, third], "old")[1].blocks[0].rows[0].cells[1]
    corrected = laid_out([*two_methods, third], "old", "bonferroni")[1].blocks[0].rows[0].cells[1]
    assert plain.marked
    assert corrected.comparison is not None
    assert corrected.comparison.corrected == pytest.approx(2 * corrected.comparison.p)
    assert not corrected.marked


def test_without_a_baseline_nothing_is_marked(two_methods):
    table = laid_out(two_methods)[1]
    assert not any(cell.comparison for cell in table.cells)
    assert "No baseline was named" in table.notes[0]


def test_different_queries_are_not_compared(write):
    def file(label, name):
        return write(f"{label}.json", [Cell("web", "RR@10", Size(2, 8), 0.5, 2, values={name: 0.5, "b": 0.5})], label)

    table = laid_out([file("x", "a"), file("y", "c")], "y")[1]
    assert not any(cell.comparison for cell in table.cells)
    assert "scored on different queries" in " ".join(table.notes)


def test_a_missing_figure_is_never_zero_and_an_average_over_it_is_missing(two_methods):
    for table in laid_out(two_methods):
        for text in (table.to_markdown(), table.to_latex()):
            assert "0.0000" not in text
            assert "nan" not in text.lower()
    over_sizes = laid_out(two_methods)[0].blocks[0].rows[1]
    assert [cell.value for cell in over_sizes.cells] == [pytest.approx(0.7), 0.5, None, None]


def test_a_figure_that_is_zero_is_shown(write):
    table = laid_out([write("a.json", [Cell("web", "RR@10", Size(2, 8), 0.0, 3)])])[0]
    assert "| ours | 0.0000 |" in table.to_markdown()


def test_a_method_without_sizes_has_a_block_of_its_own_and_a_footnote(two_methods, write):
    bm25 = write("bm25.json", [Cell("web", "nDCG@10", None, 0.4, 4)], "BM25")
    over, each, across = laid_out([*two_methods, bm25])
    assert [block.title for block in each.blocks] == ["2:8", "4:16", "no size"]
    assert [[row.label for row in block.rows] for block in each.blocks] == [["new", "old"]] * 2 + [["BM25"]]
    assert over.blocks[0].rows[2].name == "BM25†"
    assert any(note.startswith("† The files of this method name no size") for note in over.notes)
    assert not any(row.label == "BM25" for block in across.blocks for row in block.rows)


def test_other_sizes_stay_out_unless_requested(two_methods, write):
    from .conftest import grid

    files = [*two_methods, write("grid.json", grid(0.0, (2, 3), (8, 32)), "new2", "grid")]
    assert [block.title for block in laid_out(files)[1].blocks] == ["2:8", "4:16"]
    assert [block.title for block in laid_out(files, sizes="3:32")[1].blocks] == ["3:32"]


def test_the_best_are_all_that_print_as_the_best():
    rows = [
        TableRow(name, (TableCell(value), TableCell(other)))
        for name, value, other in (("a", 0.50004, 0.1), ("b", 0.50001, None))
    ]
    best = mark_best([*rows, TableRow("paper", (TableCell(0.9), TableCell(0.9)), published=True)])
    assert [[cell.best for cell in row.cells] for row in best] == [[True, False], [True, False], [False, False]]


NASTY = 'a_b & 50% $x$ #1 {q} ~ ^ \\ <script>alert("x")</script> | *b* `c` [d](e)\nnext'


def nasty() -> Table:
    return Table("t", NASTY, "", (Heading(NASTY, "m_1"),), (Block("", (TableRow(NASTY, (TableCell(0.5),)),)),), [NASTY])


def test_labels_are_escaped_in_latex():
    text = nasty().to_latex()
    assert (
        r"a\_b \& 50\% \$x\$ \#1 \{q\} \textasciitilde{} \textasciicircum{} \textbackslash{} \textless{}script\textgreater{}"
        in text
    )
    assert text.count("\n") == len(text.splitlines())
    assert all(line.startswith(("%", "\\", "a\\_b", " ", "method")) for line in text.splitlines())


def test_labels_are_escaped_in_markdown():
    lines = nasty().to_markdown().splitlines()
    assert r"a\_b \& 50% \$x\$ \#1 \{q\} \~ ^ \\ \<script\>" in lines[4]
    assert lines[4].replace(r"\|", "").count("|") == 3  # one column and the label: no bar of the label's opens another
    assert r"\*b\* \`c\` \[d\](e) next" in lines[4]


def test_labels_survive_csv():
    rows = list(csv.reader(io.StringIO(nasty().to_csv())))
    assert rows[1] == [NASTY, "measured", "0.5"]


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "+1", "-x", "@SUM(A1)", " =1", "＝1"])
def test_csv_holds_no_formulas(label):
    """Text that a spreadsheet would compute is marked as text, numbers below zero stay numbers."""
    difference = CellComparison(-0.25, 0.5, 0.5, "t")
    row = TableRow(label, (TableCell(-0.5, comparison=difference),))
    table = Table("t", "t", "size", (Heading(label, label),), (Block(label, (row,)),))
    head, figures = csv.reader(io.StringIO(table.to_csv()))
    assert head[3] == "'" + f"{label} {label}".strip() and figures == [f"'{label}", f"'{label}", "measured", "-0.5"]
    _, compared = csv.reader(io.StringIO(table.comparisons_to_csv()))
    assert compared[:5] == [f"'{label}"] * 4 + ["-0.25"]


def test_csv_leaves_other_text_as_it_is():
    table = Table("t", "t", "size", (Heading("a=b"),), (Block("2:8", (TableRow("x-y", (TableCell(1.0),)),)),))
    assert table.to_csv().splitlines() == ["size,method,source,a=b", "2:8,x-y,measured,1.0"]
