"""Tables, figures and one HTML page from result files, in the layouts of the papers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import as_flag_values, flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.metrics.equivalence import check_margin
from starbucks_retrieval.metrics.significance import Correction
from starbucks_retrieval.pages import render_template
from starbucks_retrieval.report.columns import MethodResults, ReportSizes
from starbucks_retrieval.report.comparisons import (
    CORRECTIONS,
    CorrelationTest,
    Family,
    SignificanceMarks,
    differences_table,
)
from starbucks_retrieval.report.cost_figures import latency_figure, pareto_figure
from starbucks_retrieval.report.drawing import Drawing, draw_files, import_matplotlib, inline_svg
from starbucks_retrieval.report.figures import (
    Kpi,
    choose_kpis,
    effectiveness_figure,
    grid_difference_figure,
    grid_figure,
)
from starbucks_retrieval.report.findings import trained_models
from starbucks_retrieval.report.inputs import ReportInputs, Source, read_inputs
from starbucks_retrieval.report.layers import layer_pairs_figure, layer_pairs_table, layers_figure
from starbucks_retrieval.report.layouts import ablation_table, averages_table, by_size_table
from starbucks_retrieval.report.published import NO_PUBLISHED, Published, read_published
from starbucks_retrieval.report.tables import Table
from starbucks_retrieval.sizes import ALIASES_HELP
from starbucks_retrieval.version import __version__

__all__ = ["Report", "ReportArguments", "report"]
__dir__ = public_names(__name__)

_MAX_DETAIL = 4000  # characters of one key of a result file that the page shows


@dataclass
class ReportArguments:
    """Report"""

    input: list[str] = flag(None, "result files of evaluate, sts, transfer, grid; LABEL=file renames", required=True)
    output_dir: str = flag(None, "folder for tables, figures and index.html", required=True)
    sizes: str | None = flag(
        None, f"the sizes of the tables: 2:32,4:64; all; or size aliases (default: those of the files). {ALIASES_HELP}"
    )
    baseline: str | None = flag(None, "label that the others are tested against, by size and data set")
    correction: Correction = flag("none", "for several comparisons; see --family", rare=True)
    family: Family = flag(
        "size", "what it covers: the methods on one data set at one size, or all comparisons of the table", rare=True
    )
    margin: float | None = flag(
        None, "largest difference that does not matter: also tests whether methods are equivalent to the baseline"
    )
    correlation_test: CorrelationTest = flag(
        "fisher", "what marks correlations: fisher as published, or williams where all pairs are kept", rare=True
    )
    measures: list[str] | None = flag(None, "measures to show (default: all in the files)")
    seeds: bool = flag(False, "files of one label are runs of several seeds: show means, test over queries and seeds")
    models: list[str] | None = flag(
        None, "LABEL=folder of methods scored by evaluate: were all trained with the same negatives, data and lengths?"
    )
    strict: bool = flag(False, "fail, and write nothing, where they were not", rare=True)
    published: str | None = flag(None, "reference_results.json: adds the paper's scores, labelled as published")
    title: str = flag("Every size, measured", "title of the page")
    note: list[str] | None = flag(
        None, "sentences below every table, such as what the methods have in common", rare=True
    )
    no_figures: bool = flag(False, "tables and page only; needs no matplotlib")

    def __post_init__(self) -> None:
        as_flag_values(self)


@dataclass(frozen=True)
class Report:
    """Everything that a report shows, and the files that it was written to.

    Attributes:
        title: The heading of the page.
        subtitle: The sentence below it.
        kpis: The large numbers.
        warnings: Serious findings of the preflight, and methods that were not trained alike.
        tables: The tables.
        drawings: The figures; that of effectiveness stands before the tables.
        sources: The result files.
        notes: Sentences about scores that were left out.
        paths: The files, the page last; empty before they are written.
        version: The version of this package.
    """

    title: str
    subtitle: str
    kpis: list[Kpi]
    warnings: list[str]
    tables: list[Table]
    drawings: list[Drawing]
    sources: list[Source]
    notes: list[str]
    paths: tuple[Path, ...] = ()
    version: str = __version__

    def summary(self) -> str:
        """Return one line for a terminal."""
        drawn = f"{len(self.drawings)} figures" if self.drawings else "no figures"
        found = f"; warnings: {len(self.warnings)}, see the page" if self.warnings else ""
        page = self.paths[-1]
        return f"{len(self.tables)} tables and {drawn} in {page.parent}, all of them in {page}{found}"

    def figures(self) -> dict[str, Any]:
        """Return the paths and the names of tables and figures, JSON-ready."""
        return {
            "page": str(self.paths[-1]),
            "paths": [str(path) for path in self.paths],
            "tables": [table.name for table in self.tables],
            "figures": [drawing.name for drawing in self.drawings],
            "warnings": self.warnings,
        }

    def to_html(self) -> str:
        """Return the page: a complete HTML document, which loads nothing. All values are escaped."""
        return render_template("report.html", page=self, inline_svg=inline_svg)

    def sections(self) -> list[tuple[str, str]]:
        """Return (anchor, heading) of each section, in the order of the page."""
        drawings = [(drawing.name, drawing.title) for drawing in self.drawings]
        first = [section for section in drawings if section[0] == "effectiveness"]
        tables = [(f"table-{table.name}", table.title) for table in self.tables]
        rest = [section for section in drawings if section not in first]
        return [*first, *tables, *rest, ("provenance", "Where the figures come from")]

    def source_rows(self) -> list[tuple[str, ...]]:
        """Return method, stage, model, file, digest, version and libraries of each result file."""
        return [_source_row(source) for source in self.sources]

    def file_details(self) -> list[tuple[str, str]]:
        """Return (path, contents besides the scores) of each result file; long contents are only named."""
        return list(dict.fromkeys((source.path, _details(source.more)) for source in self.sources if source.more))


def report(arguments: ReportArguments) -> Report:
    """Write tables, figures and index.html from result files. Equal inputs give equal bytes.

    Each file appears complete or not at all.

    Args:
        arguments: Flags of `report`.

    Raises:
        UserError: A file cannot be read, files contradict each other, a label or size is unknown, or matplotlib is
            missing. Nothing is written then.

    Example:
        >>> report(ReportArguments(["small.json", "big.json"], "page"))  # doctest: +SKIP
    """
    output_dir, margin, baseline = Path(arguments.output_dir), arguments.margin, arguments.baseline
    if arguments.correction not in CORRECTIONS:
        raise UserError(f"there is no correction {arguments.correction!r}", f"take one of {', '.join(CORRECTIONS)}")
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"{output_dir} is a file, a folder is needed", "name another folder with --output_dir")
    if margin is not None:
        check_margin(margin)
        if baseline is None:
            raise UserError("--margin needs something to be on par with", "name it with --baseline")
    models = trained_models(arguments.models or ())
    found = read_inputs(arguments.input, measures=arguments.measures, seeds=arguments.seeds, models=models)
    if arguments.strict and found.unlike:
        raise UserError(found.unlike[0], "train them alike, or leave out --strict")
    model_sizes = found.choose_sizes(arguments.sizes)
    reference = _baseline(found, baseline)
    printed = read_published(arguments.published) if arguments.published else NO_PUBLISHED
    marker = SignificanceMarks(reference, arguments.correction, arguments.family, margin, arguments.correlation_test)
    if not arguments.no_figures:
        import_matplotlib()  # takes a second: paths, labels and sizes are checked before
    tables = [
        replace(table, notes=[*table.notes, *(arguments.note or ())])
        for table in _tables(found, model_sizes, marker, printed)
    ]
    drawings = [] if arguments.no_figures else list(_drawings(found, model_sizes, reference, printed))
    result = Report(
        title=arguments.title,
        subtitle=_describe_inputs(found, model_sizes),
        kpis=choose_kpis(found, model_sizes),
        warnings=[*found.warnings, *found.unlike],
        tables=tables,
        drawings=drawings,
        sources=found.sources,
        notes=found.notes + _left_out_notes(found, model_sizes),
    )
    files = {name: text.encode("utf-8") for table in tables for name, text in table.to_files().items()}
    for drawing in drawings:
        files |= {f"{drawing.name}.{kind}": content for kind, content in draw_files(drawing).items()}
    files["index.html"] = result.to_html().encode("utf-8")
    for name, content in files.items():
        with atomic_writer(output_dir / name) as out:
            out.write(content)
    return replace(result, paths=tuple(output_dir / name for name in files))


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
        if (differences := differences_table(inputs.methods, model_sizes, marker)) is not None:
            yield differences
    if len(model_sizes) > 1:
        yield ablation_table(inputs, model_sizes, published)
    if (pairs := layer_pairs_table(inputs)) is not None:
        yield pairs


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
        layers_figure(inputs),
        grid_difference_figure(inputs, baseline),
        grid_figure(inputs),
        layer_pairs_figure(inputs),
        latency_figure(inputs),
        pareto_figure(inputs),
    )
    return (drawing for drawing in drawn if drawing is not None)


def _describe_inputs(inputs: ReportInputs, model_sizes: ReportSizes) -> str:
    """Return how many methods, data sets and sizes there are, and what a size is."""
    sets = len({column.dataset for column in inputs.columns})
    measured = f"{_count(len(inputs.methods), 'method')} on {_count(sets, 'data set')}"
    if not len(model_sizes):
        return f"{measured}."
    first, last = model_sizes.sizes[0], model_sizes.sizes[-1]
    several = f"at {_count(len(model_sizes), 'size')}, {first} to {last}"
    at = several if len(model_sizes) > 1 else f"at the size {first}"
    return f"{measured} {at}. A size is layer:dim, the embedding after that layer, cut to that many dimensions."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _source_row(source: Source) -> tuple[str, ...]:
    made = source.more.get("provenance")
    made = made if isinstance(made, dict) else {}
    packages = made.get("packages") or {}
    libraries = ", ".join(f"{name} {packages[name]}" for name in ("torch", "transformers") if name in packages)
    return (
        source.label,
        source.kind,
        str(source.more.get("model") or "–"),
        source.path,
        source.digest[:12],
        f"{made.get('starbucks_retrieval') or '–'} {(made.get('git') or '')[:10]}",
        f"Python {made['python']}, {libraries}".rstrip(", ") if made.get("python") else "–",
    )


def _details(more: dict[str, Any]) -> str:
    texts = {key: json.dumps(more[key], ensure_ascii=False, indent=1, sort_keys=True) for key in sorted(more)}
    shown = "\n".join(f"{key}: {text}" for key, text in texts.items() if len(text) <= _MAX_DETAIL)
    long = ", ".join(key for key, text in texts.items() if len(text) > _MAX_DETAIL)
    return shown + (f"\n({long}: too long for this page, see the file)" if long else "")
