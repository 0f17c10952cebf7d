"""What computes embeddings from token ids: torch, ONNX Runtime or OpenVINO behind one call."""

from __future__ import annotations

import importlib
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, cast, get_args

import numpy as np
import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import precision
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.sizes import Size, Sizes

Dtype = Literal["auto", "fp32", "bf16", "fp16", "int8"]
TokenRows = Sequence[Sequence[int]]

_PROBES = 5  # batches that each candidate is timed on
_SECONDS = 1.5  # what the slowest candidate may take for them all, unless they are small
_SMALL = 512  # tokens of a small batch


class Backend(Protocol):
    """Something that computes embeddings. `name` says what and in which arithmetic: "bf16" is torch, "onnx-fp32" is not."""

    name: str

    def embed(
        self, rows: TokenRows, sizes: Sizes, *, max_tokens: int, label: str | None = None
    ) -> dict[Size, np.ndarray]:
        """Embeddings {size: float32 [rows, dim]} of token rows, in their order, from one pass for all sizes.

        max_tokens bounds rows x longest of a batch. With a label, progress is shown under it. Equal calls give equal
        bits, and calls may come from several threads.
        """
        ...


class TorchBackend:
    """The encoder itself, under autocast with a dtype.

    `compiled` compiles the encoder's layers in place: whoever else holds the encoder runs them compiled, too.
    """

    def __init__(self, encoder: NestedEncoder, dtype: torch.dtype | None = None, *, compiled: bool = False) -> None:
        self.name = precision.name_of(dtype)
        self._encoder = encoder
        self._dtype = dtype
        if compiled:
            encoder.compile_layers()

    def embed(
        self, rows: TokenRows, sizes: Sizes, *, max_tokens: int, label: str | None = None
    ) -> dict[Size, np.ndarray]:
        """See Runtime."""
        return self._encoder.embed(rows, sizes, max_tokens=max_tokens, dtype=self._dtype, label=label)


class GraphBackend(ABC):
    """A static graph that gives the taps of the layers it was made for; the encoder's pooling is part of the graph."""

    def __init__(self, name: str, encoder: NestedEncoder, sizes: Sizes) -> None:
        self.name = name
        self._encoder = encoder
        self._layers = sizes.layers

    @abstractmethod
    def runner(self) -> Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]]:
        """A function from int64 ids and mask [batch, tokens] to the taps [batch, hidden], for use in one thread."""

    def embed(
        self, rows: TokenRows, sizes: Sizes, *, max_tokens: int, label: str | None = None
    ) -> dict[Size, np.ndarray]:
        """See Runtime. Raises UserError for a size whose layer the graph was not made for."""
        sizes.check(self._encoder.num_layers, self._encoder.hidden_size)
        for layer in sizes.layers:
            if layer not in self._layers:
                made = ", ".join(map(str, self._layers))
                raise UserError(f"layer {layer} asked of {self.name}, made for {made}", "open it with all the sizes")
        results = {size: np.empty((len(rows), size.dim), dtype=np.float32) for size in sizes}
        batches = token_batches([len(row) for row in rows], max_tokens)
        run = self.runner()
        pad_id = self._encoder.tokenizer.pad_token_id or 0
        normalize = self._encoder.config.normalize
        for batch in progress(batches, len(batches), "batches", label) if label else batches:
            padded = pad([rows[i] for i in batch], pad_id)
            pooled_layers = dict(zip(self._layers, run(padded["input_ids"].numpy(), padded["attention_mask"].numpy())))
            for size in sizes:
                results[size][batch] = embedding(
                    torch.from_numpy(pooled_layers[size.layer]), size.dim, normalize
                ).numpy()
        return results


def need(*modules: str, extra: str) -> None:
    """Raise UserError, naming the extra that brings it, unless every module can be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            raise UserError(
                f"the package {module} is not installed", f"pip install 'starbucks-retrieval[{extra}]'"
            ) from None


def open_backend(
    backend: str,
    encoder: NestedEncoder,
    sizes: Sizes,
    dtype: str = "auto",
    calibration: TokenRows | None = None,
) -> Backend:
    """A runtime for an encoder at some sizes: "torch", or on CPUs "onnx" (fp32) or "openvino" (fp32, bf16, int8).

    auto is bf16 where the hardware multiplies it fast and the backend has it, else fp32; torch has fp16 on GPUs. int8
    reads the ranges of its numbers off `calibration`, token rows of the kind to come. The encoder's configuration must
    not change afterwards. Raises UserError for a package that is absent, a dtype that the backend lacks, a GPU that it
    cannot use, and an architecture that was not checked.
    """
    if backend not in BACKENDS:
        raise UserError(f"unknown backend {backend!r}", f"take one of {', '.join(BACKENDS)}")
    if dtype not in get_args(Dtype):
        raise UserError(f"unknown dtype {dtype!r}", f"take one of {', '.join(get_args(Dtype))}")
    if backend != "torch" and encoder.device.type != "cpu":
        raise UserError(f"{backend} runs on CPUs, and the model is on {encoder.device}", "say --device cpu")
    return BACKENDS[backend](encoder, sizes, cast(Dtype, dtype), calibration)


def _torch(encoder: NestedEncoder, sizes: Sizes, dtype: Dtype, calibration: TokenRows | None) -> Backend:
    if dtype == "int8":
        raise UserError("torch has no int8 here", "take --backend openvino for int8, or --dtype bf16")
    if dtype == "fp16" and encoder.device.type == "cpu":
        raise UserError("fp16 is for GPUs", "take --dtype bf16 or fp32 on a CPU")
    return TorchBackend(encoder, precision.choose(dtype, encoder.device))


def _onnx(encoder: NestedEncoder, sizes: Sizes, dtype: Dtype, calibration: TokenRows | None) -> Backend:
    if dtype not in ("auto", "fp32"):
        raise UserError(f"onnx computes in fp32, not {dtype}", "take --backend openvino, or --dtype fp32")
    from starbucks_retrieval.models.backends.onnx import open_onnx

    return open_onnx(encoder, sizes)


def _openvino(encoder: NestedEncoder, sizes: Sizes, dtype: Dtype, calibration: TokenRows | None) -> Backend:
    if dtype == "fp16":
        raise UserError("openvino computes in fp32, bf16 or int8, not fp16", "take --dtype bf16")
    from starbucks_retrieval.models.backends.openvino import open_openvino

    chosen = precision.name_of(precision.choose("auto", encoder.device)) if dtype == "auto" else dtype
    return open_openvino(encoder, sizes, chosen, calibration)


BACKENDS: dict[str, Callable[[NestedEncoder, Sizes, Dtype, TokenRows | None], Backend]] = {
    "torch": _torch,
    "onnx": _onnx,
    "openvino": _openvino,
}


def choose_backend(
    candidates: Sequence[Backend], rows: TokenRows, sizes: Sizes, max_tokens: int
) -> tuple[Backend, dict[str, float]]:
    """The fastest of several runtimes on real token rows, and {name: texts per second} of those that were timed.

    Only those in the arithmetic of the first are: speed is no reason to change results. Each is warmed up, then all take
    turns on the same few batches of long to short texts, each batch new to all; the best median time a token wins, the
    first of equals. Batches are as large as some seconds in all allow.
    """
    if not candidates:
        raise UserError("no backend can run this model here", "name one with --backend to learn why")
    alike = [runtime for runtime in candidates if _arithmetic(runtime) == _arithmetic(candidates[0])]
    if len(alike) == 1 or not rows:
        return alike[0], {}
    lengths = [len(row) for row in rows]
    # A small batch warms up and tells, at its second run, how large the ones to be timed can be.
    small = _probes(rows, min(max_tokens, _SMALL), 1)[0]
    slowest = max([_seconds(runtime, small, sizes, max_tokens) for _ in range(2)][1] for runtime in alike)
    affordable = int(sum(map(len, small)) * _SECONDS / (slowest * _PROBES))
    laps: list[list[float]] = [[] for _ in alike]
    for turn, probe in enumerate(_probes(rows, min(max_tokens, max(affordable, _SMALL)), _PROBES)):
        for i in range(len(alike)):
            which = (turn + i) % len(alike)  # so that nobody always works in the same other one's wake
            laps[which].append(_seconds(alike[which], probe, sizes, max_tokens) / sum(map(len, probe)))
    texts_per_token = len(lengths) / sum(lengths)
    rates = [texts_per_token / statistics.median(lap) for lap in laps]
    return alike[rates.index(max(rates))], {runtime.name: rate for runtime, rate in zip(alike, rates)}


def _arithmetic(runtime: Backend) -> str:
    return runtime.name.rpartition("-")[2]


def _probes(rows: TokenRows, max_tokens: int, count: int) -> list[list[Sequence[int]]]:
    """`count` of the batches that all rows make, evenly spread from long texts to short ones, or all if they are fewer."""
    batches = token_batches([len(row) for row in rows], max_tokens)
    picked = np.linspace(0, len(batches) - 1, count + 2)[1:-1].round() if len(batches) > count else range(len(batches))
    return [[rows[i] for i in batches[int(position)]] for position in picked]


def _seconds(runtime: Backend, rows: TokenRows, sizes: Sizes, max_tokens: int) -> float:
    began = now()
    runtime.embed(rows, sizes, max_tokens=max_tokens)
    return seconds_since(began)
