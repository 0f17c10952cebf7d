"""export(): one size of a model, into one folder that another tool loads."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
from pathlib import Path
from typing import Any

from starbucks_retrieval.export.arguments import ExportArguments, public_name
from starbucks_retrieval.export.folder import RECORD, check_output
from starbucks_retrieval.files import atomic_folder, write_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

# What the bytes of a target depend on besides what provenance lists.
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino", "nncf")}


def export(arguments: ExportArguments) -> dict[str, Any]:
    """Write one size of a model as a folder for `arguments.to`, whole or not at all, and upload it if asked.

    Only the layers that the size needs are read. Returns figures for a summary: output, size, to, files with their
    bytes, parameters kept and of the whole model, address on the hub. Raises UserError for a size that the model
    cannot have, a missing package, calibration texts that cannot be read, an output folder with other things in it,
    or an upload that failed, after which the folder is kept.
    """
    from starbucks_retrieval.export.card import write_card
    from starbucks_retrieval.export.graphs import check_packages, read_calibration, write_graph
    from starbucks_retrieval.export.hub import check_name, push
    from starbucks_retrieval.export.sentence_modules import write_modules
    from starbucks_retrieval.export.weights import parameters, write_transformers
    from starbucks_retrieval.models import NestedEncoder

    output = Path(arguments.output_dir)
    check_output(output, arguments.model_name_or_path, arguments.overwrite_output_dir)
    check_packages(arguments.to, arguments.int8)
    if arguments.hub_model_id:
        check_name(arguments.hub_model_id)
    calibration = read_calibration(arguments.calibration_path) if arguments.calibration_path else []
    hf_config, size = look(arguments)

    encoder = NestedEncoder.from_pretrained(arguments.model_name_or_path, layers=size.layer, device="cpu")
    figures: dict[str, Any] = {
        "output": str(output),
        "to": arguments.to,
        "size": str(size),
        "int8": arguments.int8,
        "calibration_texts": len(calibration),
        "parameters_kept": parameters(hf_config, size.layer),
        "parameters_total": parameters(hf_config),
        "fingerprint": encoder.fingerprint(size.layer),
    }
    with atomic_folder(output) as folder:
        if arguments.to in ("onnx", "openvino"):
            write_graph(encoder, size, folder, arguments.to, calibration)
        else:
            write_transformers(encoder, size, folder)
        if arguments.to == "sentence-transformers":
            write_modules(encoder, size, folder)
        write_card(folder, encoder, size, arguments, figures)
        write_json(folder / RECORD, _record(arguments, figures))
        figures["files"] = {
            str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
        }
    figures["bytes"] = sum(figures["files"].values())
    figures["hub"] = None
    if arguments.hub_model_id:
        message = f"Size {size} for {arguments.to}"
        figures["hub"] = push(output, arguments.hub_model_id, arguments.hub_private, message)
    return figures


def look(arguments: ExportArguments) -> tuple[Any, Size]:
    """The model's Hugging Face configuration and the size to export, found before any weight is read."""
    from transformers import AutoConfig

    from starbucks_retrieval.models.architectures import layout_of
    from starbucks_retrieval.models.config import find_config
    from starbucks_retrieval.models.loading import explain_load_errors

    name = arguments.model_name_or_path
    with explain_load_errors(name):
        hf_config = AutoConfig.from_pretrained(name)
    layout_of(hf_config)  # refuses an architecture that we have not checked
    depth, width = int(hf_config.num_hidden_layers), int(hf_config.hidden_size)
    trained = find_config(name, depth, width).sizes
    size = arguments.wanted(depth, width, trained or Sizes([Size(depth, width)]))
    if trained and size not in trained:
        log.warning("%s is none of the sizes that the model was made for: %s", size, trained)
    return hf_config, size


def _record(arguments: ExportArguments, figures: dict[str, Any]) -> dict[str, Any]:
    settings = dataclasses.asdict(arguments)
    for name in ("output_dir", "overwrite_output_dir", "push_to_hub", "hub_model_id", "hub_private"):
        del settings[name]  # where it goes is no part of what it is
    settings["model_name_or_path"] = public_name(arguments.model_name_or_path)
    if arguments.calibration_path:
        settings["calibration_path"] = public_name(arguments.calibration_path)
    record = describe(settings) | {name: value for name, value in figures.items() if name != "output"}
    used = {}
    for package in _PACKAGES.get(arguments.to, ()):
        try:
            used[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    record["packages"] = record["packages"] | used
    return record
