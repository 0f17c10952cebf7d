"""A table as a value: what it says, before it is markdown, LaTeX, csv or HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from starbucks_retrieval.report.significance import CellComparison

DIGITS = 4
DASH = "–"


@dataclass(frozen=True)
class Entry:
    """One figure of a table; a value of None is missing. `best` of its column; `comparison` with the baseline."""

    value: float | None = None
    best: bool = False
    comparison: CellComparison | None = None

    @property
    def text(self) -> str:
        """The figure as all forms print it, without marks."""
        return DASH if self.value is None else f"{self.value:.{DIGITS}f}"

    @property
    def marked(self) -> bool:
        """Whether it differs significantly from the baseline's."""
        return self.comparison is not None and self.comparison.significant


@dataclass(frozen=True)
class Heading:
    """A column's name and the measure it stands under; `average` columns close their measure."""

    name: str
    group: str = ""
    average: bool = False

    @property
    def full(self) -> str:
        """The name for a header of one line."""
        return f"{self.name} {self.group}".strip()


@dataclass(frozen=True)
class TableRow:
    """A method's figures. Published ones come from a paper and take part in nothing; `note` is a footnote's sign."""

    label: str
    entries: tuple[Entry, ...]
    published: bool = False
    baseline: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The label as tables print it."""
        return f"{self.label}{self.note} (published)" if self.published else f"{self.label}{self.note}"


@dataclass(frozen=True)
class Block:
    """Rows that are compared with each other; `title` is empty in a table of one block."""

    title: str
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class Table:
    """`name` is the stem of its files, `corner` the name of the blocks (a size, a data set) or empty."""

    name: str
    title: str
    corner: str
    headings: tuple[Heading, ...]
    blocks: tuple[Block, ...]
    notes: list[str] = field(default_factory=list)

    def spans(self) -> list[tuple[str, int, int]]:
        """(measure, first column, last column) of neighbouring columns under one measure."""
        found: list[tuple[str, int, int]] = []
        for place, heading in enumerate(self.headings):
            if found and found[-1][0] == heading.group:
                found[-1] = (heading.group, found[-1][1], place)
            else:
                found.append((heading.group, place, place))
        return found

    @property
    def entries(self) -> Iterable[Entry]:
        """Every entry that was measured."""
        return (entry for block in self.blocks for row in block.rows if not row.published for entry in row.entries)


def with_best(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """The rows with the best entry of every column marked: all that print as it does, none where nothing competes."""
    ours = [row for row in rows if not row.published]
    best: list[str | None] = []
    for entries in zip(*(row.entries for row in ours)):
        known = sorted((entry.value, entry.text) for entry in entries if entry.value is not None)
        best.append(known[-1][1] if len(known) > 1 else None)
    return tuple(
        row
        if row.published
        else replace(row, entries=tuple(replace(e, best=e.text == text) for e, text in zip(row.entries, best)))
        for row in rows
    )
