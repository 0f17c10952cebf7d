from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden() -> dict:
    """The golden vectors in this folder, or those of the file that $GOLDEN names."""
    path = Path(os.environ.get("GOLDEN") or Path(__file__).with_name("golden.json"))
    return json.loads(path.read_text())
