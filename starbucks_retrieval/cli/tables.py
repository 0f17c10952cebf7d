"""Tables as aligned text, markdown, LaTeX and csv, for everything that this package prints or writes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

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
    "–": "--",
    "−": "$-$",
    "†": r"$\dagger$",
    "…": r"\dots{}",
}
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # a spreadsheet computes text that begins with one of these


def align_columns(rows: Sequence[Sequence[str]], alignment: str = "lr", marks: str = "") -> list[str]:
    """Return one line of text for each row, with the cells of a column below each other.

    Args:
        rows: Cells of equal number in every row.
        alignment: `l` or `r` for each column; the last letter also holds for the columns after it.
        marks: Characters that stand behind a number without moving its digits, such as `*` for significance.

    Example:
        >>> print("\\n".join(align_columns([["size", "nDCG@10"], ["6:128", "0.5000*"], ["2:32", "0.4000"]], marks="*")))
        size   nDCG@10
        6:128   0.5000*
        2:32    0.4000
    """

    def mark_count(cell: str) -> int:
        return len(cell) - len(cell.rstrip(marks)) if marks and any(map(str.isdigit, cell[:2])) else 0

    columns = list(zip(*rows, strict=True))
    overhangs = [max(map(mark_count, column)) for column in columns]
    widths = [max(len(cell) - mark_count(cell) for cell in column) for column in columns]
    letters = alignment + alignment[-1] * (len(columns) - len(alignment))
    lines = []
    for row in rows:
        cells = []
        for cell, letter, width, overhang in zip(row, letters, widths, overhangs):
            if letter == "l":
                cells.append(cell.ljust(width + overhang))
            else:
                cells.append(" " * (width - len(cell) + mark_count(cell)) + cell + " " * (overhang - mark_count(cell)))
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown_table(rows: Sequence[Sequence[str]], alignment: str = "lr") -> list[str]:
    """Return the lines of a pipe table whose first row is the header. Cells are markdown already.

    Args:
        rows: Cells of equal number in every row.
        alignment: As in `align_columns`.

    Example:
        >>> markdown_table([["size", "nDCG@10"], ["6:128", "**0.5**"]])
        ['| size | nDCG@10 |', '| :-- | --: |', '| 6:128 | **0.5** |']
    """
    head, *body = rows
    letters = alignment + alignment[-1] * (len(head) - len(alignment))
    rule = [":--" if letter == "l" else "--:" for letter in letters[: len(head)]]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def latex_row(cells: Iterable[str]) -> str:
    r"""Return one row of a `tabular` from cells that are LaTeX already.

    Example:
        >>> print(latex_row(["BM25", r"\textbf{0.61}"]))
        BM25 & \textbf{0.61} \\
    """
    return " & ".join(cells) + r" \\"


def csv_text(rows: Iterable[Iterable[str | float | None]]) -> str:
    """Return rows as csv: floats with all their digits, None as an empty field, and no text that is a formula.

    A text that a spreadsheet would compute gets an apostrophe in front.

    Example:
        >>> csv_text([["method", "nDCG@10"], ["=1+1", 0.25], ["other", None]])
        "method,nDCG@10\\n'=1+1,0.25\\nother,\\n"
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_csv_field(cell) for cell in row] for row in rows)
    return out.getvalue()


def _csv_field(cell: str | float | None) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return f"'{cell}" if cell.lstrip()[:1] in _FORMULA else cell
    return repr(float(cell))


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it is, in one line.

    Example:
        >>> escape_latex("50% of a_b")
        '50\\\\% of a\\\\_b'
    """
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def escape_markdown(text: str) -> str:
    """Return text that markdown, and HTML inside it, prints as it is, in one line that fits into a table.

    Example:
        >>> escape_markdown("a_b | *c*")
        'a\\\\_b \\\\| \\\\*c\\\\*'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
