"""The folder of this package in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder: `STARBUCKS_CACHE` if it is set, else `starbucks_retrieval` in `XDG_CACHE_HOME` or ~/.cache."""
    if own := os.environ.get("STARBUCKS_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "starbucks_retrieval"
