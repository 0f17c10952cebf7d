from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden() -> dict:
    """The vectors kept beside these tests, or those of the file named by $GOLDEN."""
    path = Path(os.environ.get("GOLDEN") or Path(__file__).with_name("golden.json"))
    return json.loads(path.read_text())
