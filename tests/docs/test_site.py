"""The site builds without warnings, and nothing on it is fetched from elsewhere when it is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT

pytestmark = pytest.mark.slow
for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(package, reason=f"needs {package}: pip install 'starbucks-retrieval[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\bsrc="([^"]+)"', text)
        loaded += [link for link in re.findall(r"<link [^>]+>", text) if "canonical" not in link]
        assert not [item for item in loaded if "//" in item], page


def test_formulas_are_drawn_and_placeholders_filled(site):
    drawn = 0
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        drawn += text.count("<math ")
        assert 'class="arithmatex"' not in text and "<!-- flags -->" not in text, page
    assert drawn > 20


def test_flags_and_functions_are_there(site):
    flags = (site / "reference" / "flags.html").read_text(encoding="utf-8")
    assert "<code>--anchor_weight</code>" in flags and 'id="starbucks-store-verify"' in flags
    functions = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "starbucks_retrieval.search.searcher.Searcher" in functions


def test_links_out_of_docs_lead_to_pages_of_the_site(site):
    text = (site / "encoding.html").read_text(encoding="utf-8")
    assert 'href="benchmarks.html"' in text
