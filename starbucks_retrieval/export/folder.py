"""An output folder that appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

from starbucks_retrieval.errors import UserError

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
