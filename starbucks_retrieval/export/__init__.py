"""Write one size of a model as a folder that other tools load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from starbucks_retrieval.data import Passage
    from starbucks_retrieval.export.api import export
    from starbucks_retrieval.export.arguments import ExportArguments
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.sizes import Size

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
    """

    loader: str
    write: Callable[[NestedEncoder, Size, Path, list[Passage]], None]
    usage: str
    notes: Callable[[NestedEncoder, Size, Mapping[str, Any]], list[str]]
    packages: tuple[str, ...] = ()
    int8_packages: tuple[str, ...] = ()


#: The values of `--to`.
TARGETS: Registry[ExportTarget] = Registry(
    "export_targets",
    "export target",
    {
        "sentence-transformers": (
            "starbucks_retrieval.export.sentence_transformers:SENTENCE_TRANSFORMERS",
            "a folder for SentenceTransformer",
        ),
        "transformers": ("starbucks_retrieval.export.hugging_face:TRANSFORMERS", "a folder for AutoModel"),
        "onnx": ("starbucks_retrieval.export.graph:ONNX", "a graph for ONNX Runtime"),
        "openvino": ("starbucks_retrieval.export.graph:OPENVINO", "a graph for OpenVINO, also in int8"),
    },
)

__getattr__, __dir__ = lazy_exports(__name__, {"ExportArguments": ".arguments", "export": ".api"})
