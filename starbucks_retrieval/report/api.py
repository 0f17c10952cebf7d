"""From result files to tables, figures and a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.significance import Correction
from starbucks_retrieval.report.cost_figures import latency, pareto
from starbucks_retrieval.report.drawing import Drawing, image, import_matplotlib
from starbucks_retrieval.report.figures import effectiveness, grid_deltas, grid_values
from starbucks_retrieval.report.inputs import Inputs, MethodResults, read_inputs
from starbucks_retrieval.report.layouts import ablation, averages, by_size
from starbucks_retrieval.report.page import ReportPage, render_page
from starbucks_retrieval.report.published import NO_PUBLISHED, Published, read_published
from starbucks_retrieval.report.significance import CORRECTIONS, SignificanceMarks
from starbucks_retrieval.report.size_list import ReportSizes, choose_report_sizes
from starbucks_retrieval.report.summary import kpis, lead
from starbucks_retrieval.report.tables import Table
from starbucks_retrieval.version import __version__


@dataclass(frozen=True)
class Report:
    """What was laid out, and the files it was written to, the page last."""

    tables: list[Table]
    drawings: list[Drawing]
    warnings: list[str]
    paths: list[Path]

    def summary(self) -> str:
        """A line for people."""
        drawn = f"{len(self.drawings)} figures" if self.drawings else "no figures"
        found = f"; the preflight's findings: {len(self.warnings)}, see the page" if self.warnings else ""
        return (
            f"{len(self.tables)} tables and {drawn} in {self.paths[-1].parent}, all of them in {self.paths[-1]}{found}"
        )

    def figures(self) -> dict[str, Any]:
        """For JSON: the paths, and the names of tables and figures."""
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
    """Read result files, each `LABEL=path` or `path`, and write tables, figures and index.html to `output_dir`.

    `sizes` are the ladder that tables show (`2:32,4:64`, `all`, cup names); by default that of the files. `baseline`
    is the label that others are tested against, by size and data set. `published` is a reference_results.json.
    Each `note` is a sentence that stands under every table.
    Every file appears whole or not at all, and equal inputs give equal bytes.

    Raises UserError for bad files, contradicting files, unknown labels and sizes, and where matplotlib is missing,
    before anything is written.
    """
    specs = [inputs] if isinstance(inputs, str | Path) else inputs
    if correction not in CORRECTIONS:
        raise UserError(f"there is no correction {correction!r}", f"take one of {', '.join(CORRECTIONS)}")
    if Path(output_dir).exists() and not Path(output_dir).is_dir():
        raise UserError(f"{output_dir} is a file, a folder is needed", "name another place with --output_dir")
    if not no_figures:
        import_matplotlib()
    found = read_inputs(specs)
    model_sizes = choose_report_sizes(found, sizes)
    reference = _baseline(found, baseline)
    printed = read_published(published) if published else NO_PUBLISHED
    laid_out = _tables(found, model_sizes, SignificanceMarks(reference, correction), printed)
    tables = [replace(table, notes=[*table.notes, *(note or ())]) for table in laid_out]
    drawings = [] if no_figures else list(_drawings(found, model_sizes, reference, printed))
    page = ReportPage(
        title, lead(found, model_sizes), kpis(found, model_sizes), found.warnings, tables, drawings, found.sources, found.notes + _left_out(found, model_sizes), __version__
    )  # fmt: skip
    files = {name: text.encode("utf-8") for table in tables for name, text in table.to_files().items()}
    files |= {f"{drawing.name}.{kind}": image(drawing, kind) for drawing in drawings for kind in ("png", "svg")}
    files["index.html"] = render_page(page).encode("utf-8")
    paths = [_write(Path(output_dir) / name, content) for name, content in files.items()]
    return Report(tables, drawings, found.warnings, paths)


def _baseline(inputs: Inputs, label: str | None) -> MethodResults | None:
    if label is None:
        return None
    for method in inputs.methods:
        if method.label == label:
            return method
    labels = ", ".join(method.label for method in inputs.methods)
    raise UserError(f"no input has the label {label!r}", f"--baseline takes one of: {labels}")


def _tables(
    inputs: Inputs, model_sizes: ReportSizes, marker: SignificanceMarks, published: Published
) -> Iterable[Table]:
    known = {size for method in inputs.methods for _, size in method.cells}
    if len(model_sizes):
        yield averages(inputs, model_sizes, published)
    if len(model_sizes) or None in known:
        yield by_size(inputs, model_sizes, marker, published)
    if len(model_sizes) > 1:
        yield ablation(inputs, model_sizes, published)


def _left_out(inputs: Inputs, model_sizes: ReportSizes) -> list[str]:
    """Sentences about cells that no table shows."""
    off = sum(
        1 for method in inputs.methods for _, size in method.cells if size is not None and size not in model_sizes.sizes
    )
    notes = []
    if off:
        notes.append(f"{off} figures at sizes off the tables' ladder are in none of the tables (--sizes names others).")
    if inputs.asymmetric:
        notes.append(f"{inputs.asymmetric} figures of queries and passages at different sizes are not shown here.")
    return notes


def _drawings(
    inputs: Inputs, model_sizes: ReportSizes, baseline: MethodResults | None, published: Published
) -> Iterable[Drawing]:
    drawn = (
        effectiveness(inputs, model_sizes, published),
        grid_deltas(inputs, baseline),
        grid_values(inputs),
        latency(inputs),
        pareto(inputs),
    )
    return (drawing for drawing in drawn if drawing is not None)


def _write(path: Path, content: bytes) -> Path:
    with atomic_writer(path) as out:
        out.write(content)
    return path
