from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec

import pytest

from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.cost_figures import cheapest_best, latency_figure, pareto_figure
from starbucks_retrieval.report.drawing import COLOURS, VARIABLES, draw_files, inline_svg, series_styles
from starbucks_retrieval.report.figures import effectiveness_figure, grid_difference_figure, grid_figure
from starbucks_retrieval.report.inputs import read_inputs
from starbucks_retrieval.report.layers import layer_pairs_figure, layers_figure
from starbucks_retrieval.sizes import Size

from .conftest import costs, grid

# Every test process collects every file: the import would cost each of them seconds.
pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the package matplotlib")


@pytest.fixture
def inputs(write):
    files = [write(f"{name}.json", grid(base), name, "grid", costs=costs()) for name, base in (("x", 0.1), ("y", 0.2))]
    return read_inputs(files)


def drawn(panel):
    """Axes that a panel was drawn into."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def test_the_front_keeps_what_nothing_beats():
    assert cheapest_best([(1, 0.5), (2, 0.4), (2, 0.6), (1, 0.3), (3, 0.6), (0.5, 0.1)]) == [5, 0, 2]
    assert cheapest_best([(1, 0.5), (1, 0.5)]) == [0]
    assert cheapest_best([]) == []


def test_a_line_a_method_with_a_gap_where_a_size_is_missing(two_methods):
    inputs = read_inputs(two_methods)
    drawing = effectiveness_figure(inputs, inputs.choose_sizes())
    assert drawing is not None
    assert [panel.title for panel in drawing.panels] == ["STS-B Spearman", "web nDCG@10", "docs nDCG@10"]
    old, new = drawn(drawing.panels[2]).get_lines()  # the first method is drawn last, on top
    assert list(new.get_ydata()) == [0.25, 0.25]
    assert str(old.get_ydata().tolist()) == "[0.25, nan]"
    assert list(drawing.legend) == ["new", "old"]


def test_deltas_are_the_first_grid_less_the_others_or_all_less_the_baseline(inputs):
    for baseline, title, sign in ((None, "x − y", "−"), (inputs.methods[0], "y − x", "+")):
        drawing = grid_difference_figure(inputs, baseline)
        assert drawing is not None
        assert [panel.title for panel in drawing.panels] == [f"{title}: site nDCG@10"]
        axes = drawn(drawing.panels[0])
        assert {text.get_text() for text in axes.texts} == {f"{sign}.100"}
        assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16", "32"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "3"]


def test_no_difference_is_drawn_in_the_middle_of_the_scale(write):
    files = [write(f"{name}.json", grid(0.1), name, "grid") for name in "xy"]
    drawing = grid_difference_figure(read_inputs(files), None)
    assert drawing is not None
    red, green, blue, _ = drawn(drawing.panels[0]).patches[0].get_facecolor()
    assert min(red, green, blue) > 0.95


def test_a_missing_cell_of_a_grid_is_left_open(write):
    drawing = grid_figure(read_inputs([write("x.json", grid(0.1)[:-1], kind="grid")]))
    assert drawing is not None
    assert len(drawn(drawing.panels[0]).patches) == 8


def test_latency_takes_a_layers_largest_dim(inputs):
    drawing = latency_figure(inputs)
    assert drawing is not None
    assert [panel.title.split()[2] for panel in drawing.panels] == ["query,", "passage,"]
    assert list(drawn(drawing.panels[0]).get_lines()[0].get_ydata()) == [2.0, 4.0, 6.0]


def test_pareto_over_bytes_and_milliseconds(inputs):
    drawing = pareto_figure(inputs)
    assert drawing is not None
    assert [panel.alt for panel in drawing.panels] == [
        "site nDCG@10 over bytes, and the front",
        "site nDCG@10 over milliseconds, and the front",
    ]
    line = drawn(drawing.panels[0]).get_lines()[0]
    assert list(line.get_xdata()) == [16, 32, 64]
    assert list(line.get_ydata()) == pytest.approx([0.508, 0.516, 0.532])


def test_a_panel_a_layer_and_a_line_a_method(inputs, write):
    drawing = layers_figure(inputs)
    assert drawing is not None
    assert [panel.title for panel in drawing.panels] == [f"layer {layer}: site nDCG@10" for layer in (1, 2, 3)]
    axes = [drawn(panel) for panel in drawing.panels]
    assert len({one.get_ylim() for one in axes}) == 1  # panels can be compared
    y, x = axes[0].get_lines()
    assert (x.get_ydata() - y.get_ydata()).tolist() == pytest.approx([-0.1] * 3)
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["8", "16", "32"]
    # Grids of one layer have one panel.
    one = [write(f"one{i}.json", grid(0.1 * i, layers=(2,)), f"one{i}", "grid", "grid") for i in range(2)]
    assert [panel.title for panel in layers_figure(read_inputs(one)).panels] == ["layer 2: site nDCG@10"]
    assert layers_figure(read_inputs(one[:1])) is None


def test_query_layers_against_passage_layers_are_a_heat_map(write):
    def cells(layers, dims):
        pairs = [(Size(a, dim), Size(b, dim)) for dim in dims for a in layers for b in layers]
        return [Cell("site", "RR@10", a, a.layer / 10 + b.layer / 100, 9, passage_size=b) for a, b in pairs]

    one = write("one.json", cells((2, 4), (8,))[:-1], "one", "grid")  # without layer 4 against itself
    inputs = read_inputs([one, write("four.json", cells((2, 4, 6), (4, 8, 16, 32)), "four", "grid")])
    drawing = layer_pairs_figure(inputs)
    assert drawing is not None
    titles = [f"four: site RR@10, dim {dim}" for dim in (4, 16, 32)]  # the table has the others
    assert [panel.title for panel in drawing.panels] == ["one: site RR@10, dim 8", *titles]
    first, second, *_ = (drawn(panel) for panel in drawing.panels)
    assert [text.get_text() for text in first.texts] == [".220", ".240", ".420"]
    assert [label.get_text() for label in second.get_yticklabels()] == ["2", "4", "6"]
    assert (second.get_xlabel(), second.get_ylabel()) == ("layer of the passages", "layer of the queries")
    assert first.patches[0].get_facecolor() == second.patches[0].get_facecolor()  # one scale
    assert first.texts[1].get_position()[0] > first.texts[0].get_position()[0]  # passages from left to right


def test_without_grids_and_costs_there_is_nothing_to_draw(two_methods):
    inputs = read_inputs(two_methods)
    assert [
        grid_figure(inputs),
        grid_difference_figure(inputs, None),
        latency_figure(inputs),
        pareto_figure(inputs),
        layers_figure(inputs),
        layer_pairs_figure(inputs),
    ] == [None] * 6


def test_equal_figures_give_equal_bytes(inputs):
    drawing = pareto_figure(inputs)
    assert drawing is not None
    first = draw_files(drawing)
    assert first == draw_files(drawing)
    assert list(first) == ["png", "svg"] and b"<dc:date>" not in first["svg"]


def test_an_inline_figure_takes_its_colours_from_the_page_and_names_nothing_outside(inputs):
    drawing = pareto_figure(inputs)
    assert drawing is not None
    svg = inline_svg(drawing.panels[0], drawing.inches, "pareto-0")
    ElementTree.fromstring(svg)
    assert "http" not in svg
    assert "var(--m0)" in svg
    assert not any(colour in svg for colour in VARIABLES)
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("pareto-0-") for name in ids)
    assert set(re.findall(r"(?:url\(|href=\")#([^\")]+)", svg)) <= set(ids)


def test_labels_are_no_mathematics(write):
    label = "_$x$ & <b>"
    cells = [Cell("web", "RR@10", size, 0.5, 9) for size in (Size(2, 8), Size(4, 16))]
    inputs = read_inputs([write("x.json", cells, label), write("y.json", cells, "y")])
    drawing = effectiveness_figure(inputs, inputs.choose_sizes())
    assert drawing is not None
    assert b"&lt;b&gt;" in draw_files(drawing)["svg"]


def test_a_legend_of_long_labels_is_as_wide_as_its_figure(write, monkeypatch):
    from matplotlib.figure import Figure

    figures, legend = [], Figure.legend
    monkeypatch.setattr(Figure, "legend", lambda self, **more: (figures.append(self), legend(self, **more))[1])
    for width in (20, 90):  # two of the long ones are wider than a panel, and so is one of the longest
        labels = [f"{name * width}" for name in "xyz"]
        files = [
            write(f"{label[:3]}.json", [Cell("web", "RR@10", Size(n, 8), 0.5, 9) for n in (2, 4)], label)
            for label in labels
        ]
        inputs = read_inputs(files)
        drawing = effectiveness_figure(inputs, inputs.choose_sizes())
        assert drawing is not None and len(drawing.panels) == 1
        draw_files(drawing)
        (box,) = [one.get_window_extent() for one in figures[-1].legends]
        page = figures[-1].bbox
        assert 0 <= box.x0 < box.x1 <= page.x1 and box.y0 >= 0
        assert figures[-1].axes[0].get_window_extent().height > 0.5 * page.height


def test_styles_repeat_when_colours_run_out_and_published_ones_are_hollow():
    found = series_styles([str(i) for i in range(9)], ["paper"])
    assert found["8"].colour == COLOURS[0]
    assert found["paper"].published
    assert not found["0"].published
