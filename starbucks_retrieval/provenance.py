"""Provenance of output files: versions, configuration, git revision. No time stamp: equal work gives equal bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.version import __version__

DIGEST = "digest"  # an entry of a JSON file

# The libraries that results depend on.
_PACKAGES = (
    *("torch", "transformers", "tokenizers", "numpy", "faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "ir-measures"),
    *("pytrec_eval-terrier", "accelerate", "peft", "deepspeed", "bm25s", "onnxruntime", "openvino", "nncf", "pyserini"),
    *("scipy", "scikit-learn"),
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
    """Return the installed versions of the packages that results depend on, and of further ones.

    Args:
        packages: Further packages by name. A package that is not installed is left out of the result.
    """
    found = {name: version_of(name) for name in (*_PACKAGES, *packages)}
    return {name: version for name, version in found.items() if version is not None}


@cache
def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
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


def with_digest(content: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON-ready mapping with an entry `digest`: a checksum of all other entries.

    Example:
        >>> digest_matches(with_digest({"a": 1}), {"a"}), digest_matches(with_digest({"a": 1}) | {"a": 2}, {"a"})
        (True, False)
    """
    return content | {DIGEST: _digest(content)}


def digest_matches(content: dict[str, Any], old: Set[str]) -> bool:
    """Return whether the content of a JSON file is as it was written.

    Args:
        content: What json.loads returns. The order of entries and the white space of the file do not count.
        old: The entries of version 0.1, which has no digest. A file of other entries without one has lost it.
    """
    if DIGEST not in content:
        return set(content) <= old
    return content[DIGEST] == _digest({name: value for name, value in content.items() if name != DIGEST})


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


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


# Flags of `train` that decide which texts are negatives, and how much of a text is read.
_NEGATIVES = (
    *("false_negatives", "train_group_size", "in_batch_negatives", "query_negatives", "passage_negatives"),
    *("false_negative_margin", "guide_model_name_or_path", "negatives_x_device", "dataset_path", "dataset_name"),
    *("corpus_path", "query_max_len", "passage_max_len"),
)


def training_settings(folder: str | Path) -> dict[str, Any]:
    """Return what has to be alike in the training of compared models: negatives, data, lengths, and rows read.

    Args:
        folder: A model folder.

    Returns:
        Flags of `train` by name, those that have a value, and `rows`; {} for a folder without a readable training.json,
        and for training without labels, which has no negatives.
    """
    path = Path(folder).expanduser() / "training.json"
    try:
        record: Any = read_json(path) if path.is_file() else None
        train, settings = record["configuration"]["train"], record["configuration"]["transformers"]
        if train["objective"] == "distil":
            return {}
        found = {name: train[name] for name in _NEGATIVES if train.get(name) is not None}
        steps = max((entry.get("step", 0) for entry in record["history"]), default=0)
        rows = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] * steps
        return found | ({"rows": rows} if rows else {})
    except (UserError, KeyError, TypeError, AttributeError):
        return {}
