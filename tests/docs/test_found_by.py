"""What people search for finds its page, no code is wider than a page, and the figure shows the figures of the page."""

from __future__ import annotations

import re
import sys

import pytest
from docs.pages import ROOT, blocks, pages, read

sys.path.append(str(ROOT / "docs" / "_hooks"))
from figure import FIGURE, SOURCE, as_svg, read_grid, read_trained

# What is typed into the search of the site, and the page that answers it.
FOUND_BY = {
    "choose a size": "howto/size.md",
    "fine-tune": "howto/own-data.md",
    "LangChain": "howto/frameworks.md",
    "table 1": "howto/reproduce.md",
    "score different": "howto/score.md",
    "GPU": "install.md",
    "own data": "howto/own-data.md",
    "serve": "howto/serve.md",
    "install": "install.md",
    "quickstart": "quickstart.md",
    "reproduce": "howto/reproduce.md",
}
WIDEST = 120  # characters of code that fit into a page at a width of 1,280 pixels


def headings(page: str) -> list[str]:
    """The headings of a page, in lower case and as words."""
    return [re.sub(r"[^\w]+", " ", line.lower()) for line in read(page).splitlines() if re.match(r"#{1,3} ", line)]


@pytest.mark.parametrize("term", FOUND_BY)
def test_a_heading_of_the_page_has_the_words(term):
    words = set(re.split(r"\W+", term.lower()))
    assert any(words <= set(heading.split()) for heading in headings(f"docs/{FOUND_BY[term]}"))


def test_most_pages_say_other_words():
    # Otherwise the test above would accept any page.
    assert not any("langchain" in heading for heading in headings("docs/search.md"))


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith(("docs/", "bench/", "README", "CONTR"))])
def test_code_is_as_wide_as_the_page_at_most(page):
    # The style sheet wraps json, which has an object in each line.
    wide = [str(block) for block in blocks(page) if block.language != "json" and _widest(block.text) > WIDEST]
    code = [f"{page}:{number}" for number, line in enumerate(_indented(page), 1) if len(line) - 4 > WIDEST]
    assert not wide + code


def _widest(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def _indented(page: str) -> list[str]:
    """The lines of a page; those that are no indented code are empty."""
    kept, before, code = [], "", False
    for line in read(page).splitlines():
        code = line.startswith("    ") and (code or not before.strip()) and not re.match(r"\s+([-*+|]|\d+\.)\s", line)
        kept.append(line if code else "")
        before = line
    return kept


def test_the_figure_is_drawn_from_the_tables():
    page = SOURCE.read_text("utf-8")
    assert FIGURE.read_text("utf-8") == as_svg(page), "run python docs/_hooks/figure.py"
    for value in (read_grid(page, "Cut")[6, 64], read_grid(page, "Fitted")[3, 64], read_trained(page)[4, 128]):
        assert as_svg(page.replace(f"{value:.4f}", "0.3000")) != as_svg(page)


def test_a_table_that_is_gone_is_noticed():
    with pytest.raises(ValueError, match="no heading"):
        as_svg("# Results\n\nnothing\n")
