"""export(): write one size of a model as a folder that another tool loads."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import itertools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import Passage, open_corpus
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import TARGETS, ExportTarget
from starbucks_retrieval.export.arguments import ExportArguments, public_name
from starbucks_retrieval.files import atomic_folder, write_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

RECORD = "export.json"
CALIBRATION_TEXTS = 300


@dataclass(frozen=True)
class _Plan:
    """The checked arguments of an export, without any weights."""

    output: Path
    size: Size
    target: ExportTarget
    calibration: list[Passage]
    parameters_kept: int
    parameters_total: int


def export(arguments: ExportArguments) -> dict[str, Any]:
    """Write one size of a model as a folder for `arguments.to`, atomically, and upload it if requested.

    Only the layers that the size needs are read.

    Args:
        arguments: The flags of `starbucks export`.

    Returns:
        Figures: output, size, to, files with their bytes, parameters kept and in total, address on the hub.

    Raises:
        UserError: The model cannot have that size, a package is missing, the calibration texts cannot be read, the
            output folder holds other things, or the upload failed, after which the folder is kept.

    Example:
        >>> export(ExportArguments("my-model", "small", "onnx", "6:128"))  # doctest: +SKIP
    """
    from starbucks_retrieval.export.card import write_card
    from starbucks_retrieval.models import NestedEncoder

    plan = _plan(arguments)
    size = plan.size
    encoder = NestedEncoder.from_pretrained(arguments.model_name_or_path, layers=size.layer, device="cpu")
    figures: dict[str, Any] = {
        "output": str(plan.output),
        "to": arguments.to,
        "size": str(size),
        "int8": arguments.int8,
        "calibration_texts": len(plan.calibration),
        "parameters_kept": plan.parameters_kept,
        "parameters_total": plan.parameters_total,
        "fingerprint": encoder.fingerprint(size.layer),
    }
    with atomic_folder(plan.output) as folder:
        plan.target.write(encoder, size, folder, plan.calibration)
        write_card(folder, encoder, size, arguments, figures)
        write_json(folder / RECORD, _record(arguments, plan.target, figures))
        figures["files"] = {
            str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
        }
    figures["bytes"] = sum(figures["files"].values())
    figures["hub"] = None
    if arguments.hub_model_id:
        message = f"Size {size} for {arguments.to}"
        figures["hub"] = _upload(plan.output, arguments.hub_model_id, arguments.hub_private, message)
    return figures


def preview(arguments: ExportArguments) -> Preview:
    """Describe the work of `export` with the same flags. Writes and uploads nothing and reads no weights.

    Args:
        arguments: The flags of `starbucks export`.

    Returns:
        Lines for a terminal, and figures. `bytes` is the size of the weights; the tokenizer and a few kilobytes
        of settings come on top. `seconds` is None: the time is not estimated.

    Raises:
        UserError: As in `export` for flags, packages, model, output and calibration texts.
    """
    plan = _plan(arguments)
    figures: dict[str, Any] = {
        "to": arguments.to,
        "size": str(plan.size),
        "int8": arguments.int8,
        "calibration_texts": len(plan.calibration),
        "parameters_kept": plan.parameters_kept,
        "parameters_total": plan.parameters_total,
        "bytes": plan.parameters_kept * (1 if arguments.int8 else 4),
        "output": str(plan.output),
        "exists": (plan.output / RECORD).is_file(),
        "hub": arguments.hub_model_id,
        "seconds": None,
        "free_bytes": free_bytes(plan.output),
    }
    replaced = ", which is replaced" if figures["exists"] else ""
    free = f"; {readable(figures['free_bytes'])} free there" if figures["free_bytes"] is not None else ""
    kept = f"{plan.parameters_kept:,} of {plan.parameters_total:,} parameters are kept at {plan.size}"
    lines = [
        ("model", f"{arguments.model_name_or_path}: {kept}"),
        (
            "writes",
            f"about {readable(figures['bytes'])} of weights for {arguments.to} to {plan.output}{replaced}{free}",
        ),
    ]
    if plan.calibration:
        lines.append(("int8", f"scaled on {len(plan.calibration)} texts of {arguments.calibration_path}"))
    if arguments.hub_model_id:
        lines.append(("uploads", f"the folder to {arguments.hub_model_id}"))
    return Preview([*lines, ("time", duration(None))], figures)


def _plan(arguments: ExportArguments) -> _Plan:
    """Check everything that can be checked before weights are read."""
    from starbucks_retrieval.export.hugging_face import count_parameters

    output, target = Path(arguments.output_dir), TARGETS[arguments.to]
    _check_output(output, arguments.model_name_or_path, arguments.overwrite_output_dir)
    for package in (*target.packages, *(target.int8_packages if arguments.int8 else ())):
        if importlib.util.find_spec(package) is None:
            flag = "--int8" if arguments.int8 else f"--to {arguments.to}"
            raise UserError(f"{flag} needs the package {package}", f"pip install 'starbucks-retrieval[{arguments.to}]'")
    if arguments.hub_model_id:
        _check_repository(arguments.hub_model_id)
    calibration = _read_calibration(arguments.calibration_path) if arguments.calibration_path else []
    hf_config, size = _find_size(arguments)
    return _Plan(
        output, size, target, calibration, count_parameters(hf_config, size.layer), count_parameters(hf_config)
    )


def _check_output(output: Path, model: str, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, a folder is needed", "name another --output_dir")
    if output.exists() and Path(model).exists() and output.resolve() == Path(model).resolve():
        raise UserError(f"{output} is the model that is to be exported", "name another --output_dir")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not (output / RECORD).is_file():
        # Even with --overwrite_output_dir: only the files of an earlier export are deleted.
        raise UserError(f"{output} is not empty, and no earlier export wrote it", "name another --output_dir")
    if not overwrite:
        raise UserError(f"{output} holds an earlier export", "add --overwrite_output_dir, or name another folder")


def _read_calibration(collection: str) -> list[Passage]:
    passages = list(itertools.islice(open_corpus(collection), CALIBRATION_TEXTS))
    if not passages:
        raise UserError(f"{collection} holds no passages", "name a corpus like the one to be encoded")
    return passages


def _find_size(arguments: ExportArguments) -> tuple[Any, Size]:
    """Return the model's Hugging Face configuration and the size to export."""
    from transformers import AutoConfig

    from starbucks_retrieval.models.architectures import layout_of
    from starbucks_retrieval.models.config import find_config
    from starbucks_retrieval.models.loading import explain_load_errors

    name = arguments.model_name_or_path
    with explain_load_errors(name):
        hf_config = AutoConfig.from_pretrained(name)
    layout_of(hf_config)  # raises UserError for an unsupported architecture
    depth, width = int(hf_config.num_hidden_layers), int(hf_config.hidden_size)
    trained = find_config(name, depth, width).sizes
    size = arguments.selected_size(depth, width, trained or Sizes([Size(depth, width)]))
    if trained and size not in trained:
        log.warning("%s is not one of the sizes that the model was trained for: %s", size, trained)
    return hf_config, size


