"""The report as one HTML page: nothing to fetch, light and dark, phone and desktop."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from starbucks_retrieval.report.drawing import Drawing, SeriesStyle, inline
from starbucks_retrieval.report.inputs import Source
from starbucks_retrieval.report.page_tables import html_table
from starbucks_retrieval.report.summary import Kpi
from starbucks_retrieval.report.tables import Table
from starbucks_retrieval.report.theme import SCRIPT, STYLE

_LONG = 4000  # characters of one entry of a result file
_MARKS = {
    "o": "<circle cx='16' cy='7' r='4'/>",
    "s": "<rect x='12.4' y='3.4' width='7.2' height='7.2'/>",
    "^": "<path d='M16 2.5 20.4 10.6H11.6Z'/>",
    "D": "<path d='M16 2.4 20.6 7 16 11.6 11.4 7Z'/>",
    "v": "<path d='M16 11.5 20.4 3.4H11.6Z'/>",
    "P": "<path d='M14.4 3h3.2v2.4H20v3.2h-2.4V11h-3.2V8.6H12V5.4h2.4Z'/>",
    "X": "<path d='m12.2 5 1.9-1.9L16 5l1.9-1.9L19.8 5l-2 2 2 2-1.9 1.9L16 9l-1.9 1.9L12.2 9l2-2Z'/>",
    "h": "<path d='M16 2.6 19.8 4.8V9.2L16 11.4 12.2 9.2V4.8Z'/>",
}


@dataclass(frozen=True)
class ReportPage:
    """What the page shows, in its order; `warnings` are findings of a preflight, `notes` what was set aside."""

    title: str
    lead: str
    tiles: list[Kpi]
    warnings: list[str]
    tables: list[Table]
    drawings: list[Drawing]
    sources: list[Source]
    notes: list[str]
    version: str


def render_page(page: ReportPage) -> str:
    """The page as text. All that comes from data is escaped, and its policy lets a browser fetch nothing."""
    return html_document(page.title, page.lead, list(_sections(page)), _warnings(page.warnings) + _tiles(page.tiles))


def html_document(title: str, lead: str, sections: Sequence[tuple[str, str, str]], top: str = "") -> str:
    """Return a whole page in the report's style, which fetches nothing and escapes `title`, `lead` and headings.

    `sections` are (anchor, heading, HTML), with a link to each at the top; `top` is HTML above the first of them.
    """
    links = "".join(f"<a href='#{name}'>{escape(heading)}</a>" for name, heading, _ in sections)
    body = "\n".join(
        f"<section id='{name}'><h2>{escape(heading)}</h2>\n{text}</section>" for name, heading, text in sections
    )
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n<h1>{escape(title)}</h1>\n<p class='lead'>{escape(lead)}</p>\n<nav>{links}</nav>\n"
        f"{top}\n{body}\n</main><script>{SCRIPT}</script></body></html>\n"
    )


def _sections(page: ReportPage) -> Iterator[tuple[str, str, str]]:
    """(anchor, title, HTML): the first figure, the tables, the other figures, where all comes from."""
    first = [drawing for drawing in page.drawings if drawing.name == "effectiveness"]
    for drawing in first:
        yield drawing.name, drawing.title, html_figure(drawing)
    for table in page.tables:
        yield f"table-{table.name}", table.title, _table(table)
    for drawing in page.drawings:
        if drawing not in first:
            yield drawing.name, drawing.title, html_figure(drawing)
    yield "provenance", "Where the figures come from", _provenance(page)


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    return f"<div class='card warn'><b>Look into these before trusting the figures</b><ul>{items}</ul></div>\n"


def _tiles(tiles: Sequence[Kpi]) -> str:
    if not tiles:
        return ""
    shown = "".join(
        f"<div class='card tile'><span>{escape(tile.what)}</span><b>{escape(tile.figure)}</b>"
        f"<span class='who'>{escape(tile.who)}</span><span>{escape(tile.more)}</span></div>"
        for tile in tiles
    )
    return f"<div class='tiles'>{shown}</div>"


def _table(table: Table) -> str:
    tests = any(entry.comparison for entry in table.entries)
    names = [f"{table.name}.{ending}" for ending in ("md", "tex", "csv")] + ["comparisons.csv"] * tests
    return f"{html_table(table)}{_notes(table.notes)}{_files(names)}"


def html_figure(drawing: Drawing) -> str:
    """Return a figure as HTML: legend, panels in the page's colours, notes, and links to its files."""
    legend = "".join(
        f"<li{' class=published' if look.published else ''}>{_swatch(look)}{escape(label)}</li>"
        for label, look in drawing.legend.items()
    )
    panels = "".join(
        f"<div class='card'><h3>{escape(panel.title)}</h3>"
        f"<div role='img' aria-label='{escape(panel.alt)}'>{inline(panel, drawing.inches, f'{drawing.name}-{number}')}</div></div>"
        for number, panel in enumerate(drawing.panels)
    )
    wide = " wide" if drawing.across == 2 else ""
    files = _files([f"{drawing.name}.png", f"{drawing.name}.svg"])
    listed = f"<ul class='legend'>{legend}</ul>" if legend else ""
    return f"{listed}<div class='panels{wide}'>{panels}</div>{_notes(drawing.notes)}{files}"


