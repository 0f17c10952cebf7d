"""What `auto` stands for in the flags `bf16` and `dtype` of tables and scales: one precision for all jobs of a folder."""

from __future__ import annotations

from pathlib import Path

from starbucks_retrieval.files import write_text
from starbucks_retrieval.parsing import read_text

_FILE = "precision.txt"


def choose_precision(root: Path) -> str:
    """Return what `auto` stands for in an output folder: `bf16` or `fp32`.

    It is what the first run there took, so that the rows of a table have the same precision, also where the rule depends
    on a measurement; in a new folder, bf16 if this device is fast in it.

    Args:
        root: The output folder of all jobs.
    """
    kept = root / _FILE
    if kept.is_file() and (found := read_text(kept).strip()) in ("bf16", "fp32"):
        return found
    from starbucks_retrieval.devices import resolve_device
    from starbucks_retrieval.models.precision import autocast_dtype, dtype_name

    return dtype_name(autocast_dtype("auto", resolve_device(None)))


def keep_precision(root: Path, precision: str) -> None:
    """Write down what `auto` stands for in an output folder, for the next runs."""
    write_text(root / _FILE, f"{precision}\n")
