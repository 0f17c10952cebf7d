"""The page: one file, nothing to fetch, readable without its script, light and dark, phone and desktop."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from starbucks_retrieval.browse.compare import EQUAL, QueryComparison, RunSummary
from starbucks_retrieval.browse.query import MARKS, Setting, level_of, render_query, signed
from starbucks_retrieval.browse.theme import SCRIPT, STYLE
from starbucks_retrieval.data import Passage
from starbucks_retrieval.sizes import Size


@dataclass(frozen=True)
class ChartColumn:
    """One run: what it is called, its file, its size where it bears one, and how it stands over all queries."""

    label: str
    path: str
    size: Size | None
    summary: RunSummary


@dataclass(frozen=True)
class BrowsePage:
    """What the page shows. `measure` is None without judgements; `picked` says how queries were left out, or None.

    `highest` is the highest grade that is judged;
    `total` counts the queries that figures are over, of which `questions` are shown; `texts` are those of queries.
    """

    title: str
    measure: str | None
    columns: list[ChartColumn]
    questions: list[QueryComparison]
    total: int
    picked: str | None
    texts: Mapping[str, str]
    passages: Mapping[str, Passage]
    depth: int
    relevance: int
    highest: int
    max_text: int
    version: str


def render_page(page: BrowsePage) -> str:
    """The page as text. All that comes from data is escaped, and its policy lets a browser fetch nothing."""
    order = {query_id: place for place, query_id in enumerate(page.texts)}
    setting = Setting(
        [column.label for column in page.columns],
        page.measure,
        page.passages,
        page.depth,
        page.relevance,
        page.highest,
        page.max_text,
    )
    questions = "\n".join(
        render_query(
            question,
            page.texts.get(question.query_id, ""),
            order.get(question.query_id, len(order)),
            setting,
            is_open=not place,
        )
        for place, question in enumerate(page.questions)
    )
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<link rel='icon' href='data:,'>"  # or a browser asks the server for one
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main style='--n: {len(page.columns)}; --d: {min(page.depth, MARKS)}'>\n<h1>{escape(page.title)}</h1>\n<p class='lead'>{_lead(page)}</p>\n"
        f"{_columns(page)}\n{_legend(page)}\n{_tools(page)}\n<div id='queries'>\n{questions}\n</div>\n"
        "<p class='muted' id='none' hidden>No query has these words.</p>\n"
        f"<footer class='muted'>Laid out by starbucks_retrieval {escape(page.version)}, browse.</footer>\n"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _lead(page: BrowsePage) -> str:
    """What is shown of what."""
    count, judged = len(page.columns), "judged queries" if page.measure else "queries"
    runs = "one run" if count == 1 else f"each of {count} runs"
    if page.picked:
        which = {
            "changed": "that change most between the runs",
            "first": "that come first",
            "random": "drawn at random",
        }
        shown = f"{len(page.questions):,} of {page.total:,} {judged}, those {which[page.picked]}; figures are over all"
    else:
        shown = f"all {page.total:,} {judged}"
    first = escape(page.columns[0].label)
    against = f" Changes are against <b>{first}</b>, the first run." if count > 1 else ""
    return f"The first {page.depth} passages of {runs}, for {shown}.{against}"


def _columns(page: BrowsePage) -> str:
    largest = max((abs(c) for column in page.columns for c in column.summary.changes), default=0.0)
    cards = "".join(_column(page, column, place, largest) for place, column in enumerate(page.columns))
    return f"<div class='tiles'>{cards}</div>"


def _column(page: BrowsePage, column: ChartColumn, place: int, largest: float) -> str:
    one, base = column.summary, page.columns[0].summary
    big, lines = "", list[str]()
    if one.mean is not None and base.mean is not None:
        delta = one.mean - base.mean
        change = f" <em class='{_direction(delta)}'>{signed(delta)}</em>" if place else ""
        big = f"<b>{one.mean:.3f}{change}</b><span>{escape(page.measure or '')}</span>"
    found = f"{one.relevant:,} relevant in the first {page.depth}"
    if page.measure and not place:
        lines = [f"{_chart(one.values, max(one.values), 'level')}queries from best to worst", found]
    elif page.measure:
        same = page.total - one.better - one.worse
        moved = f"<i class='up'>{one.gained:,} gained</i>, <i class='down'>{one.lost:,} lost</i>"
        lines = [
            f"{_chart(one.changes, largest, 'gain')}<i class='up'>better in {one.better:,}</i>, "
            f"<i class='down'>worse in {one.worse:,}</i>, equal in {same:,}",
            f"{found}: {moved}",
        ]
    elif place:
        first = escape(page.columns[0].label)
        big = f"<b>{one.shared:.0%}</b><span>of its first {page.depth} are {first}’s too</span>"
    else:
        lines = ["the first run: what others are compared with"] if len(page.columns) > 1 else []
    told = "".join(f"<span>{line}</span>" for line in lines)
    return (
        f"<div class='card tile'><span class='name'>{escape(column.label)}</span>{big}{told}"
        f"<span class='path' title='{escape(column.path)}'>{escape(column.path)}</span></div>"
    )


def _chart(changes: Sequence[float], largest: float, kind: str) -> str:
    """Values or changes of single queries, largest first, as an area above and below a line."""
    if not changes or largest <= EQUAL:
        return ""
    width = len(changes)

    def area(sign: int) -> str:
        bars = [(x, sign * change) for x, change in enumerate(changes) if sign * change > EQUAL]
        return "".join(f"M{x} 24V{24 - sign * 24 * size / largest:.1f}H{x + 1}V24Z" for x, size in bars)

    return (
        f"<svg class='chart' viewBox='0 0 {width} 48' preserveAspectRatio='none' role='img' "
        f"aria-label='single queries, from {signed(changes[0])} to {signed(changes[-1])}'>"
        f"<path class='{kind}' d='{area(1)}'/><path class='loss' d='{area(-1)}'/>"
        f"<path class='zero' d='M0 24H{width}' vector-effect='non-scaling-stroke'/></svg>"
    )


def _direction(change: float) -> str:
    return "up" if change > EQUAL else "down" if change < -EQUAL else "same"


def _legend(page: BrowsePage) -> str:
    if page.measure is None:
        shared = f"<li><span class='dots'><i class='g2'></i></span> in {escape(page.columns[0].label)}’s first {page.depth} too</li>"
        return f"<ul class='legend'>{shared}</ul>" if len(page.columns) > 1 else ""
    from_grade = f" (grade {page.relevance} or more)" if page.relevance > 1 else ""
    levels = sorted(
        {level_of(grade, page.relevance, page.highest) for grade in range(page.relevance, page.highest + 1)}
    )
    marks = "".join(f"<i class='g{level}'></i>" for level in levels)
    items = [
        f"<span class='dots'>{marks}</span> relevant{from_grade}{', by grade' if len(levels) > 1 else ''}",
        "<span class='dots'><i class='g0'></i></span> judged, not relevant",
        "<span class='dots'><i></i></span> not judged",
    ]
    if len(page.columns) > 1:
        first = escape(page.columns[0].label)
        items.append(f"<span class='badge gained'>gained</span> relevant, and not in {first}’s first {page.depth}")
        items.append(f"<span class='move'>↑ from 9</span> its rank in {first}")
    return f"<ul class='legend'>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _tools(page: BrowsePage) -> str:
    """Search and sort; the script shows them."""
    options = ["<option value=''>as laid out</option>", "<option value='file'>as in the query file</option>"]
    if page.measure:
        for place, column in enumerate(page.columns):
            options.append(f"<option value='low {place}'>{escape(column.label)}: worst first</option>")
    for place, column in enumerate(page.columns[1:], 1):
        words = {"gain": "biggest gain", "loss": "biggest loss"} if page.measure else {"apart": "least in common"}
        options += [
            f"<option value='{key} {place}'>{escape(column.label)}: {word}</option>" for key, word in words.items()
        ]
    return (
        "<div class='tools' id='tools' hidden><label class='find'><span>Find queries</span>"
        "<input id='find' type='search' placeholder='words or id' autocomplete='off' spellcheck='false'></label>"
        f"<label><span>Sort</span><select id='sort'>{''.join(options)}</select></label>"
        "<button id='open' type='button'>Open all</button><output id='count'></output></div>"
    )