def _swatch(look: SeriesStyle) -> str:
    from starbucks_retrieval.report.drawing import VARIABLES

    colour = f"var(--{VARIABLES[look.colour]})"
    dashes, fill, width = (" stroke-dasharray='4 3'", "var(--paper)", 1.2) if look.published else ("", colour, 2)
    return (
        f"<svg viewBox='0 0 32 14' aria-hidden='true'><path d='M1 7H31' stroke='{colour}' stroke-width='{width}'{dashes}/>"
        f"<g fill='{fill}' stroke='{colour if look.published else 'none'}'>{_MARKS[look.marker]}</g></svg>"
    )


def _notes(notes: Sequence[str]) -> str:
    return f"<ul class='notes'>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""


def _files(names: Sequence[str]) -> str:
    links = " · ".join(f"<a href='{name}'>{name}</a>" for name in names)
    return f"<p class='files'>As files: {links}</p>"


def _details(source: Source) -> str:
    """What the file says besides its figures, but for what is too long to be read."""
    texts = {key: json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) for key, value in source.more.items()}
    shown = "\n".join(f"{key}: {text}" for key, text in sorted(texts.items()) if len(text) <= _LONG)
    long = ", ".join(sorted(key for key, text in texts.items() if len(text) > _LONG))
    more = f"\n({long}: too long for this page, see the file)" if long else ""
    return (
        f"<details><summary>What else {escape(source.path)} says</summary>"
        f"<div class='card'><pre>{escape(shown + more)}</pre></div></details>"
    )


def _provenance(page: ReportPage) -> str:
    rows, details = [], []
    for source in page.sources:
        made: Any = source.more.get("provenance") or {}
        made = made if isinstance(made, dict) else {}
        packages = made.get("packages") or {}
        libraries = ", ".join(f"{name} {packages[name]}" for name in ("torch", "transformers") if name in packages)
        cells = (
            source.label,
            source.kind,
            str(source.more.get("model") or "–"),
            source.path,
            source.digest[:12],
            f"{made.get('starbucks_retrieval') or '–'} {(made.get('git') or '')[:10]}",
            f"Python {made['python']}, {libraries}".rstrip(", ") if made.get("python") else "–",
        )
        rows.append(
            f"<tr><th scope='row'>{escape(cells[0])}</th>{''.join(f'<td>{escape(c)}</td>' for c in cells[1:])}</tr>"
        )
        if source.more:
            details.append(_details(source))
    heads = ("method", "measured by", "model", "file", "blake2b", "starbucks_retrieval", "with")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f"<div class='card scroll'><table class='sources'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"{_notes(page.notes)}{''.join(dict.fromkeys(details))}"
        f"<p class='files'>Laid out by starbucks_retrieval {escape(page.version)}, report.</p>"
    )
