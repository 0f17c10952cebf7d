"""The page in a browser: no errors, filter and sort by the address, no sideways scrolling on a phone."""

from __future__ import annotations

import json
import re
from html import escape, unescape

import pytest
from browse.conftest import HOSTILE

from starbucks_retrieval.browse import BrowseArguments, browse


@pytest.fixture
def address(small_set):
    runs = [small_set.parent / f"{name}.trec" for name in ("small", "big")]
    browse(BrowseArguments(runs, str(small_set)), output=small_set.parent / "page.html")
    return (small_set.parent / "page.html").as_uri()


def rows(dom):
    """(query id, whether it is hidden) in the order of the page."""
    return [
        (re.search(r'<bdi class="id">(\w+)</bdi>', row)[1], bool(re.match(r"[^>]*\shidden", row)))
        for row in dom.split('<details class="query card"')[1:]
    ]


def test_no_console_errors_and_hostile_text_stays_text(chromium, address):
    dom, console = chromium(address)
    assert console == []
    assert [name for name, _ in rows(dom)] == ["q2", "q1", "q3", "q4"]
    assert not any(hidden for _, hidden in rows(dom))
    assert "<img" not in dom and ">4 queries</output>" in dom
    assert not re.search(r'<div class="tools"[^>]* hidden', dom)  # the script shows them


def test_a_query_that_opens_shows_its_texts_as_text(chromium, small_set):
    """The query with a hostile passage is open, the others are closed; a click opens one more."""
    runs = [small_set.parent / f"{name}.trec" for name in ("small", "big")]
    page = browse(BrowseArguments(runs, str(small_set))).html
    harness = small_set.parent / "open.html"
    harness.write_text(OPENS.format(page=escape(page)), encoding="utf-8")
    dom, console = chromium(harness.as_uri(), "--virtual-time-budget=5000")
    before, after = json.loads(unescape(re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)[1]))
    assert console == []
    assert (
        HOSTILE.split()[0] in before["q2"] and "text 7" not in before["q1"] and "not in the corpus" not in before["q1"]
    )
    assert "title 7" in after["q1"] and "text 7 word" in after["q1"] and after["q3"] == before["q3"]
    assert after["images"] == 0 and after["hidden"]


OPENS = """<!doctype html><iframe style="border:0;width:900px;height:900px" srcdoc="{page}"></iframe><pre></pre><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const state = () => Object.fromEntries([["images", page.images.length], ["hidden", page.getElementById("textless").hidden],
    ...[...page.querySelectorAll(".query")].map(one => [one.querySelector(".id").textContent, one.textContent])]);
  setTimeout(() => {{
    const before = state();
    for (const one of page.querySelectorAll(".query")) one.open ||= one.querySelector(".id").textContent === "q1";
    setTimeout(() => document.querySelector("pre").textContent = JSON.stringify([before, state()]), 1000);
  }}, 1000);
}};
</script>"""


def test_the_address_presets_filter_and_sort(chromium, address):
    dom, console = chromium(address + "#find=zebra+q1&sort=gain+1")
    assert console == []
    assert rows(dom) == [("q1", False), ("q3", True), ("q4", True), ("q2", True)]
    assert ">1 of 4 queries</output>" in dom
    dom, _ = chromium(address + "#sort=file")
    assert [name for name, _ in rows(dom)] == ["q1", "q2", "q3", "q4"]
    dom, _ = chromium(address + "#sort=nonsense&find=nothing%20has%20this")
    assert all(hidden for _, hidden in rows(dom)) and 'id="none">' in dom


HARNESS = """<!doctype html><iframe style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe><pre></pre><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  for (const query of page.querySelectorAll("details")) query.open = true;
  const wide = [...page.querySelectorAll("body *")].filter(one => !one.closest(".answers")
    && one.getBoundingClientRect().right > {width} + 1).map(one => one.outerHTML.slice(0, 80));
  document.querySelector("pre").textContent = JSON.stringify([page.documentElement.scrollWidth - page.documentElement.clientWidth, wide]);
}};
</script>"""


def measured(chromium, folder, page, width):
    """By how much the page is wider than a window of that width, everything open, and what reaches beyond."""
    harness = folder / "harness.html"
    harness.write_text(HARNESS.format(width=width, page=escape(page)), encoding="utf-8")
    dom, _ = chromium(harness.as_uri())
    return json.loads(re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)[1])


@pytest.mark.parametrize("width", [320, 400])
def test_no_sideways_scrolling_on_a_phone(chromium, address, small_set, width):
    page = (small_set.parent / "page.html").read_text(encoding="utf-8")
    assert measured(chromium, small_set.parent, page, width) == [0, []]
    broken = page.replace("<h1>", "<h1 style='width: 900px'>", 1)
    assert measured(chromium, small_set.parent, broken, width)[0] > 0  # the measuring itself can fail
