"""The site in a real browser, opened from disk: its search finds pages, and nothing is wider than the window."""

from __future__ import annotations

import json
import shutil

import chromium
import pytest
from docs.built_site import site  # noqa: F401
from docs.test_found_by import FOUND_BY

pytestmark = [pytest.mark.skipif(chromium.BROWSER is None, reason=chromium.NEEDED), pytest.mark.slow]

_SEARCH = """<!doctype html><body><iframe id=page src="index.html" width=1280 height=900></iframe><pre id=seen></pre><script>
const frame = document.getElementById("page"), found = {}, wait = time => new Promise(done => setTimeout(done, time));
frame.onload = async () => {
  const doc = frame.contentDocument, view = frame.contentWindow, input = doc.querySelector("input[name=query]");
  doc.querySelector("#__search").click();
  input.focus();
  input.dispatchEvent(new view.Event("focus"));
  await wait(5000);
  for (const term of TERMS) {
    input.value = term;
    input.dispatchEvent(new view.KeyboardEvent("keyup", { bubbles: true, key: "a" }));
    await wait(2000);
    const links = [...doc.querySelectorAll(".md-search-result__item > a.md-search-result__link")];
    found[term] = links.map(link => link.href.split("/site/").pop().split("?")[0].split("#")[0]);
  }
  document.getElementById("seen").textContent = JSON.stringify(found);
};
</script>"""

_WIDTHS = """<!doctype html><body><iframe id=page width=WIDTH height=900></iframe><pre id=seen></pre><script>
const pages = PAGES, wide = [], frame = document.getElementById("page");
let number = 0;
frame.onload = () => {
  if (!frame.src) return;
  const doc = frame.contentDocument, root = doc.documentElement;
  if (root.scrollWidth > root.clientWidth) wide.push(pages[number]);
  for (const code of CODE ? doc.querySelectorAll("pre > code") : [])
    if (code.scrollWidth > code.clientWidth + 1) wide.push(pages[number] + ": " + code.textContent);
  if (++number < pages.length) frame.src = pages[number];
  else document.getElementById("seen").textContent = JSON.stringify(wide);
};
frame.src = pages[0];
</script>"""


@pytest.fixture
def copy(site, tmp_path):  # noqa: F811
    """A copy of the site that a test may add a page to."""
    return shutil.copytree(site, tmp_path / "site")


def test_search_from_disk_finds_the_pages(copy, tmp_path):
    index = json.loads((copy / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = {word for entry in index["docs"] for word in entry["title"].split() if word.isalpha() and len(word) > 3}
    (copy / "frame.html").write_text(_SEARCH.replace("TERMS", json.dumps([*FOUND_BY, *sorted(titles)])))
    text, console = chromium.seen(copy / "frame.html", tmp_path / "profile", budget=10_000 + 2_500 * (len(titles) + 20))
    found = json.loads(text)
    assert not console  # lunr warns of a word that breaks on its index
    for term, page in FOUND_BY.items():
        first = list(dict.fromkeys(found[term]))[:3]
        assert page.replace(".md", ".html") in first, f"{term}: {first}"


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_page(copy, tmp_path, width):
    pages = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*.html") if path.name != "404.html")
    # On a phone, code scrolls.
    filled = _WIDTHS.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width))
    (copy / "frame.html").write_text(filled.replace("CODE", "true" if width > 1000 else "false"))
    text, _ = chromium.seen(copy / "frame.html", tmp_path / "profile", budget=120_000)
    assert len(pages) > 50 and not json.loads(text)
