"""An output folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import sync_folder

RECORD = "export.json"


def check_output(output: Path, model: str, overwrite: bool) -> None:
    """Raise UserError where `output` may not be written: a file, the model itself, or a folder of other things."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, a folder is needed", "name another --output_dir")
    if output.exists() and Path(model).exists() and output.resolve() == Path(model).resolve():
        raise UserError(f"{output} is the model that is to be exported", "name another --output_dir")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not (output / RECORD).is_file():
        # Even with --overwrite_output_dir: what no export wrote, no export deletes.
        raise UserError(f"{output} is not empty, and no earlier export wrote it", "name another --output_dir")
    if not overwrite:
        raise UserError(f"{output} holds an earlier export", "add --overwrite_output_dir, or name another folder")


@contextlib.contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """A sibling of `output` to write into, which takes its place at the end, or is deleted on an error.

    A kill can leave a hidden sibling behind, or, between the two renames that replace an earlier export, no folder of
    that name; it never leaves a part of one.
    """
    output = output.resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (output.with_name(f".{output.name}.{os.getpid()}.{kind}") for kind in ("tmp", "old"))
    for left in (temporary, old):  # by a killed process of the same number, as in containers all have
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        if output.exists():
            output.rename(old)
        temporary.rename(output)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not output.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(output.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
