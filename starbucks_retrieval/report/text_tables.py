"""Tables as markdown, LaTeX (booktabs) and csv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from starbucks_retrieval.report.tables import DASH, Block, Entry, Table, TableRow

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    DASH: "--",
    "−": "$-$",
    "†": r"$\dagger$",
    "…": r"\dots{}",
}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is; line breaks and other white space become single spaces."""
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def escape_markdown(text: str) -> str:
    """Text that markdown, and the HTML that may stand in it, prints as it is, also inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def markdown(table: Table) -> str:
    """A heading, a pipe table and the notes; best figures bold, published rows in italics."""
    corner = [escape_markdown(table.corner)] if table.corner else []
    head = [*corner, "method", *(escape_markdown(heading.full) for heading in table.headings)]
    rule = [*([":--"] * (len(corner) + 1)), *(["--:"] * len(table.headings))]
    lines = [f"## {escape_markdown(table.title)}", "", _piped(head), _piped(rule)]
    for block in table.blocks:
        for place, row in enumerate(block.rows):
            first = [escape_markdown(block.title) if place == 0 else ""] if corner else []
            name = escape_markdown(row.name)
            name = f"_{name}_" if row.published else name
            lines.append(_piped([*first, name, *(_markdown_entry(entry, row) for entry in row.entries)]))
    if table.notes:
        lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_entry(entry: Entry, row: TableRow) -> str:
    text = entry.text
    if row.published and entry.value is not None:
        return f"_{text}_"
    return (f"**{text}**" if entry.best else text) + (r"\*" if entry.marked else "")


def latex(table: Table) -> str:
    """A table environment with booktabs' rules, a line of measures over the columns where there are several."""
    heads = (["l"] if table.corner else []) + ["l"]
    empty = " & " * (len(heads) - 1)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{escape_latex(table.title)}}}",
        rf"\label{{tab:{table.name.replace('_', '-')}}}",
        rf"\begin{{tabular}}{{@{{}}{''.join(heads)}{'r' * len(table.headings)}@{{}}}}",
        r"\toprule",
    ]
    spans = table.spans()
    if any(name for name, _, _ in spans):
        lines.append(
            f"{empty} & "
            + " & ".join(rf"\multicolumn{{{last - first + 1}}}{{c}}{{{escape_latex(n)}}}" for n, first, last in spans)
            + r" \\"
        )
        offset = len(heads) + 1
        lines.append(" ".join(rf"\cmidrule(lr){{{first + offset}-{last + offset}}}" for _, first, last in spans))
    corner = [escape_latex(table.corner)] if table.corner else []
    lines.append(" & ".join([*corner, "method", *(escape_latex(heading.name) for heading in table.headings)]) + r" \\")
    for block in table.blocks:
        lines.append(r"\midrule")
        lines += _latex_rows(table, block)
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        notes = " ".join(escape_latex(note) for note in table.notes)
        lines.append(rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {notes}}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_rows(table: Table, block: Block) -> list[str]:
    lines = []
    for place, row in enumerate(block.rows):
        first = [escape_latex(block.title) if place == 0 else ""] if table.corner else []
        name = escape_latex(row.name)
        cells = [*first, rf"\textit{{{name}}}" if row.published else name]
        lines.append(" & ".join([*cells, *(_latex_entry(entry, row) for entry in row.entries)]) + r" \\")
    return lines


def _latex_entry(entry: Entry, row: TableRow) -> str:
    if entry.value is None:
        return "--"
    if row.published:
        return rf"\textit{{{entry.text}}}"
    return (rf"\textbf{{{entry.text}}}" if entry.best else entry.text) + (r"$^{*}$" if entry.marked else "")


def csv_text(table: Table) -> str:
    """The figures with all their digits; a missing one is an empty field; `source` tells published rows apart."""
    corner = [table.corner] if table.corner else []
    rows = [[*corner, "method", "source", *(_text(heading.full) for heading in table.headings)]]
    for block in table.blocks:
        first = [_text(block.title)] if corner else []
        for row in block.rows:
            source = "published" if row.published else "measured"
            rows.append([*first, _text(row.label), source, *(_digits(entry.value) for entry in row.entries)])
    return _csv(rows)


def comparisons_csv(table: Table) -> str:
    """Every comparison behind the marks: its difference, p, corrected p and test."""
    rows = [[table.corner, "method", "data set", "measure", "difference", "p", "p_corrected", "significant", "test"]]
    for block in table.blocks:
        for row in block.rows:
            for heading, entry in zip(table.headings, row.entries):
                if (one := entry.comparison) is not None:
                    figures = [_digits(one.delta), _digits(one.p), _digits(one.corrected), str(one.significant).lower()]
                    names = map(_text, (block.title, row.label, heading.name, heading.group))
                    rows.append([*names, *figures, one.test])
    return _csv(rows)


def _text(cell: str) -> str:
    """A text that no spreadsheet takes for a formula: where it begins like one, an apostrophe stands before it."""
    return f"'{cell}" if cell.lstrip()[:1] in ("=", "+", "-", "@", "＝", "＋", "－", "＠") else cell


def _digits(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _csv(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
