from __future__ import annotations

import json
import math

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.columns import Column, group_columns, is_grid
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.report.layers import layer_pairs_table
from starbucks_retrieval.sizes import Size, Sizes

from .conftest import grid

WEB = Column("web", "RR@10")


SMALL = Size(2, 8)


def cell(value: float, size: Size | None = SMALL, **more) -> Cell:
    return Cell("web", "RR@10", size, value, 4, **more)


def test_files_of_one_label_are_merged(write):
    write("a.json", [cell(0.5)])
    inputs = read_inputs([write("a.json", [cell(0.5)]), write("b.json", [cell(0.7, Size(4, 16))])])
    assert [method.label for method in inputs.methods] == ["ours"]
    assert inputs.methods[0].sizes(WEB) == [Size(2, 8), Size(4, 16)]
    assert len(inputs.sources) == 2


def test_a_label_on_the_command_line_renames(write):
    path = write("a.json", [cell(0.5)])
    assert [method.label for method in read_inputs([f"Star bucks={path}", path]).methods] == ["Star bucks", "ours"]


def test_an_equals_sign_in_a_path_is_no_label(write):
    assert read_inputs([write("x=1.json", [cell(0.5)])]).methods[0].label == "ours"


def test_a_contradiction_names_both_files(write):
    first, second = write("a.json", [cell(0.5)]), write("b.json", [cell(0.51)])
    with pytest.raises(UserError) as caught:
        read_inputs([first, second])
    assert first in caught.value.what
    assert second in caught.value.what
    assert "web RR@10 at 2:8 is 0.500000" in caught.value.what
    assert "LABEL=" in caught.value.hint


def test_the_same_value_over_another_count_is_a_contradiction(write):
    other = Cell("web", "RR@10", Size(2, 8), 0.5, 5)
    with pytest.raises(UserError, match="over 4"):
        read_inputs([write("a.json", [cell(0.5)]), write("b.json", [other])])


def test_of_equal_figures_the_one_with_single_queries_is_kept(write):
    bare, full = write("a.json", [cell(0.5)]), write("b.json", [cell(0.5 + 1e-9, values={"q": 0.5})])
    for order in ([bare, full], [full, bare]):
        found = read_inputs(order).methods[0].cell(WEB, Size(2, 8))
        assert found is not None
        assert found.values == {"q": 0.5}


def test_nan_is_missing_and_gives_way_to_a_number(write):
    nan, number = write("a.json", [cell(math.nan)]), write("b.json", [cell(0.5)])
    assert read_inputs([nan, write("c.json", [cell(1, None)])]).methods[0].value(WEB, Size(2, 8)) is None
    for order in ([nan, number], [number, nan]):
        assert read_inputs(order).methods[0].value(WEB, Size(2, 8)) == 0.5


def test_a_file_of_several_methods_gives_several_and_takes_no_label(write):
    path = write("a.json", [cell(0.5, label="x"), cell(0.6, label="y")])
    assert [method.label for method in read_inputs([path]).methods] == ["x", "y"]
    with pytest.raises(UserError, match=r"holds several methods \(x, y\)"):
        read_inputs([f"z={path}"])


def test_cells_of_two_sizes_stand_at_the_queries_size(write):
    cells = [cell(0.4, passage_size=Size(4, 8)), cell(0.5, Size(4, 8))]
    inputs = read_inputs([write("a.json", cells)])
    assert inputs.left_out == 0
    assert inputs.methods[0].value(WEB, Size(2, 8)) == 0.4
    assert [note for note in inputs.notes if note.endswith("(queries/passages): 2:8/4:8.")]
    with pytest.raises(
        UserError, match=r"at 2:8/4:8 is 0\.4.* but 0\.4.* over 4 at 2:8 in"
    ):  # one label for two pairs of sizes
        read_inputs([write("a.json", cells), write("b.json", [cell(0.4)])])


def test_cells_of_two_sizes_are_left_out_and_counted(write):
    cells = [cell(0.5), cell(0.4, passage_size=Size(4, 16)), cell(0.5, Size(4, 16), passage_size=Size(4, 16))]
    inputs = read_inputs([write("a.json", cells)])
    assert inputs.left_out == 1
    assert inputs.methods[0].value(WEB, Size(2, 8)) == 0.5
    assert layer_pairs_table(inputs) is None