def _record(arguments: ExportArguments, target: ExportTarget, figures: dict[str, Any]) -> dict[str, Any]:
    settings = dataclasses.asdict(arguments)
    for name in ("output_dir", "overwrite_output_dir", "push_to_hub", "hub_model_id", "hub_private"):
        del settings[name]  # the same export elsewhere has the same record
    settings["model_name_or_path"] = public_name(arguments.model_name_or_path)
    if arguments.calibration_path:
        settings["calibration_path"] = public_name(arguments.calibration_path)
    record = describe(settings) | {name: value for name, value in figures.items() if name != "output"}
    used = {}
    for package in (*target.packages, *target.int8_packages):
        try:
            used[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    record["packages"] = record["packages"] | used
    return record


def _check_repository(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"--hub_model_id {repository}: {error}", "write it as me/my-model") from None


def _upload(folder: Path, repository: str, private: bool, message: str) -> str:
    """Upload a folder, creating the repository if needed, and return its address."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        # None leaves the choice to the owner's default, which may be private.
        address = api.create_repo(repository, private=True if private else None, repo_type="model", exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, repo_type="model", commit_message=message)
    except Exception as error:
        # No token, no network, no permission: the library raises a dozen types that all mean the same here.
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"the export in {folder} is complete, but it was not uploaded to {repository} ({line})",
            f"check the network and `hf auth login`, then run: hf upload {repository} {folder}",
        ) from None
    return str(address)
