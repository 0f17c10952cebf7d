"""What lies beside the documentation: the citation, the spelling."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from docs.pages import ROOT

from starbucks_retrieval import __version__


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == __version__ and cited["license"] == "Apache-2.0"
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    newest = next(line for line in lines if line[:3] == "## " and line != "## Unreleased")
    assert newest.split()[1] == __version__
    for author in [*cited["authors"], *(one for work in cited["references"] for one in work["authors"])]:
        assert "name" in author or "family-names" in author


def test_each_version_of_the_changelog_has_one_heading_of_a_kind():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for version in versions:
        headings = [line for line in version.splitlines() if line.startswith("### ")]
        assert len(headings) == len(set(headings)), f"merge the headings of {version.splitlines()[0]}: {headings}"


def test_spelling():
    pytest.importorskip("codespell_lib", reason="needs codespell: pip install 'starbucks-retrieval[dev]'")
    found = subprocess.run([sys.executable, "-m", "codespell_lib"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
