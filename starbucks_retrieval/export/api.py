"""export(): write one size of a model as a folder that another tool loads."""

from __future__ import annotations

import dataclasses
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
from starbucks_retrieval.export import TARGETS, ExportArguments, ExportTarget
from starbucks_retrieval.export.card import public_name, write_card
from starbucks_retrieval.files import atomic_folder, write_json
from starbucks_retrieval.locks import OutputLock, left_by_killed_run, lock_of
from starbucks_retrieval.models.info import ModelInfo, model_info
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size

log = logging.getLogger(__name__)

RECORD = "export.json"
CALIBRATION_TEXTS = 300


@dataclass(frozen=True)
class _Plan:
    """The checked arguments of an export, without any weights."""

    arguments: ExportArguments
    model: ModelInfo
    size: Size
    calibration: list[Passage]

    @property
    def output(self) -> Path:
        return Path(self.arguments.output_dir)

    @property
    def target(self) -> ExportTarget:
        return TARGETS[self.arguments.to]

    def figures(self) -> dict[str, Any]:
        """Return the figures that are known before weights are read."""
        return {
            "output": str(self.output),
            "to": self.arguments.to,
            "size": str(self.size),
            "int8": self.arguments.int8,
            "calibration_texts": len(self.calibration),
            "parameters_kept": self.model.parameters(self.size.layer, self.size.dim),
            "parameters_total": self.model.parameters(self.model.num_layers),
        }


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
    plan = _plan(arguments)
    with OutputLock(plan.output) as lock:
        _check_output(plan.output, arguments.model_name_or_path, arguments.overwrite_output_dir)  # since then
        return _export(plan, lock)


def _export(plan: _Plan, lock: OutputLock) -> dict[str, Any]:
    from starbucks_retrieval.models import NestedEncoder

    arguments, size = plan.arguments, plan.size
    encoder = NestedEncoder.from_pretrained(arguments.model_name_or_path, layers=size.layer, device="cpu")
    figures = plan.figures() | {"fingerprint": encoder.fingerprint(size.layer)}
    with atomic_folder(plan.output, before_rename=lock.announce) as folder:
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
    figures = plan.figures()
    number, free = figures["parameters_kept"], free_bytes(plan.output)
    figures |= {
        "bytes": number * (1 if arguments.int8 else 4),
        "exists": (plan.output / RECORD).is_file(),
        "hub": arguments.hub_model_id,
        "seconds": None,
        "free_bytes": free,
    }
    kept = f"{number:,} of {figures['parameters_total']:,} parameters are kept at {plan.size}"
    replaced = ", which is replaced" if figures["exists"] else ""
    there = "" if free is None else f"; {readable(free)} free there"
    written = f"about {readable(figures['bytes'])} of weights for {arguments.to} to {plan.output}{replaced}{there}"
    lines = [("model", f"{arguments.model_name_or_path}: {kept}"), ("writes", written)]
    if plan.calibration:
        lines.append(("int8", f"scaled on {len(plan.calibration)} texts of {arguments.calibration_path}"))
    if arguments.hub_model_id:
        lines.append(("uploads", f"the folder to {arguments.hub_model_id}"))
    return Preview([*lines, ("time", duration(None))], figures)


def _plan(arguments: ExportArguments) -> _Plan:
    """Check everything that can be checked before weights are read."""
    target = TARGETS[arguments.to]
    _check_output(Path(arguments.output_dir), arguments.model_name_or_path, arguments.overwrite_output_dir)
    for package in (*target.packages, *(target.int8_packages if arguments.int8 else ())):
        if importlib.util.find_spec(package) is None:
            flag = "--int8" if arguments.int8 else f"--to {arguments.to}"
            raise UserError(f"{flag} needs the package {package}", f"pip install 'starbucks-retrieval[{arguments.to}]'")
    if arguments.hub_model_id:
        _check_repository(arguments.hub_model_id)
    calibration = _read_calibration(arguments.calibration_path) if arguments.calibration_path else []
    model = model_info(arguments.model_name_or_path)
    size = arguments.selected_size(model)
    if target.check:
        target.check(model, size)
    if model.config.sizes and size not in model.config.sizes and not model.config.projected_layers:
        log.warning("%s is not one of the sizes that the model was trained for: %s", size, model.config.sizes)
    return _Plan(arguments, model, size, calibration)


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
    if not overwrite and not left_by_killed_run(output, lock_of(output)):
        raise UserError(f"{output} holds an earlier export", "add --overwrite_output_dir, or name another folder")


def _read_calibration(collection: str) -> list[Passage]:
    passages = list(itertools.islice(open_corpus(collection), CALIBRATION_TEXTS))
    if not passages:
        raise UserError(f"{collection} holds no passages", "name a corpus like the one to be encoded")
    return passages


def _record(arguments: ExportArguments, target: ExportTarget, figures: dict[str, Any]) -> dict[str, Any]:
    settings = dataclasses.asdict(arguments)
    for name in ("output_dir", "overwrite_output_dir", "push_to_hub", "hub_model_id", "hub_private"):
        del settings[name]  # the same export elsewhere has the same record
    settings["model_name_or_path"] = public_name(arguments.model_name_or_path)
    if arguments.calibration_path:
        settings["calibration_path"] = public_name(arguments.calibration_path)
    record = describe(settings, (*target.packages, *target.int8_packages))
    return record | {name: value for name, value in figures.items() if name != "output"}


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
