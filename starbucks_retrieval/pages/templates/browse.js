// Filter and sort the queries. The address keeps both, so that a link shows the same view.
const list = document.getElementById("queries"), find = document.getElementById("find"), sort = document.getElementById("sort");
const count = document.getElementById("count"), all = [...list.children];
const words = all.map(query => query.querySelector(".ask").textContent.toLowerCase());
const numbers = (query, name) => JSON.parse(query.dataset[name]);
function filter() {
  const wanted = find.value.toLowerCase().split(/\s+/).filter(Boolean);
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
  const wanted = state.get("sort") ?? "";
  sort.value = [...sort.options].some(option => option.value === wanted) ? wanted : "";
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

// Each passage is on the page once, in a compressed list. A hit gets its text when its query is opened.
async function unpack() {
  const letters = atob(document.getElementById("passages").textContent);
  const bytes = Uint8Array.from(letters, letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}
function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (name === "p") made.dir = "auto";
  made.textContent = text;
  return made;
}
function write(hit, [title, start, rest, hidden]) {
  hit.removeAttribute("data-p");
  if (title) hit.append(element("p", "title", title));
  if (start) hit.append(element("p", "", start + (rest || hidden ? "…" : "")));
  if (!rest) return;
  const more = element("details", "more", ""), text = element("p", "", "…" + rest);
  if (hidden) text.append(" ", element("span", "muted", `[${hidden.toLocaleString("en")} more characters]`));
  more.append(element("summary", "", "more"), text);
  hit.append(more);
}
unpack().then(passages => {
  const fill = query => query.querySelectorAll("[data-p]").forEach(hit => write(hit, passages[hit.dataset.p]));
  document.getElementById("textless").hidden = true;
  all.filter(query => query.open).forEach(fill);
  list.addEventListener("toggle", event => event.target.matches(".query[open]") && fill(event.target), true);
});
