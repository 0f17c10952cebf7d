"""Back ends that compute embeddings: torch, ONNX Runtime, OpenVINO, one file each.

`BACKENDS` maps each value of `--backend` to a function that opens it:

    open(encoder, sizes, dtype, calibration) -> Backend

`sizes` are those that will be encoded, `dtype` is "auto" or a precision, and `calibration` holds token rows for int8, or
None. The function raises UserError for a dtype that the back end lacks and for a package that is not installed.
Reading the names does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.registry import Registry

if TYPE_CHECKING:
    from starbucks_retrieval.models.backends.base import Backend
    from starbucks_retrieval.models.encoder import NestedEncoder
    from starbucks_retrieval.sizes import Sizes

    OpenBackend = Callable[[NestedEncoder, Sizes, str, Sequence[Sequence[int]] | None], Backend]

__all__ = ["BACKENDS"]
__dir__ = public_names(__name__)

BACKENDS: Registry[OpenBackend] = Registry(
    "backends",
    "encoding back end",
    {
        "torch": ("starbucks_retrieval.models.backends.torch:open_torch", "PyTorch, on CPUs and GPUs"),
        "onnx": ("starbucks_retrieval.models.backends.onnx:open_onnx", "ONNX Runtime, on CPUs, fp32"),
        "openvino": ("starbucks_retrieval.models.backends.openvino:open_openvino", "OpenVINO, on CPUs, down to int8"),
    },
)