def test_queries_of_one_layer_against_passages_of_another_make_a_matrix(write):
    cells = [
        cell(value, Size(side, 8), passage_size=Size(layer, 8))
        for (side, layer), value in {(0, 0): 0.1, (0, 4): 0.2, (4, 0): 0.3, (4, 4): 0.4}.items()
    ]
    pairs = [cell(0.5, Size(0, 16), passage_size=Size(2, 16)), cell(0.6, Size(0, 16), passage_size=Size(4, 16))]
    inputs = read_inputs([write("a.json", [*cells[1:], *pairs, cell(0.1, Size(0, 8))], kind="grid")])
    assert inputs.left_out == 0
    table = layer_pairs_table(inputs)
    assert [heading.full for heading in table.headings] == [f"layer {layer} passages" for layer in (0, 2, 4)]
    assert [[c.value for c in row.cells] for row in table.blocks[0].rows] == [[0.1, None, 0.2], [0.3, None, 0.4]]
    assert [[c.value for c in row.cells] for row in table.blocks[1].rows] == [[None, 0.5, 0.6]]
    assert table.blocks[0].title.endswith("dim 8") and table.blocks[0].rows[0].name == "layer 0"
    assert "| queries |" in table.to_markdown()


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("", "is a folder|cannot"),
        ("=a.json", "cannot read --input"),
        ("x=", "cannot read --input"),
        ("no.json", "no file"),
    ],
)
def test_bad_specs_are_user_errors(spec, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=what):
        read_inputs([spec])


def test_nothing_at_all_and_no_cells_are_user_errors(write):
    with pytest.raises(UserError, match="no result file"):
        read_inputs([])
    with pytest.raises(UserError, match="holds no figures"):
        read_inputs([write("a.json", [])])


def test_deltas_are_refused(write):
    with pytest.raises(UserError, match="differences of two grids"):
        read_inputs([write("a.json", [cell(0.5)], kind="deltas")])


def test_damaged_costs_name_the_file(write):
    for costs in ({"2:8": {"query_ms": "soon"}}, {"2:8": {"query_ms": 10**400}}, {"28": {}}, [1], {"2:8": 3}):
        path = write("a.json", [cell(0.5)], costs=costs)
        with pytest.raises(UserError, match=r"a\.json: damaged costs"):
            read_inputs([path])


def test_the_first_costs_count_and_that_is_said(write):
    first = write("a.json", [cell(0.5)], costs={"2:8": {"query_ms": 1.0}})
    second = write("b.json", [cell(0.5)], costs={"2:8": {"query_ms": 9.0}})
    inputs = read_inputs([first, second])
    assert inputs.methods[0].costs[Size(2, 8)].query_ms == 1.0
    assert "b.json are ignored" in inputs.notes[0]


def test_findings_of_a_preflight_become_warnings(write):
    findings = {"web": {"1:8": ["hubs"], "1:16": ["hubs"], "2:8": ["hubs"], "2:16": ["hubs", "cut_off"]}}
    inputs = read_inputs([write("a.json", [cell(0.5)], findings=findings)])
    assert inputs.warnings == ["ours, web at 1:8, 1:16, 2:8 and 1 more sizes: hubs", "ours, web at 2:16: cut off"]


def test_findings_of_evaluate_become_warnings_of_their_own_method(write):
    def run(label: str, *serious: bool) -> dict:
        findings = [{"kind": "hubs", "what": f"hubs in {label}", "serious": one} for one in serious]
        return {"label": label, "size": "2:8", "dataset": "web", "findings": findings}

    both = write("a.json", [cell(0.5, label="x"), cell(0.6, label="y")], runs=[run("x", False), run("y", True, False)])
    assert read_inputs([both]).warnings == ["y, web at 2:8: hubs in y"]
    one = write("b.json", [cell(0.5)], "x", runs=[run("x", True)])
    assert read_inputs([f"renamed={one}"]).warnings == ["renamed, web at 2:8: hubs in x"]


def test_what_a_grid_is():
    assert is_grid(Size(layer, dim) for layer in (2, 4) for dim in (8, 16))
    assert not is_grid([Size(2, 8), Size(4, 16), Size(6, 16)])
    assert not is_grid(Size(6, dim) for dim in (8, 16, 32))
    assert not is_grid([])


def test_sizes_are_those_of_files_that_hold_a_list(write):
    files = [
        write("grid.json", grid(0.1), kind="grid"),
        write("a.json", [cell(0.5, Size(1, 8)), cell(0.6, Size(3, 32))]),
    ]
    model_sizes = read_inputs(files).choose_sizes()
    assert list(model_sizes) == [Size(1, 8), Size(3, 32)]
    assert model_sizes.name(Size(1, 8)) == "1:8"


def test_a_grid_alone_gives_the_default_sizes_on_it(write):
    cells = grid(0.0, layers=(2, 4, 6, 8, 10, 12), dims=(8, 16, 32, 64, 128, 256, 512, 768))
    model_sizes = read_inputs([write("grid.json", cells, kind="grid")]).choose_sizes()
    assert tuple(model_sizes) == tuple(Sizes.default(12, 768))
    assert [model_sizes.name(size) for size in model_sizes][:2] == ["Demi 2:32", "Short 4:64"]


