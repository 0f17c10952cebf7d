"""Provenance of output files: versions, configuration, git revision. No time stamp: equal work gives equal bytes."""

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

# The libraries that results depend on.
_PACKAGES = (
    *("torch", "transformers", "tokenizers", "numpy", "faiss-cpu", "faiss-gpu", "ir-measures", "pytrec_eval-terrier"),
    *(
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
    ),
)


def describe(configuration: Any = None, packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a JSON-ready record of the code, the installed libraries and a configuration.

    Args:
        configuration: A dataclass or a mapping, or None to leave it out.
        packages: Packages whose versions are recorded besides those that all results depend on.
    """
    record: dict[str, Any] = {
        "starbucks_retrieval": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "packages": versions(packages),
    }
    if dataclasses.is_dataclass(configuration):
        configuration = dataclasses.asdict(configuration)  # type: ignore[arg-type]
    return record if configuration is None else record | {"configuration": dict(configuration)}


def versions(packages: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the installed versions of the packages that results depend on, and of further ones."""
    found = {name: _version(name) for name in (*_PACKAGES, *packages)}
    return {name: version for name, version in found.items() if version is not None}


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def git_revision() -> str | None:
    """Return the commit of this package's checkout, or None for an installed wheel."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)  # noqa: S603, S607 - git of the checkout, on the user's PATH
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def refuse_newer(version: Any, newest: int, path: Any, otherwise: str) -> None:
    """Raise UserError unless a file's version is an integer up to `newest`.

    Args:
        version: The version that the file states.
        newest: The newest version that this package reads.
        path: The file, for the message.
        otherwise: A remedy besides upgrading, in the imperative.
    """
    if not isinstance(version, int) or version > newest:
        raise UserError(
            f"{path} has version {version}, this program reads up to {newest}",
            f"upgrade starbucks-retrieval, or {otherwise}",
        )
