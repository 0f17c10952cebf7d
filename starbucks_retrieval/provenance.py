"""What made an artefact: versions, configuration, git revision. No clock: equal work must give equal bytes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.version import __version__

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "faiss-cpu",
    "faiss-gpu",
    "ir-measures",
    "pytrec_eval-terrier",
    "accelerate",
    "peft",
    "deepspeed",
    "bm25s",
    "onnxruntime",
    "openvino",
    "nncf",
    "pyserini",
    "scipy",
    "scikit-learn",
)


def describe(configuration: Any = None) -> dict[str, Any]:
    """A JSON-ready record of the code and libraries in use, and of `configuration` (a dataclass or a dict)."""
    record: dict[str, Any] = {
        "starbucks_retrieval": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "packages": versions(),
    }
    if configuration is not None:
        as_dict = dataclasses.asdict(configuration) if dataclasses.is_dataclass(configuration) else dict(configuration)  # type: ignore[arg-type]
        record["configuration"] = as_dict
    return record


@cache
def versions() -> dict[str, str]:
    """Installed versions of the packages that numbers depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_revision() -> str | None:
    """The commit of this package's own checkout, or None for an installed wheel."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def refuse_newer(version: Any, newest: int, path: Any, otherwise: str) -> None:
    """Raise UserError unless a file's version is a number up to `newest`; `otherwise`: what to do but to upgrade."""
    if not isinstance(version, int) or version > newest:
        raise UserError(
            f"{path} has version {version}, this program reads up to {newest}",
            f"upgrade starbucks-retrieval, or {otherwise}",
        )
