"""Style and script of the page. Without the script everything can be read; with it, queries can be found and sorted."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --paper: #f5f7fa; --card: #ffffff; --ink: #1c2430; --muted: #5b6675;
  --line: #dfe5ec; --accent: #0072b2; --up: #14693f; --down: #a8324a; --idle: #c3ccd7;
  --g1: #8fcfa9; --g2: #45a873; --g3: #14693f; --tint: #edf7f1; --gone: #fbeef1; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1319; --card: #171c24; --ink: #e8edf4; --muted: #9aa7b8;
  --line: #2b3442; --accent: #56b4e9; --up: #7fd8ad; --down: #f39aac; --idle: #46536a;
  --g1: #2f7350; --g2: #43a877; --g3: #8be8bb; --tint: #15281f; --gone: #2d1a20; } }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: max(68rem, calc(var(--n) * 22rem)); margin: 0 auto; padding: 2.5rem 1.1rem 4rem; }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; margin: 0 0 .7rem; letter-spacing: -.02em;
  overflow-wrap: anywhere; }
p { margin: .5rem 0; }
.lead { font-size: 1.1rem; max-width: 46rem; overflow-wrap: anywhere; }
.muted { color: var(--muted); }
em, i { font-style: normal; }
.up { color: var(--up); } .down { color: var(--down); } .same { color: var(--muted); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; min-width: 0; }

.tiles { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); margin: 1.6rem 0 1rem; }
.tile { padding: .9rem 1rem; display: flex; flex-direction: column; }
.tile span { font-size: .86rem; color: var(--muted); overflow-wrap: anywhere; }
.tile .name { color: var(--ink); font-weight: 650; font-size: 1rem; }
.tile b { font-size: 1.9rem; line-height: 1.25; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile b em { font-size: 1rem; letter-spacing: 0; font-weight: 600; }
.tile .path { margin-top: auto; padding-top: .5rem; font: .76rem/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.chart { display: block; width: 100%; height: 3rem; margin: .5rem 0 .3rem; }
.chart .level { fill: var(--idle); } .chart .gain { fill: var(--g2); } .chart .loss { fill: var(--down); opacity: .75; } .chart .zero { stroke: var(--idle); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; list-style: none; margin: 0 0 1.2rem; padding: 0;
  font-size: .86rem; color: var(--muted); }
.legend li { display: flex; align-items: center; gap: .45rem; flex-wrap: wrap; }

.tools { position: sticky; top: 0; z-index: 2; display: flex; flex-wrap: wrap; align-items: end; gap: .6rem .9rem;
  padding: .7rem 0; background: var(--paper); border-bottom: 1px solid var(--line); margin-bottom: 1rem; }
.tools label span { display: block; font-size: .78rem; color: var(--muted); }
.tools input, .tools select, .tools button { font: inherit; font-size: .95rem; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 8px; padding: .38rem .6rem; min-width: 0; max-width: 100%; height: 2.4rem; }
.tools button { cursor: pointer; }
.tools :focus-visible, summary:focus-visible, .answers:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 6px; }
.find { flex: 1 1 14rem; } .find input { width: 100%; }
#count { font-size: .86rem; color: var(--muted); padding-bottom: .45rem; margin-left: auto; }

.query { margin: 0 0 .7rem; scroll-margin-top: 5rem; }
.query > summary { list-style: none; cursor: pointer; padding: .75rem 1rem; display: flex; flex-wrap: wrap; gap: .5rem 1.5rem;
  align-items: center; }
.query > summary::-webkit-details-marker { display: none; }
.query > summary:hover .ask b { color: var(--accent); }
.query[open] > summary { border-bottom: 1px solid var(--line); }
.ask { flex: 1 1 16rem; min-width: 0; overflow-wrap: anywhere; }
.ask::before { content: "▸"; color: var(--muted); display: inline-block; width: 1.1em; transition: transform .12s; }
.query[open] .ask::before { transform: rotate(90deg) translate(.1em, .1em); }
.ask b { font-weight: 600; }
.id { font: .78rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; color: var(--muted); overflow-wrap: anywhere; }
.strips { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; }
.strip { display: grid; grid-template-columns: auto auto; gap: 0 .6rem; align-items: end; font-size: .84rem; line-height: 1.3;
  font-variant-numeric: tabular-nums; width: calc(var(--d) * 8px + 7rem); justify-content: start; }
.strip .name { grid-row: 1; font-size: .76rem; color: var(--muted); grid-column: 1 / 3; overflow-wrap: anywhere; }
.figure { min-width: 6.6em; }
.dots { display: inline-flex; align-items: flex-end; gap: 2px; height: 16px; }
.dots i { width: 6px; height: 6px; border-radius: 1.5px; border: 1px solid var(--idle); }
.dots .g0 { background: var(--idle); }
.dots .g1 { height: 10px; background: var(--g1); border-color: var(--g1); }
.dots .g2 { height: 13px; background: var(--g2); border-color: var(--g2); }
.dots .g3 { height: 16px; background: var(--g3); border-color: var(--g3); }
.dots .void { border-color: transparent; }

.answers { display: grid; grid-template-columns: repeat(var(--n), minmax(min(18.5rem, 80vw), 1fr)); gap: 1.2rem; overflow-x: auto;
  padding: .9rem 1rem; scroll-snap-type: x proximity; scroll-padding: 1rem; }
.answer { scroll-snap-align: start; min-width: 0; }
.answer h3 { font-size: .95rem; font-weight: 600; margin: 0 0 .6rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.answer h3 .name { margin-right: .35em; }
.answer h3 small { display: block; font-weight: 400; color: var(--muted); font-size: .84rem; min-height: 1.55em; }
.answer h4 { font-size: .84rem; font-weight: 600; margin: 1rem 0 .5rem; }
ol { list-style: none; margin: 0; padding: 0; }
.hit { padding: .5rem .65rem; border: 1px solid var(--line); border-left: 4px solid var(--line); border-radius: 8px; margin-bottom: .5rem;
  font-size: .88rem; line-height: 1.45; overflow-wrap: anywhere; }
.hit p { margin: .25rem 0 0; }
.hit .title { font-weight: 600; }
.hit.g0 { border-left-color: var(--idle); }
.hit.g1, .hit.g2, .hit.g3 { background: var(--tint); border-color: transparent; }
.hit.g1 { border-left-color: var(--g1); } .hit.g2 { border-left-color: var(--g2); } .hit.g3 { border-left-color: var(--g3); }
.hit.lost { background: var(--gone); border-left-style: dashed; }
.hit.missed { background: none; border-color: var(--line); border-left-style: dashed; }
.meta { display: flex; flex-wrap: wrap; align-items: center; gap: .15rem .5rem; }
.rank { font-weight: 700; font-variant-numeric: tabular-nums; min-width: 1.1em; }
.badge { font-size: .74rem; line-height: 1.5; padding: 0 .5em; border: 1px solid var(--line); border-radius: 999px; color: var(--muted); white-space: nowrap; }
.badge.relevant { border-color: var(--g2); color: var(--up); font-weight: 600; }
.badge.gained { background: var(--up); border-color: var(--up); color: var(--card); font-weight: 600; }
.move { font-size: .78rem; color: var(--muted); }
.move.up { color: var(--up); } .move.down { color: var(--down); }
.meta .long { order: 1; flex-basis: 100%; }
.meta .move { margin-left: auto; }
details.more summary { cursor: pointer; color: var(--accent); font-size: .82rem; width: fit-content; }
details.more[open] summary { color: var(--muted); }
.unseen { margin: 0 1rem .9rem; font-size: .9rem; }
.unseen summary { cursor: pointer; color: var(--muted); }
.unseen ol { margin-top: .6rem; max-width: 52rem; }
footer { margin-top: 2rem; font-size: .86rem; }
@media (max-width: 42rem) { main { padding: 1.5rem .8rem 3rem; } .query > summary, .answers { padding-left: .75rem; padding-right: .75rem; }
  .tools { position: static; } .strip { width: 100%; grid-template-columns: 5.2rem auto 1fr; align-items: center; }
  .strip .name { grid-column: 1; } .strips { width: 100%; gap: .15rem; } #count { margin-left: 0; } }
@media print { .tools { display: none; } body { background: none; } }
"""

