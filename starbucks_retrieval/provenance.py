"""What made an artefact: versions, configuration, git revision. No clock: equal work must give equal bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


def file_digest(path: str | os.PathLike[str]) -> str:
    """blake2b of a file's bytes, 32 hex digits."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, _blake).hexdigest()


def _blake() -> Any:
    return hashlib.blake2b(digest_size=16)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new one, never half of either."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp")
    text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(target)) from None  # a full disk does not say where
    sync_folder(target.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make a rename inside `folder` survive a power cut, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


@contextmanager
def usual_modes(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Give the files that are written into `folder` meanwhile, not below it, the permissions that open() gives.

    Some libraries, safetensors among them, write through temporary files, which are their owner's alone whatever the
    umask: nobody else on a cluster could read the model. Files that were there before keep what they have.
    """
    folder = Path(folder)
    before = _versions(folder) if folder.is_dir() else {}
    yield
    probe = folder / f".mode-{os.getpid()}.tmp"
    try:
        # Asking for the umask means setting it, for all threads.
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o666)
        mode = os.fstat(descriptor).st_mode & 0o777
        os.close(descriptor)
    finally:
        probe.unlink(missing_ok=True)
    for path, version in _versions(folder).items():
        if before.get(path) != version:
            path.chmod(mode)


def _versions(folder: Path) -> dict[Path, tuple[int, int]]:
    with os.scandir(folder) as entries:
        found = [(Path(entry.path), entry.stat()) for entry in entries if entry.is_file(follow_symlinks=False)]
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found}
