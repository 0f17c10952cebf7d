"""The site, built once for the tests that read it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Folder of the built site."""
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'starbucks-retrieval[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder
