"""Encoding with PyTorch: the encoder itself, in float32 or under autocast."""

from __future__ import annotations

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import precision
from starbucks_retrieval.models.backends.base import Backend, TokenRows
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes


class TorchBackend:
    """The encoder under autocast.

    Args:
        encoder: The encoder, on any device.
        dtype: The autocast dtype; None computes in float32.
        compiled: Compile the layers, in place: other users of the encoder run the compiled layers too.
    """

    def __init__(self, encoder: NestedEncoder, dtype: torch.dtype | None = None, *, compiled: bool = False) -> None:
        self.name = precision.dtype_name(dtype, encoder.autocast_dtype if dtype else None)
        self._encoder = encoder
        self._dtype = dtype
        if compiled:
            encoder.compile_layers()

    def embed(
        self, rows: TokenRows, sizes: Sizes, *, max_tokens: int, label: str | None = None
    ) -> dict[Size, np.ndarray]:
        """Compute embeddings as `Backend.embed` does."""
        return self._encoder.embed(rows, sizes, max_tokens=max_tokens, dtype=self._dtype, label=label)


def open_torch(encoder: NestedEncoder, sizes: Sizes, dtype: str, calibration: TokenRows | None = None) -> Backend:
    """Return the back end torch in fp32, bf16 or, on GPUs, fp16. auto is bf16 where the device is fast in it.

    Weights of 16 bits are computed in their own type.

    Args:
        encoder: The model.
        sizes: The sizes that will be asked for; layer 0 alone needs no forward pass.
        dtype: auto, fp32, bf16 or fp16.
        calibration: Not used.
    """
    if sizes.layers == (0,) and encoder.projections is not None:
        return TorchBackend(encoder)
    if dtype == "int8":
        raise UserError("torch has no int8 here", "take --backend openvino for int8, or --dtype bf16")
    if dtype == "fp16" and encoder.device.type == "cpu":
        raise UserError("CPUs do not support fp16", "take --dtype bf16 or fp32 on a CPU")
    return TorchBackend(encoder, precision.autocast_dtype(dtype, encoder.device, encoder.autocast_dtype))
