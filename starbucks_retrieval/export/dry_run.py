"""What `export` would do: the size, the weights that it keeps, where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.export.api import look
from starbucks_retrieval.export.arguments import ExportArguments
from starbucks_retrieval.export.folder import RECORD, check_output
from starbucks_retrieval.export.graphs import check_packages, read_calibration
from starbucks_retrieval.export.hub import check_name
from starbucks_retrieval.export.weights import parameters
from starbucks_retrieval.store.info import readable

_FLOAT = 4  # bytes of a weight


def preview(arguments: ExportArguments) -> Preview:
    """Say what `export` would do with the same flags; nothing is written or uploaded, and no weights are read.

    Bytes are those of the weights; a tokenizer and a few kilobytes of settings come on top. Raises UserError as
    `export` would for flags, packages, model, output and calibration texts.
    """
    output = Path(arguments.output_dir)
    check_output(output, arguments.model_name_or_path, arguments.overwrite_output_dir)
    check_packages(arguments.to, arguments.int8)
    if arguments.hub_model_id:
        check_name(arguments.hub_model_id)
    calibration = read_calibration(arguments.calibration_path) if arguments.calibration_path else []
    hf_config, size = look(arguments)
    kept, total = parameters(hf_config, size.layer), parameters(hf_config)
    figures: dict[str, Any] = {
        "to": arguments.to,
        "size": str(size),
        "int8": arguments.int8,
        "calibration_texts": len(calibration),
        "parameters_kept": kept,
        "parameters_total": total,
        "bytes": kept * (1 if arguments.int8 else _FLOAT),
        "output": str(output),
        "exists": (output / RECORD).is_file(),
        "hub": arguments.hub_model_id,
        "seconds": None,
        "free_bytes": free_bytes(output),
    }
    there = ", which is replaced" if figures["exists"] else ""
    free = f"; {readable(figures['free_bytes'])} free there" if figures["free_bytes"] is not None else ""
    lines = [
        ("model", f"{arguments.model_name_or_path}: {kept:,} of {total:,} parameters are kept at {size}"),
        ("writes", f"about {readable(figures['bytes'])} of weights for {arguments.to} to {output}{there}{free}"),
    ]
    if calibration:
        lines.append(("int8", f"scaled on {len(calibration)} texts of {arguments.calibration_path}"))
    if arguments.hub_model_id:
        lines.append(("uploads", f"the folder to {arguments.hub_model_id}"))
    return Preview([*lines, ("time", duration(None))], figures)
