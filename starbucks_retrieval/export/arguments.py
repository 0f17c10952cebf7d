"""The flags of `export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes, check_size

Target = Literal["sentence-transformers", "transformers", "onnx", "openvino"]


@dataclasses.dataclass
class ExportArguments:
    """Exporting."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    output_dir: str = flag("", "folder to write, whole or not at all", required=True)
    to: Target = flag("", "what is to load the folder", required=True)

    size: str | None = flag(None, "the size, such as 6:128, or a cup name")
    layer: int | None = flag(None, "the same: its layer (with --dim; default: the last)")
    dim: int | None = flag(None, "the same: its dimensions (default: all)")

    int8: bool = flag(False, "openvino: 8-bit weights and activations, scaled on --calibration_path")
    calibration_path: str | None = flag(None, "--int8: corpus like the one to be encoded; its first 300 texts are read")
    overwrite_output_dir: bool = flag(False, "replace an earlier export in the output folder")

    push_to_hub: bool = flag(False, "upload the folder to the Hugging Face hub once it is written")
    hub_model_id: str | None = flag(None, "--push_to_hub: name of the repository, such as me/my-model")
    hub_private: bool = flag(False, "--push_to_hub: make a new repository a private one")

    def __post_init__(self) -> None:
        if self.to not in get_args(Target):
            raise UserError(f"nothing is exported to {self.to!r}", f"take one of {', '.join(get_args(Target))}")
        if self.size and (self.layer is not None or self.dim is not None):
            raise UserError("--size and --layer/--dim contradict each other", "give one of them")
        if self.int8 and self.to == "onnx":
            raise UserError(
                "--int8 is not offered for onnx: ONNX Runtime's dynamic int8 moves too many neighbours",
                "take --to openvino, which scales on texts of yours, or leave --int8 out",
            )
        if self.int8 and self.to != "openvino":
            raise UserError(f"--int8 is for --to openvino, not {self.to}", "leave --int8 out")
        if self.int8 and not self.calibration_path:
            raise UserError(
                "--int8 needs texts to scale its numbers on",
                "name a corpus like yours: --calibration_path corpus.jsonl",
            )
        if self.calibration_path and not self.int8:
            raise UserError("--calibration_path is read for --int8 only", "add --int8, or leave it out")
        if self.push_to_hub and not self.hub_model_id:
            raise UserError("--push_to_hub needs a repository", "name it: --hub_model_id me/my-model")
        if (self.hub_model_id or self.hub_private) and not self.push_to_hub:
            raise UserError("--hub_model_id and --hub_private do nothing without --push_to_hub", "add --push_to_hub")

    def wanted(self, num_layers: int, hidden_size: int, model_sizes: Sizes) -> Size:
        """The size to export. Raises UserError, naming the model's own sizes, where none or an impossible one is asked."""
        own = f"the model's own sizes: {model_sizes}"
        if self.size:
            asked = Sizes.parse(self.size, model_sizes)
            if len(asked) > 1:
                raise UserError(f"--size {self.size} names {len(asked)} sizes, an export has one", own)
            size = asked[0]
        elif self.layer is not None or self.dim is not None:
            size = Size(num_layers if self.layer is None else self.layer, hidden_size if self.dim is None else self.dim)
        else:
            raise UserError("no size to export", f"give --size; {own}")
        try:
            check_size(size, num_layers, hidden_size)
        except UserError as error:
            raise UserError(error.what, f"{error.hint}; {own}") from None
        return size


def public_name(name_or_path: str) -> str:
    """A hub name as it is, a local path as its last part: a path of this machine tells nobody anything."""
    return Path(name_or_path).resolve().name if Path(name_or_path).exists() else name_or_path
