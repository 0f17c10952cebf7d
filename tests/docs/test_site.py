"""The site builds without warnings, and nothing on it is fetched from elsewhere when it is read."""

from __future__ import annotations

import re

import pytest
from docs.built_site import site  # noqa: F401

pytestmark = pytest.mark.slow


def test_nothing_is_fetched_from_elsewhere(site):  # noqa: F811
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\bsrc="([^"]+)"', text)
        loaded += [link for link in re.findall(r"<link [^>]+>", text) if "canonical" not in link]
        assert not [item for item in loaded if "//" in item], page


def test_formulas_are_drawn_and_placeholders_filled(site):  # noqa: F811
    drawn = 0
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        drawn += text.count("<math ")
        assert 'class="arithmatex"' not in text and "<!-- flags -->" not in text, page
    assert drawn > 20


def test_flags_and_functions_are_there(site):  # noqa: F811
    flags = {
        name: (site / "reference" / "flags" / f"{name}.html").read_text(encoding="utf-8") for name in ("train", "store")
    }
    assert "<code>--anchor_weight</code>" in flags["train"] and "starbucks encode</h" not in flags["train"]
    assert 'id="starbucks-store-verify"' in flags["store"]
    overview = (site / "reference" / "flags.html").read_text(encoding="utf-8")
    assert 'href="flags/train.html"' in overview and "<code>--seed</code>" in overview
    functions = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "starbucks_retrieval.search.searcher.Searcher" in functions


def test_links_out_of_docs_lead_to_pages_of_the_site(site):  # noqa: F811
    text = (site / "encoding.html").read_text(encoding="utf-8")
    assert 'href="benchmarks.html"' in text
