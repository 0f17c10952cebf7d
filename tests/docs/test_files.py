"""What lies beside the documentation: the citation, the spelling."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
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


def test_the_citation_has_the_papers_of_the_readme():
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    named = set(re.findall(r"arxiv\.org/abs/(\d{4}\.\d{5})", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named and all(f"https://arxiv.org/abs/{number}" in cited for number in named)


def test_the_versions_stated_as_tested_are_those_of_the_constraints():
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    stated = re.search(r"Tested with Python ([\d.]+) on Linux, (.*?); `constraints", page, re.S)
    versions = dict(re.findall(r"([\w-]+)\s+(\d[\d.]*\d)", stated[2]))
    assert len(versions) == 7 and {name: pinned[name] for name in versions} == versions
    classified = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert classified == [stated[1]]


def test_the_release_runs_pinned_actions_and_publishes_without_a_token():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert len(used) == 5 and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"} and "secrets" not in json.dumps(workflow)
    commands = [step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step]
    assert all((ROOT / command.split()[0]).stat().st_mode & 0o100 for command in commands if command.startswith(".ci/"))


def test_the_audit_says_what_it_did_not_check():
    loader = importlib.machinery.SourceFileLoader("audit", str(ROOT / ".ci/audit"))
    audit = importlib.util.module_from_spec(importlib.util.spec_from_loader("audit", loader))
    write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(audit)
    sys.dont_write_bytecode = write_bytecode
    bad = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    good, unknown = {"name": "b", "version": "1", "vulns": []}, {"name": "c", "skip_reason": "not on the index"}

    def report(*dependencies):
        return audit.report(json.dumps({"dependencies": dependencies}), "")

    assert audit.report("", "x\nConnectionError: no route")[0] == 0
    assert "no index" in audit.report("", "x\nConnectionError: no route")[1][0]
    assert report(good, bad) == (1, ["a 1: PYSEC-1, mended in 2", "2 of 2 versions checked, 1 known vulnerabilities"])
    assert report(good, unknown)[1][-1].endswith("0 known vulnerabilities; the index knows nothing about 1")
    assert report(unknown)[0] == 0 and report(unknown)[1][-1].startswith("not checked")


def test_each_version_of_the_changelog_has_one_heading_of_a_kind():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for version in versions:
        headings = [line for line in version.splitlines() if line.startswith("### ")]
        assert len(headings) == len(set(headings)), f"merge the headings of {version.splitlines()[0]}: {headings}"


@pytest.mark.slow  # make lint runs it too
def test_spelling():
    pytest.importorskip("codespell_lib", reason="needs codespell: pip install 'starbucks-retrieval[dev]'")
    found = subprocess.run([sys.executable, "-m", "codespell_lib"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_what_the_scripts_import_is_there():
    """Python inside shell scripts, which no type checker reads."""
    found = [
        (path.name, module, name)
        for path in (ROOT / "examples").rglob("*.sh")
        for module, names in re.findall(
            r"from (starbucks_retrieval[\w.]*) import ([\w, ]+)", path.read_text(encoding="utf-8")
        )
        for name in names.split(", ")
    ]
    assert found
    for path, module, name in found:
        assert hasattr(importlib.import_module(module), name), f"{path}: {module} has no {name}"
