"""report(): result files in, tables, figures and one HTML page out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.significance import Correction
from starbucks_retrieval.report.columns import ReportSizes
from starbucks_retrieval.report.cost_figures import latency_figure, pareto_figure
from starbucks_retrieval.report.drawing import Drawing, draw_file, import_matplotlib
from starbucks_retrieval.report.figures import effectiveness_figure, grid_difference_figure, grid_figure
from starbucks_retrieval.report.inputs import MethodResults, ReportInputs, read_inputs
from starbucks_retrieval.report.layouts import ablation_table, averages_table, by_size_table
from starbucks_retrieval.report.page import ReportPage, choose_kpis, describe_inputs, render_report_page
from starbucks_retrieval.report.published import NO_PUBLISHED, Published, read_published
from starbucks_retrieval.report.significance import CORRECTIONS, SignificanceMarks
from starbucks_retrieval.report.tables import Table
from starbucks_retrieval.version import __version__


@dataclass(frozen=True)
class Report:
    """A finished report: its tables and figures, the warnings on its page, and the files it was written to, the page last."""

    tables: list[Table]
    drawings: list[Drawing]
    warnings: list[str]
    paths: list[Path]

    def summary(self) -> str:
        """Return one line for a terminal."""
        drawn = f"{len(self.drawings)} figures" if self.drawings else "no figures"
        found = f"; the preflight's findings: {len(self.warnings)}, see the page" if self.warnings else ""
        return (
            f"{len(self.tables)} tables and {drawn} in {self.paths[-1].parent}, all of them in {self.paths[-1]}{found}"
        )

    def figures(self) -> dict[str, Any]:
        """Return the paths and the names of tables and figures, JSON-ready."""
        return {
            "page": str(self.paths[-1]),
            "paths": [str(path) for path in self.paths],
            "tables": [table.name for table in self.tables],
            "figures": [drawing.name for drawing in self.drawings],
            "warnings": self.warnings,
        }


def report(
    inputs: str | Path | Sequence[str | Path],
    output_dir: str | Path,
    *,
    sizes: str | None = None,
    baseline: str | None = None,
    correction: Correction = "none",
    published: str | Path | None = None,
    title: str = "Every size, measured",
    note: Sequence[str] | None = None,
    no_figures: bool = False,
) -> Report:
    """Write tables, figures and index.html from result files. Equal inputs give equal bytes.

    Args:
        inputs: Result files of evaluate, sts, transfer or grid, each `path` or `LABEL=path`.
        output_dir: The folder for all files. Each file appears complete or not at all.
        sizes: The sizes of the tables (`2:32,4:64`, `all`, size aliases); by default those of the files.
        baseline: The label that the others are tested against, by size and data set.
        correction: The correction for several methods on one data set at one size.
        published: A reference_results.json, whose scores of the paper are added to the tables.
        title: The heading of the page.
        note: Sentences below every table.
        no_figures: Write tables and page only, without matplotlib.

    Raises:
        UserError: A file cannot be read, files contradict each other, a label or size is unknown, or matplotlib is
            missing. Nothing is written then.
    """
    specs = [inputs] if isinstance(inputs, str | Path) else inputs
    if correction not in CORRECTIONS:
        raise UserError(f"there is no correction {correction!r}", f"take one of {', '.join(CORRECTIONS)}")
    if Path(output_dir).exists() and not Path(output_dir).is_dir():
        raise UserError(f"{output_dir} is a file, a folder is needed", "name another folder with --output_dir")
    if not no_figures:
        import_matplotlib()
    found = read_inputs(specs)
    model_sizes = found.choose_sizes(sizes)
    reference = _baseline(found, baseline)
    printed = read_published(published) if published else NO_PUBLISHED
    tables = [
        replace(table, notes=[*table.notes, *(note or ())])
        for table in _tables(found, model_sizes, SignificanceMarks(reference, correction), printed)
    ]
    drawings = [] if no_figures else list(_drawings(found, model_sizes, reference, printed))
    page = ReportPage(
        title=title,
        subtitle=describe_inputs(found, model_sizes),
        kpis=choose_kpis(found, model_sizes),
        warnings=found.warnings,
        tables=tables,
        drawings=drawings,
        sources=found.sources,
        notes=found.notes + _left_out_notes(found, model_sizes),
        version=__version__,
    )
    files = {name: text.encode("utf-8") for table in tables for name, text in table.to_files().items()}
    files |= {f"{drawing.name}.{kind}": draw_file(drawing, kind) for drawing in drawings for kind in ("png", "svg")}
    files["index.html"] = render_report_page(page).encode("utf-8")
    paths = [_write(Path(output_dir) / name, content) for name, content in files.items()]
    return Report(tables, drawings, found.warnings, paths)


def _baseline(inputs: ReportInputs, label: str | None) -> MethodResults | None:
    if label is None:
        return None
    for method in inputs.methods:
        if method.label == label:
            return method
    labels = ", ".join(method.label for method in inputs.methods)
    raise UserError(f"no input has the label {label!r}", f"--baseline takes one of: {labels}")


def _tables(
    inputs: ReportInputs, model_sizes: ReportSizes, marker: SignificanceMarks, published: Published
) -> Iterable[Table]:
    if len(model_sizes):
        yield averages_table(inputs, model_sizes, published)
    if len(model_sizes) or any(size is None for method in inputs.methods for _, size in method.cells):
        yield by_size_table(inputs, model_sizes, marker, published)
    if len(model_sizes) > 1:
        yield ablation_table(inputs, model_sizes, published)


def _left_out_notes(inputs: ReportInputs, model_sizes: ReportSizes) -> list[str]:
    """Return sentences about scores that no table shows."""
    known = [size for method in inputs.methods for _, size in method.cells if size is not None]
    count = sum(size not in model_sizes.sizes for size in known)
    notes = []
    if count:
        notes.append(f"{count} figures at other sizes are in none of the tables (--sizes names the sizes to show).")
    if inputs.left_out:
        notes.append(f"{inputs.left_out} figures of queries and passages at different sizes are not shown here.")
    return notes


def _drawings(
    inputs: ReportInputs, model_sizes: ReportSizes, baseline: MethodResults | None, published: Published
) -> Iterable[Drawing]:
    drawn = (
        effectiveness_figure(inputs, model_sizes, published),
        grid_difference_figure(inputs, baseline),
        grid_figure(inputs),
        latency_figure(inputs),
        pareto_figure(inputs),
    )
    return (drawing for drawing in drawn if drawing is not None)


def _write(path: Path, content: bytes) -> Path:
    with atomic_writer(path) as out:
        out.write(content)
    return path