DIMS = (8, 16, 32, 64, 128, 256, 512, 768)


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "sts", "layout": "grid"},
        {"kind": "grid"},
        {"kind": "sts", "provenance": {"configuration": {"grid": True, "layers": "2"}}},  # as 0.1 wrote them
        {"kind": "evaluate"},  # neither says it: together they are a grid
    ],
    ids=["said", "of grid", "by the flags", "by the sizes"],
)
def test_grids_of_one_layer_each_are_a_grid_when_they_are_combined(write, said):
    files = [write(f"{n}.json", grid(0.0, (n,), DIMS), **said) for n in (2, 4, 6, 8, 10, 12)]
    assert tuple(read_inputs(files).choose_sizes()) == tuple(Sizes.default(12, 768))


def test_a_grid_of_one_layer_is_shown_whole(write):
    inputs = read_inputs([write("2.json", grid(0.0, (2,), DIMS), kind="sts", layout="grid")])
    assert list(inputs.choose_sizes()) == [Size(2, dim) for dim in DIMS]


def test_lists_of_one_size_each_stay_a_list_beside_a_grid(write):
    sizes = list(Sizes.default(6, 384))
    files = [write(f"{size.layer}.json", [cell(0.5, size)]) for size in sizes]
    files.append(write("grid.json", grid(0.0, (2,), DIMS), "theirs", kind="sts", layout="grid"))
    assert list(read_inputs(files).choose_sizes()) == sizes


def test_a_list_that_crosses_layers_and_dims_is_no_grid(write):
    crossing = [Size(2, 8), Size(2, 16), Size(4, 8), Size(4, 16)]
    inputs = read_inputs([write("a.json", [cell(0.5, size) for size in crossing], kind="sts", layout="list")])
    assert list(inputs.choose_sizes()) == crossing


def test_requested_sizes_need_not_be_listed(write):
    files = [write("grid.json", grid(0.1), kind="grid"), write("a.json", [cell(0.5, Size(1, 8))])]
    assert list(read_inputs(files).choose_sizes("2:8,3:16")) == [Size(2, 8), Size(3, 16)]
    with pytest.raises(UserError, match="nothing was measured at 5:8"):
        read_inputs(files).choose_sizes("5:8")


def test_aliases_need_all_six_default_sizes(write):
    six = [cell(0.5, size) for size in Sizes.default(6, 384)]
    inputs = read_inputs([write("a.json", six)])
    assert list(inputs.choose_sizes("demi,trenta")) == [Size(1, 16), Size(6, 384)]
    assert inputs.choose_sizes("demi").name(Size(1, 16)) == "Demi 1:16"
    other = [cell(0.5, Size(layer, 8 * layer)) for layer in range(1, 7)]
    assert read_inputs([write("b.json", other)]).choose_sizes().aliases == {}


def test_forums_are_one_data_set(write):
    def scored(name: str, value: float) -> Cell:
        return Cell(name, "nDCG@10", SMALL, value, 10, values={"q": value})

    forums = [scored("beir/cqadupstack/gis", 0.2), scored("beir/cqadupstack/tex", 0.4)]
    files = [write("a.json", [*forums, scored("scifact", 0.7)]), write("b.json", forums[:1], "other")]
    inputs = read_inputs(files)
    whole = Column("beir/cqadupstack", "nDCG@10")
    assert set(inputs.columns) == {whole, Column("scifact", "nDCG@10")}
    found = inputs.methods[0].cell(whole, SMALL)
    assert found is not None and found.value == pytest.approx(0.3) and found.count == 20
    assert inputs.methods[1].cell(whole, SMALL) is None  # it lacks one of them
    assert inputs.notes == [
        "beir/cqadupstack is the mean over 2 data sets: beir/cqadupstack/gis, beir/cqadupstack/tex."
    ]


def test_columns_stand_in_the_papers_order_and_averages_stay_inside_a_measure():
    columns = [
        Column("x", "RR@10"),
        Column("sts12", "spearman"),
        Column("dl19", "nDCG@10"),
        Column("STS-B", "spearman"),
    ]
    assert [(group.measure, [column.dataset for column in group.columns]) for group in group_columns(columns)] == [
        ("spearman", ["STS-B", "sts12"]),
        ("nDCG@10", ["dl19"]),
        ("RR@10", ["x"]),
    ]


def test_the_file_format_survives_unknown_keys(write, tmp_path):
    path = write("a.json", [cell(0.5)])
    content = json.loads((tmp_path / "a.json").read_text()) | {"later": {"unknown": 1}}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert read_inputs([path]).sources[0].more["later"] == {"unknown": 1}
