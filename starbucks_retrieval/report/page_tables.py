"""A table as HTML: blocks are table bodies, so that sorting keeps them apart."""

from __future__ import annotations

from html import escape

from starbucks_retrieval.report.tables import Block, Entry, Heading, Table, TableRow


def html_table(table: Table) -> str:
    """The table in a card that scrolls sideways where the screen is narrow; the first column stays in sight."""
    bodies = "".join(_body(table, block) for block in table.blocks)
    caption = f" aria-label='{escape(table.title)}'"
    return (
        f"<div class='card scroll' tabindex='0'><table class='sortable'{caption}>{_head(table)}{bodies}</table></div>"
    )


def _head(table: Table) -> str:
    spans = table.spans()
    groups = ""
    if any(name for name, _, _ in spans):
        cells = "".join(
            f"<th class='group' scope='colgroup' colspan='{last - first + 1}'><span>{escape(name)}</span></th>"
            for name, first, last in spans
        )
        groups = f"<tr><td></td>{cells}</tr>"
    names = "".join(f"<th scope='col'{_class(heading)}>{escape(heading.name)}</th>" for heading in table.headings)
    return f"<thead>{groups}<tr><th scope='col'>method</th>{names}</tr></thead>"


def _class(heading: Heading, *more: str) -> str:
    names = [*more, *(["average"] if heading.average else [])]
    return f" class='{' '.join(names)}'" if names else ""


def _body(table: Table, block: Block) -> str:
    width = len(table.headings)
    title = (
        f"<tr class='block'><th scope='rowgroup'>{escape(block.title)}</th><td colspan='{width}'></td></tr>"
        if block.title
        else ""
    )
    return f"<tbody>{title}{''.join(_row(table, row) for row in block.rows)}</tbody>"


def _row(table: Table, row: TableRow) -> str:
    badge = "<span class='badge'>published</span>" if row.published else ""
    badge = "<span class='badge'>baseline</span>" if row.baseline else badge
    cells = "".join(_cell(heading, entry, row) for heading, entry in zip(table.headings, row.entries))
    kind = " class='published'" if row.published else ""
    name = escape(row.label + row.note)
    return f"<tr{kind}><th scope='row' title='{name}'>{name}{badge}</th>{cells}</tr>"


def _cell(heading: Heading, entry: Entry, row: TableRow) -> str:
    if entry.value is None:
        return (
            f"<td{_class(heading, 'none')} title='not {'printed' if row.published else 'measured'}'>{entry.text}</td>"
        )
    best = ["best"] if entry.best else []
    hint, mark = "", ""
    if (one := entry.comparison) is not None:
        corrected = f", corrected {one.corrected:.3g}" if one.corrected != one.p else ""
        hint = f" title='{one.delta:+.4f} against the baseline, p = {one.p:.3g}{corrected} ({escape(one.test)})'"
        if one.significant:
            mark = f"<sup class='{'up' if one.delta > 0 else 'down'}'>*</sup>"
    return f"<td{_class(heading, *best)} data-v='{entry.value!r}'{hint}>{entry.text}{mark}</td>"
