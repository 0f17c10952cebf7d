"""The tables of a report, and their forms: markdown, LaTeX (booktabs) and csv. The page's template writes the HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from starbucks_retrieval.cli.tables import csv_text, escape_latex, escape_markdown, latex_row, markdown_table
from starbucks_retrieval.metrics.equivalence import Equivalence, verdict

DIGITS = 4
ALPHA = 0.05  # p from which a difference counts as significant
DASH = "–"


@dataclass(frozen=True)
class CellComparison:
    """The test of one score against the baseline's.

    Args:
        delta: The score less the baseline's.
        p: The p-value.
        corrected: The p-value after the correction for several methods.
        test: The name of the test.
        interval: The 95 % confidence interval of delta, not corrected.
        equivalence: The corrected p-values of two one-sided tests with a margin; None without a margin.
        williams: The p-value of Williams' test, where both methods keep the cosines of all pairs.
    """

    delta: float
    p: float
    corrected: float
    test: str
    interval: tuple[float, float] | None = None
    equivalence: Equivalence | None = None
    williams: float | None = None

    @property
    def sign(self) -> str:
        """`*` if the score differs significantly, then `=` if it is equivalent, or `≥` if it is not inferior."""
        found = verdict(self.equivalence, ALPHA) if self.equivalence else "open"
        return "*" * self.significant + {"equivalent": "=", "not inferior": "≥"}.get(found, "")

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below 0.05."""
        return self.corrected < ALPHA


@dataclass(frozen=True)
class TableCell:
    """One score of a table.

    Args:
        value: The score; None where it is missing.
        best: Whether no other measured row of the block has a higher one in this column.
        comparison: The test against the baseline, if there was one.
        shown: Its text, where it is more than four decimals.
    """

    value: float | None = None
    best: bool = False
    comparison: CellComparison | None = None
    shown: str | None = None

    @property
    def text(self) -> str:
        """The score with four decimals, without marks; a dash where it is missing."""
        return DASH if self.value is None else self.shown or f"{self.value:.{DIGITS}f}"

    @property
    def sign(self) -> str:
        """The signs of the test behind the score."""
        return self.comparison.sign if self.comparison else ""

    @property
    def marked(self) -> bool:
        """Whether the score differs significantly from the baseline's."""
        return self.comparison is not None and self.comparison.significant

    def to_markdown(self, published: bool) -> str:
        """Return the score in bold if it is the best, in italics if it is published, with `*` if it is significant."""
        if published and self.value is not None:
            return f"_{self.text}_"
        return (f"**{self.text}**" if self.best else self.text) + self.sign.replace("*", r"\*")

    def to_latex(self, published: bool) -> str:
        """Return the score as `to_markdown` does, in LaTeX."""
        if self.value is None:
            return "--"
        if published:
            return rf"\textit{{{self.text}}}"
        sign = self.sign.replace("≥", r"\geq")
        text = self.text.replace("±", r"$\pm$")
        return (rf"\textbf{{{text}}}" if self.best else text) + (f"$^{{{sign}}}$" if sign else "")


@dataclass(frozen=True)
class Heading:
    """The heading of a column.

    Attributes:
        name: A data set or a size.
        group: The measure above it.
        average: Whether the column holds averages over others.
    """

    name: str
    group: str = ""
    average: bool = False

    @property
    def full(self) -> str:
        """The name and the measure, for a header of one line."""
        return f"{self.name} {self.group}".strip()


