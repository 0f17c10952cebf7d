"""Write one size of a model as a folder that other tools load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import as_flag_values, flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.registry import Registry
from starbucks_retrieval.sizes import ALIASES_HELP, Size, Sizes

if TYPE_CHECKING:
    from pathlib import Path

    from starbucks_retrieval.data import Passage
    from starbucks_retrieval.export.api import export
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.models.info import ModelInfo

__all__ = ["TARGETS", "ExportArguments", "ExportTarget", "export"]


@dataclass(frozen=True)
class ExportTarget:
    """A tool that loads an exported folder.

    Attributes:
        loader: The name of the tool in the model card.
        write: Writes the model at one size into a folder; the last argument holds passages for int8, or is empty.
        usage: Python lines of the model card, a `string.Template` with the names that `card.write_card` fills in.
        notes: Returns further notes of the model card, from the model, the size and the figures of the export.
        packages: Packages that exporting needs.
        int8_packages: Packages that int8 needs besides.
        check: Raises UserError for a model and size that the tool cannot represent; None admits all.
    """

    loader: str
    write: Callable[[NestedEncoder, Size, Path, list[Passage]], None]
    usage: str
    notes: Callable[[NestedEncoder, Size, Mapping[str, Any]], list[str]]
    packages: tuple[str, ...] = ()
    int8_packages: tuple[str, ...] = ()
    check: Callable[[ModelInfo, Size], None] | None = None


#: The values of `--to`.
TARGETS: Registry[ExportTarget] = Registry(
    "export_targets",
    "export target",
    {
        "sentence-transformers": (
            "starbucks_retrieval.export.hugging_face:SENTENCE_TRANSFORMERS",
            "a folder for SentenceTransformer",
        ),
        "transformers": ("starbucks_retrieval.export.hugging_face:TRANSFORMERS", "a folder for AutoModel"),
        "onnx": ("starbucks_retrieval.export.graph:ONNX", "a graph for ONNX Runtime"),
        "openvino": ("starbucks_retrieval.export.graph:OPENVINO", "a graph for OpenVINO, also in int8"),
    },
)


@dataclass
class ExportArguments:
    """Exporting."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    output_dir: str = flag("", "folder to write, atomically", required=True)
    to: str = flag("", f"the tool that loads the folder; {TARGETS.help_text()}", required=True, choices=TARGETS)

    size: str | None = flag(None, f"the size, such as 6:128, or a size alias. {ALIASES_HELP}")
    layer: int | None = flag(None, "instead of --size: its layer (with --dim; default: the last)", rare=True)
    dim: int | None = flag(None, "instead of --size: its dimensions (default: all)", rare=True)

    int8: bool = flag(False, "openvino: 8-bit weights and activations, scaled on --calibration_path")
    calibration_path: str | None = flag(
        None, "--int8: a corpus like the one to be encoded; its first 300 texts are read"
    )
    overwrite_output_dir: bool = flag(False, "replace an earlier export in the output folder")

    push_to_hub: bool = flag(False, "upload the folder to the Hugging Face hub once it is written")
    hub_model_id: str | None = flag(None, "--push_to_hub: name of the repository, such as me/my-model")
    hub_private: bool = flag(False, "--push_to_hub: a new repository is private", rare=True)

    def __post_init__(self) -> None:
        as_flag_values(self)
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

    def selected_size(self, model: ModelInfo) -> Size:
        """Return the size to export. Raises UserError, listing the model's sizes, for a missing or impossible one."""
        listed = f"sizes of the model: {model.sizes}"
        if self.size:
            sizes = Sizes.parse(self.size, model.sizes)
            if len(sizes) > 1:
                raise UserError(f"--size {self.size} names {len(sizes)} sizes, an export has one", listed)
            size = sizes[0]
        elif self.layer is not None or self.dim is not None:
            size = Size(
                model.num_layers if self.layer is None else self.layer,
                model.hidden_size if self.dim is None else self.dim,
            )
        else:
            raise UserError("no size to export", f"give --size; {listed}")
        try:
            model.check(Sizes([size]))
        except UserError as error:
            raise UserError(error.what, f"{error.hint}; {listed}") from None
        return size


__getattr__, __dir__ = lazy_exports(__name__, {"export": ".api"})
