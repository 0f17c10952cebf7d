"""The flags of `export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import TARGETS
from starbucks_retrieval.sizes import Size, Sizes, check_size


@dataclasses.dataclass
class ExportArguments:
    """Exporting."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    output_dir: str = flag("", "folder to write, atomically", required=True)
    to: str = flag("", f"the tool that loads the folder; {TARGETS.help_text()}", required=True, choices=TARGETS)

    size: str | None = flag(None, "the size, such as 6:128, or a size alias (demi … trenta)")
    layer: int | None = flag(None, "instead of --size: its layer (with --dim; default: the last)")
    dim: int | None = flag(None, "instead of --size: its dimensions (default: all)")

    int8: bool = flag(False, "openvino: 8-bit weights and activations, scaled on --calibration_path")
    calibration_path: str | None = flag(
        None, "--int8: a corpus like the one to be encoded; its first 300 texts are read"
    )
    overwrite_output_dir: bool = flag(False, "replace an earlier export in the output folder")

    push_to_hub: bool = flag(False, "upload the folder to the Hugging Face hub once it is written")
    hub_model_id: str | None = flag(None, "--push_to_hub: name of the repository, such as me/my-model")
    hub_private: bool = flag(False, "--push_to_hub: a new repository is private")

    def __post_init__(self) -> None:
        if self.to not in TARGETS:
            TARGETS[self.to]  # raises UserError
        if self.size and (self.layer is not None or self.dim is not None):
            raise UserError("--size and --layer/--dim contradict each other", "give one of them")
        if self.int8 and self.to == "onnx":
            raise UserError(
                "--int8 is not offered for onnx: ONNX Runtime's dynamic int8 moves too many neighbours",
                "use --to openvino, which sets its scales on your texts, or leave --int8 out",
            )
        if self.int8 and self.to != "openvino":
            raise UserError(f"--int8 is for --to openvino, not {self.to}", "leave --int8 out")
        if self.int8 and not self.calibration_path:
            raise UserError(
                "--int8 needs texts to set its scales",
                "name a corpus like yours: --calibration_path corpus.jsonl",
            )
        if self.calibration_path and not self.int8:
            raise UserError("--calibration_path is read for --int8 only", "add --int8, or leave it out")
        if self.push_to_hub and not self.hub_model_id:
            raise UserError("--push_to_hub needs a repository", "name it: --hub_model_id me/my-model")
        if (self.hub_model_id or self.hub_private) and not self.push_to_hub:
            raise UserError("--hub_model_id and --hub_private do nothing without --push_to_hub", "add --push_to_hub")

    def selected_size(self, num_layers: int, hidden_size: int, model_sizes: Sizes) -> Size:
        """Return the size to export. Raises UserError, listing the model's sizes, for a missing or impossible one."""
        listed = f"sizes of the model: {model_sizes}"
        if self.size:
            sizes = Sizes.parse(self.size, model_sizes)
            if len(sizes) > 1:
                raise UserError(f"--size {self.size} names {len(sizes)} sizes, an export has one", listed)
            size = sizes[0]
        elif self.layer is not None or self.dim is not None:
            size = Size(num_layers if self.layer is None else self.layer, hidden_size if self.dim is None else self.dim)
        else:
            raise UserError("no size to export", f"give --size; {listed}")
        try:
            check_size(size, num_layers, hidden_size)
        except UserError as error:
            raise UserError(error.what, f"{error.hint}; {listed}") from None
        return size


def public_name(name_or_path: str) -> str:
    """Return the name under which a model or data set is recorded in an export.

    Args:
        name_or_path: A hub name, which is returned unchanged, or an existing local path, of which only the last part is
            kept: other machines do not have that path.

    Example:
        >>> public_name("me/my-model")
        'me/my-model'
    """
    return Path(name_or_path).resolve().name if Path(name_or_path).exists() else name_or_path