@dataclass(frozen=True)
class TableRow:
    """The scores of a method.

    Attributes:
        label: The method.
        cells: One for each heading of the table.
        published: Whether the scores come from a paper.
        baseline: Whether the other methods are tested against this one.
        note: The sign of a footnote.
    """

    label: str
    cells: tuple[TableCell, ...]
    published: bool = False
    baseline: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The label with its footnote sign, and whether the row is published."""
        return f"{self.label}{self.note} (published)" if self.published else f"{self.label}{self.note}"


@dataclass(frozen=True)
class Block:
    """Rows that are compared with each other; `title` is empty in a table of one block."""

    title: str
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class Table:
    """One table of a report.

    Args:
        name: The stem of its files.
        title: Its caption.
        corner: What the titles of the blocks are (`size`, `data set`); empty in a table of one block.
        headings: One for each column of scores.
        blocks: The rows, grouped.
        notes: Sentences below the table.
        rows: What the names of the rows are.
    """

    name: str
    title: str
    corner: str
    headings: tuple[Heading, ...]
    blocks: tuple[Block, ...]
    notes: list[str] = field(default_factory=list)
    rows: str = "method"

    def spans(self) -> list[tuple[str, int, int]]:
        """Return (measure, first column, last column) for neighbouring columns of one measure."""
        found: list[tuple[str, int, int]] = []
        for column, heading in enumerate(self.headings):
            if found and found[-1][0] == heading.group:
                found[-1] = (heading.group, found[-1][1], column)
            else:
                found.append((heading.group, column, column))
        return found

    @property
    def cells(self) -> Iterable[TableCell]:
        """The measured cells; published rows are left out."""
        return (cell for block in self.blocks for row in block.rows if not row.published for cell in row.cells)

    @property
    def compared(self) -> bool:
        """Whether any score was tested against the baseline's; the table of differences repeats these tests."""
        return self.name != "differences" and any(cell.comparison for cell in self.cells)

    def file_names(self) -> list[str]:
        """Return the names of the files that `to_files` returns."""
        return [f"{self.name}.{suffix}" for suffix in ("md", "tex", "csv")] + ["comparisons.csv"] * self.compared

    def to_files(self) -> dict[str, str]:
        """Return the table in all forms, by file name."""
        forms = [self.to_markdown(), self.to_latex(), self.to_csv(), self.comparisons_to_csv()]
        return dict(zip(self.file_names(), forms))  # the comparisons come last, and only where there are some

    def to_markdown(self) -> str:
        """Return a heading, a pipe table and the notes; best scores are bold, published rows in italics."""
        corner = [self.corner] if self.corner else []
        rows = [[escape_markdown(text) for text in (*corner, self.rows, *(heading.full for heading in self.headings))]]
        for block in self.blocks:
            for number, row in enumerate(block.rows):
                first = [escape_markdown(block.title) if number == 0 else ""] if corner else []
                name = escape_markdown(row.name)
                scores = [cell.to_markdown(row.published) for cell in row.cells]
                rows.append([*first, f"_{name}_" if row.published else name, *scores])
        lines = [f"## {escape_markdown(self.title)}", "", *markdown_table(rows, "l" * (len(corner) + 1) + "r")]
        if self.notes:
            lines += ["", *(f"- {escape_markdown(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return a table environment for the package booktabs, with a line of measures where there are several."""
        corner = [self.corner] if self.corner else []
        names = len(corner) + 1  # columns before the first score
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}[t]",
            r"\centering\small",
            rf"\caption{{{escape_latex(self.title)}}}",
            rf"\label{{tab:{self.name.replace('_', '-')}}}",
            rf"\begin{{tabular}}{{@{{}}{'l' * names}{'r' * len(self.headings)}@{{}}}}",
            r"\toprule",
        ]
        spans = self.spans()
        if any(name for name, _, _ in spans):
            groups = [
                rf"\multicolumn{{{last - first + 1}}}{{c}}{{{escape_latex(name)}}}" for name, first, last in spans
            ]
            lines.append(latex_row([*[""] * names, *groups]))
            rules = [rf"\cmidrule(lr){{{first + names + 1}-{last + names + 1}}}" for _, first, last in spans]
            lines.append(" ".join(rules))
        lines.append(latex_row(map(escape_latex, (*corner, self.rows, *(heading.name for heading in self.headings)))))
        for block in self.blocks:
            lines.append(r"\midrule")
            for number, row in enumerate(block.rows):
                first_cells = [escape_latex(block.title) if number == 0 else ""] if corner else []
                name = escape_latex(row.name)
                scores = [cell.to_latex(row.published) for cell in row.cells]
                lines.append(latex_row([*first_cells, rf"\textit{{{name}}}" if row.published else name, *scores]))
        lines += [r"\bottomrule", r"\end{tabular}"]
        if self.notes:
            notes = " ".join(escape_latex(note) for note in self.notes)
            lines.append(rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {notes}}}")
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def to_csv(self) -> str:
        """Return the scores with all their digits; the column `source` tells published rows from measured ones."""
        corner = [self.corner] if self.corner else []
        rows: list[list[str | float | None]] = [[*corner, self.rows, "source", *(head.full for head in self.headings)]]
        for block in self.blocks:
            for row in block.rows:
                source = "published" if row.published else "measured"
                first = [block.title] if corner else []
                rows.append([*first, row.label, source, *(cell.value for cell in row.cells)])
        return csv_text(rows)

    def comparisons_to_csv(self) -> str:
        """Return every test behind the marks, with the interval of the difference and the p-values of equivalence."""
        names = ["method", "data set", "measure", "difference", "p", "p_corrected", "significant", "test"]
        more_names = ["low", "high", "p_williams", "p_non_inferior", "p_equivalent"]
        rows: list[list[str | float | None]] = [[self.corner, *names, *more_names]]
        for block in self.blocks:
            for row in block.rows:
                for heading, cell in zip(self.headings, row.cells):
                    if (test := cell.comparison) is not None:
                        texts = (block.title, row.label, heading.name, heading.group)
                        significant = str(test.significant).lower()
                        more = [*(test.interval or (None, None)), test.williams, *(test.equivalence or (None, None))]
                        rows.append([*texts, test.delta, test.p, test.corrected, significant, test.test, *more])
        return csv_text(rows)
