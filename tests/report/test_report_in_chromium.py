"""The page in a real browser: no errors, nothing wider than the window, tables that sort."""

from __future__ import annotations

import chromium
import pytest

from starbucks_retrieval.report import ReportArguments, report

from .conftest import costs, grid

pytestmark = [pytest.mark.skipif(chromium.BROWSER is None, reason=chromium.NEEDED), pytest.mark.slow]

# The frame gives the page the width of a phone, which no window may have; the probe reads it and clicks in it.
_FRAME = """<!doctype html><body><iframe id=page src="index.html" width={width} height=900></iframe><pre id=seen></pre><script>
const seen = [], frame = document.getElementById("page");
frame.onload = () => {{
  const doc = frame.contentDocument, table = doc.querySelector("#table-by_size table");
  const rows = () => [...table.tBodies].map(body => [...body.rows].filter(row => row.className !== "block")
    .map(row => row.cells[0].firstChild.textContent).join(",")).join("|");
  seen.push("overflow " + (doc.documentElement.scrollWidth - doc.documentElement.clientWidth));
  seen.push("width " + doc.documentElement.clientWidth);
  seen.push("svg " + doc.querySelectorAll("svg[viewBox]").length);
  const button = table.querySelectorAll("button.sort")[2];
  for (let click = 0; click < 3; click++) {{
    seen.push("before " + click + " " + rows());
    button.click();
  }}
  seen.push("after " + rows());
  document.getElementById("seen").textContent = seen.join("\\n");
}};
</script>"""


@pytest.fixture
def page(two_methods, write, tmp_path):
    """Folder of a page; on web, at 2:8, new is better than old, at 4:16 they tie and third is best."""
    pytest.importorskip("matplotlib")
    from starbucks_retrieval.metrics.results import Cell
    from starbucks_retrieval.sizes import Size

    third = write("third.json", [Cell("web", "nDCG@10", Size(4, 16), 0.9, 4)], "third")
    long = write("long.json", grid(0.2), "a-very-long-label_" * 8, "grid", costs=costs())
    report(ReportArguments([*two_methods, third, long], tmp_path / "out", baseline="old"))
    return tmp_path / "out"


@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_in_a_browser(page, width, tmp_path):
    (page / "frame.html").write_text(_FRAME.format(width=width))
    text, console = chromium.seen(page / "frame.html", tmp_path / "profile")
    found = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert not console
    assert int(found["overflow"]) <= 0
    assert abs(int(found["width"]) - width) <= 20  # less a scroll bar
    assert int(found["svg"]) > 5
    label = "a-very-long-label_" * 8
    order = [found["before 0"], found["before 1"], found["before 2"], found["after"]]
    plain = f"new,old,third,{label}|new,old,third,{label}"
    assert order[0] == plain
    assert order[1] == f"new,old,third,{label}|third,new,old,{label}"  # downwards, missing figures last
    assert order[2] == f"old,new,third,{label}|new,old,third,{label}"  # upwards
    assert order[3] == plain