# The address keeps what was typed and chosen, so that it can be sent to others.
SCRIPT = """
const list = document.getElementById("queries"), find = document.getElementById("find"), sort = document.getElementById("sort");
const count = document.getElementById("count"), all = [...list.children];
const words = all.map(query => query.querySelector(".ask").textContent.toLowerCase());
const numbers = (query, name) => JSON.parse(query.dataset[name]);
function filter() {
  const wanted = find.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  all.forEach((query, i) => {
    query.hidden = !wanted.every(word => words[i].includes(word));
    shown += !query.hidden;
  });
  count.textContent = shown === all.length ? `${shown} queries` : `${shown} of ${all.length} queries`;
  document.getElementById("none").hidden = shown > 0;
}
function order() {
  const [how, column] = sort.value.split(" ");
  const key = {
    file: query => Number(query.dataset.i),
    low: query => numbers(query, "v")[column],
    gain: query => -numbers(query, "c")[column],
    loss: query => numbers(query, "c")[column],
    apart: query => numbers(query, "s")[column],
  }[how];
  const rows = key ? all.map(query => [key(query), query]).sort((a, b) => a[0] - b[0]).map(pair => pair[1]) : all;
  list.append(...rows);
}
function keep() {
  const state = new URLSearchParams();
  if (find.value) state.set("find", find.value);
  if (sort.value) state.set("sort", sort.value);
  history.replaceState(null, "", "#" + state);
}
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  find.value = state.get("find") ?? "";
  const asked = state.get("sort") ?? "";
  sort.value = [...sort.options].some(option => option.value === asked) ? asked : "";
  filter();
  order();
}
find.addEventListener("input", () => { filter(); keep(); });
sort.addEventListener("change", () => { order(); keep(); });
window.addEventListener("hashchange", restore);
document.getElementById("open").addEventListener("click", event => {
  const opened = event.target.textContent === "Open all";
  for (const query of all) query.open = opened && !query.hidden;
  event.target.textContent = opened ? "Close all" : "Open all";
});
document.getElementById("tools").hidden = false;
restore();
"""
