"""The demonstration's HTML page: one file, nothing to fetch, light and dark, phone and desktop."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from starbucks_retrieval.demo.examples import Answer, Example, Found
from starbucks_retrieval.demo.figure import DARK, LIGHT, MEASURE, quality_panel, speed_panel, svg
from starbucks_retrieval.demo.table import Row, millions, rate

_SNIPPET = 220
_RULE = re.compile(r"[-=~]{4,}")  # the underlines of headings

_STYLE = """
:root { color-scheme: light dark; --paper: #f5f7fa; --card: #ffffff; --ink: #1c2430; --muted: #5b6675;
  --line: #e0e5ec; --after: #0072b2; --before: #b84f00; --good: #e4f2ea; --good-ink: #14693f; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1319; --card: #171c24; --ink: #e8edf4; --muted: #9aa7b8;
  --line: #2b3442; --after: #56b4e9; --before: #e69f00; --good: #16302a; --good-ink: #7fd8ad; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.1rem 4rem; }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; margin: 0 0 .8rem; letter-spacing: -.02em; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .7rem; letter-spacing: -.01em; }
p { max-width: 44rem; margin: .5rem 0; }
.lead { font-size: 1.1rem; }
.muted { color: var(--muted); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
.figures img { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; padding: .4rem .6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .7rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; color: var(--muted); font-size: .86rem; }
th:first-child, td:first-child { text-align: left; }
tbody tr { border-top: 1px solid var(--line); }
td:first-child { font-weight: 650; }
th.group { text-align: center; color: var(--ink); }
.before { color: var(--before); } .after { color: var(--after); font-weight: 650; }
.example { margin: 0 0 1.1rem; }
.example h3 { font-size: 1.05rem; margin: 0 0 .8rem; }
.answers { display: grid; gap: 1rem 1.4rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.answers h4 { margin: 0 0 .4rem; font-size: .86rem; font-weight: 600; color: var(--muted); }
ol { list-style: none; margin: 0; padding: 0; }
li { padding: .5rem .65rem; border-radius: 8px; border: 1px solid var(--line); margin-bottom: .45rem;
  font-size: .88rem; line-height: 1.45; overflow-wrap: anywhere; }
li.relevant { background: var(--good); border-color: transparent; }
li b { display: block; font: 600 .84rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.tick { color: var(--good-ink); }
@media (max-width: 42rem) { .scroll { padding: .2rem; } th, td { padding: .4rem .32rem; font-size: .8rem; }
  th { white-space: normal; font-size: .72rem; vertical-align: bottom; } }
pre { overflow-x: auto; font: .82rem/1.7 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; margin: 0; }
"""


def render_page(
    rows: Sequence[Row], examples: Sequence[Example], story: dict[str, Any], commands: Sequence[dict[str, str]]
) -> str:
    """The page as text. `story` holds backbone, passages, test_queries, train_queries, steps, seconds and machine."""
    small, full = rows[0], rows[-1]
    lead = (
        f"<b>{escape(story['backbone'])}</b> was trained for {story['steps']} steps ({story['seconds']:.0f} seconds) "
        f"so that its embedding can be taken after fewer layers and cut to fewer dimensions. At the smallest size, "
        f"{escape(small.size)}, {MEASURE} went from {small.before[MEASURE]:.3f} to {small.after[MEASURE]:.3f}; "
        f"at the full size, {escape(full.size)}, from {full.before[MEASURE]:.3f} to {full.after[MEASURE]:.3f}."
    )
    data = (
        f"The collection is the documentation of the Python on this machine: {story['passages']:,} docstrings without "
        f"their summary lines. The {story['test_queries']} test queries are summary lines; each asks for the one "
        f"docstring it was cut from. No top-level module is in more than one of train ({story['train_queries']:,} "
        f"queries), dev and test. Before and after are one protocol: same texts, lengths and exact search."
    )
    sections = [
        f"<h1>One model, {len(rows)} sizes</h1><p class='lead'>{lead}</p><p class='muted'>{data}</p>",
        "<h2>Quality against cost</h2>",
        f"<div class='figures'>{_picture(quality_panel, rows, f'{MEASURE} over bytes per passage, before and after')}"
        f"{_picture(speed_panel, rows, 'texts encoded per second at each size')}</div>",
        "<h2>Every size</h2>",
        _table(rows),
        f"<p class='muted'>A size is layer:dim. Bytes are of float16 vectors; texts per second on {escape(story['machine'])}.</p>",
        "<h2>What is found</h2>",
        "<p class='muted'>After training, the first three passages at the smallest and at the full size, for test "
        "queries picked by a hash, not by how well they do. Marked: the docstring the query was cut from.</p>",
        *map(_example, examples),
        "<h2>Next</h2>",
        *(f"<p>{escape(c['what'])}</p><div class='card'><pre>{escape(c['command'])}</pre></div>" for c in commands),
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Starbucks: one model, {len(rows)} sizes</title><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(sections)}\n</main></body></html>\n"
    )


def _picture(panel: Any, rows: Sequence[Row], alt: str) -> str:
    light, dark = (_data_uri(svg(panel, rows, theme)) for theme in (LIGHT, DARK))
    return (
        f"<div class='card'><picture><source media='(prefers-color-scheme: dark)' srcset='{dark}'>"
        f"<img src='{light}' alt='{escape(alt)}'></picture></div>"
    )


def _data_uri(image: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(image).decode("ascii")


def _table(rows: Sequence[Row]) -> str:
    measures = list(rows[0].before)
    groups = "".join(f"<th class='group' colspan='2'>{escape(name)}</th>" for name in measures)
    pairs = "<th>before</th><th>after</th>" * len(measures)
    body = "".join(
        f"<tr><td>{escape(row.size)}</td><td>{millions(row.parameters)}</td><td>{row.bytes_per_passage}</td>"
        f"<td>{rate(row.texts_per_second)}</td>"
        + "".join(
            f"<td class='before'>{row.before[name]:.3f}</td><td class='after'>{row.after[name]:.3f}</td>"
            for name in measures
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class='card scroll'><table><thead><tr><th colspan='4'></th>{groups}</tr><tr><th>size</th>"
        f"<th>parameters</th><th>bytes per passage</th><th>texts per s</th>{pairs}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _example(example: Example) -> str:
    answers = "".join(map(_answer, example.answers))
    return f"<div class='card example'><h3>“{escape(example.query)}”</h3><div class='answers'>{answers}</div></div>"


def _answer(answer: Answer) -> str:
    where = (
        f"relevant passage at rank {answer.rank}"
        if answer.rank
        else f"relevant passage not in the first {answer.depth}"
    )
    return f"<div><h4>{escape(answer.size)}: {where}</h4><ol>{''.join(map(_found, answer.found))}</ol></div>"


def _found(found: Found) -> str:
    text = " ".join(_RULE.sub(" ", found.text).split())
    text = text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"
    mark, kind = (" <span class='tick'>✓ relevant</span>", " class='relevant'") if found.relevant else ("", "")
    return f"<li{kind}><b>{escape(found.docid)}{mark}</b>{escape(text)}</li>"
