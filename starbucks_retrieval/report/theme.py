"""Style and script of the page. Without the script everything can be read; with it, tables can be sorted."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --paper: #f5f7fa; --card: #ffffff; --ink: #1c2430; --muted: #5b6675;
  --line: #e0e5ec; --accent: #0072b2; --tint: #eef5fb; --up: #14693f; --down: #a8324a; --warn: #fff4e0; --warn-ink: #7a4b00;
  --m0: #0072b2; --m1: #d55e00; --m2: #009e73; --m3: #c0609a; --m4: #8a6d00; --m5: #3f97cf; --m6: #7b4fa3; --m7: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1319; --card: #171c24; --ink: #e8edf4; --muted: #9aa7b8;
  --line: #2b3442; --accent: #56b4e9; --tint: #1b2733; --up: #7fd8ad; --down: #f39aac; --warn: #33270f; --warn-ink: #f3c877;
  --m0: #4aa8e0; --m1: #f0883e; --m2: #2fc89b; --m3: #e59ac5; --m4: #d9b44a; --m5: #9fd3f5; --m6: #b794f4; --m7: #a8b0bc; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2.5rem 1.1rem 4rem; }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; margin: 0 0 .7rem; letter-spacing: -.02em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 3rem 0 .7rem; letter-spacing: -.01em; }
h3 { font-size: .95rem; font-weight: 600; margin: 0 0 .5rem; overflow-wrap: anywhere; }
p { max-width: 46rem; margin: .5rem 0; }
a { color: var(--accent); text-underline-offset: .15em; }
.lead { font-size: 1.1rem; overflow-wrap: anywhere; }
.muted { color: var(--muted); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1.2rem 0 0; font-size: .92rem; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem; min-width: 0; }
.warn { background: var(--warn); border-color: transparent; color: var(--warn-ink); margin: 1.2rem 0; }
.warn ul { margin: .3rem 0 0; padding-left: 1.2rem; }
.tiles { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 12.5rem), 1fr)); margin-top: 1.6rem; }
.tile b { display: block; font-size: 1.9rem; line-height: 1.25; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile span { display: block; font-size: .86rem; color: var(--muted); overflow-wrap: anywhere; }
.tile span.who { color: var(--ink); font-weight: 600; font-size: .95rem; }
.panels { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.panels.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.panels svg { display: block; width: 100%; height: auto; }
.panels svg text { font-family: inherit !important; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.2rem; list-style: none; margin: 0 0 .8rem; padding: 0; font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .45rem; overflow-wrap: anywhere; }
.legend svg { width: 2rem; height: .9rem; flex: none; }
.legend .published { font-style: italic; color: var(--muted); }
.scroll { overflow-x: auto; padding: .3rem .5rem .5rem; width: fit-content; max-width: 100%; }
table { border-collapse: collapse; min-width: min(26rem, 80vw); font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .34rem .44rem; text-align: right; white-space: nowrap; }
thead th { font-weight: 600; color: var(--muted); font-size: .84rem; vertical-align: bottom; }
thead th.group { text-align: center; color: var(--ink); }
thead th.group { padding-left: .35rem; padding-right: .35rem; }
thead th.group span { display: block; border-bottom: 1px solid var(--line); padding-bottom: .15rem; }
tr > :first-child { text-align: left; position: sticky; left: 0; background: var(--card); z-index: 1; }
tbody th { font-weight: 500; min-width: 10.5rem; max-width: 15rem; white-space: normal; overflow-wrap: anywhere; }
tbody tr { border-top: 1px solid var(--line); }
tbody tr.block > th { font-weight: 650; font-size: .86rem; padding-top: 1rem; color: var(--accent); max-width: none; }
tbody tr.block { border-top: 0; }
tbody tr:hover > * { background: var(--tint); }
tbody tr.block:hover > * { background: var(--card); }
td.best { font-weight: 700; }
td.average, th.average { border-left: 1px solid var(--line); padding-left: .65rem; }
td.none { color: var(--muted); }
tr.published > * { font-style: italic; color: var(--muted); font-weight: 400; }
sup { line-height: 0; font-size: .8em; margin-right: -.5em; display: inline-block; width: .5em; text-align: left; }
.up { color: var(--up); } .down { color: var(--down); }
.badge { display: inline-block; white-space: nowrap; font: 600 .64rem/1.5 system-ui, sans-serif; letter-spacing: .03em; padding: 0 .45em; margin-left: .5em;
  border: 1px solid var(--line); border-radius: 999px; color: var(--muted); vertical-align: .1em; }
button.sort { all: unset; cursor: pointer; font: inherit; color: inherit; }
button.sort:hover, [aria-sort] button.sort { color: var(--accent); }
button.sort:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
button.sort { position: relative; }
button.sort::after { position: absolute; left: 100%; padding-left: .15em; font-size: .8em; content: "↕"; opacity: 0; }
button.sort:hover::after, button.sort:focus-visible::after { opacity: .5; }
[aria-sort="descending"] button.sort::after { content: "↓"; opacity: 1; }
[aria-sort="ascending"] button.sort::after { content: "↑"; opacity: 1; }
.notes { font-size: .86rem; color: var(--muted); margin: .6rem 0 0; padding-left: 1.1rem; max-width: 54rem; }
.notes li { margin: .15rem 0; overflow-wrap: anywhere; }
.files { font-size: .86rem; color: var(--muted); }
.sources td, .sources th { text-align: left; font-size: .86rem; }
.sources td { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
code, pre { font: .82rem/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: .6rem 0 0; }
details { margin-top: .6rem; font-size: .9rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
@media (max-width: 42rem) { main { padding-top: 1.6rem; } .card { padding: .75rem; } .scroll { padding: .1rem; }
  th, td { padding: .36rem .42rem; font-size: .82rem; } tbody th { min-width: 7.4rem; max-width: 8.5rem; } .badge { margin-left: 0; } }
@media print { body { background: none; } nav, button.sort::after { display: none; } .card { break-inside: avoid; } }
"""

# Rows are sorted inside their block; published ones stay below ours, and missing figures below all others.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const head = table.tHead.rows[table.tHead.rows.length - 1];
  const before = [...table.tBodies].map(body => [...body.rows]);
  [...head.cells].forEach((cell, place) => {
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort");
      const next = place === 0 ? (now ? null : "ascending") : now === "descending" ? "ascending" : now ? null : "descending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      if (next) cell.setAttribute("aria-sort", next);
      [...table.tBodies].forEach((body, i) => {
        const fixed = before[i].filter(row => row.className === "block");
        const rows = before[i].filter(row => row.className !== "block");
        const key = row => place === 0 ? row.cells[0].textContent : parseFloat(row.cells[place].dataset.v ?? "NaN");
        const missing = value => typeof value === "number" && isNaN(value);
        const sign = next === "descending" ? -1 : 1;
        if (next) rows.sort((a, b) => {
          const group = a.classList.contains("published") - b.classList.contains("published");
          const x = key(a), y = key(b);
          if (group || missing(x) || missing(y)) return group || missing(x) - missing(y);
          return sign * (place === 0 ? x.localeCompare(y) : x - y);
        });
        body.append(...fixed, ...rows);
      });
    });
  });
}
"""
