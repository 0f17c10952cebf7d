"""What all back ends share: the interface, and the base class of those that run a static graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.batching import batch_tokens, pad, token_batches
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.parsing import Finite
from starbucks_retrieval.sizes import Size, Sizes

Dtype = Literal["auto", "fp32", "bf16", "fp16", "int8"]
TokenRows = Sequence[Sequence[int]]
# A converted graph: token ids and mask, int64 [batch, tokens] → outputs [batch, hidden].
GraphFunction = Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]]
Figures = dict[str, dict[str, Finite]]


class Backend(Protocol):
    """Something that computes embeddings.

    Attributes:
        name: `<back end>-<dtype>`, such as "onnx-fp32", and for torch the dtype alone, such as "bf16". Stores record
            it, and a rerun opens the same back end again.
    """

    name: str

    def embed(
        self, rows: TokenRows, sizes: Sizes, *, max_tokens: int, label: str | None = None
    ) -> dict[Size, np.ndarray]:
        """Compute the embeddings of token rows at several sizes in one pass.

        Equal calls give equal bits, and several threads may call at once.

        Args:
            rows: The token ids of each text.
            sizes: The sizes to return.
            max_tokens: The largest rows x longest row of a batch.
            label: Shows progress under this name; None shows none.

        Returns:
            {size: float32 [rows, dim]}, rows in their order.
        """
        ...


class FigureCache(Protocol):
    """Something that keeps figures that were measured on a graph, such as `KeptGraph`."""

    def figures(self, name: str, circumstances: dict[str, Any], measure: Callable[[], Figures]) -> Figures:
        """Return the kept figures of that name and circumstances, or the result of `measure`, which is then kept."""
        ...


class GraphBackend:
    """A back end whose static graph returns the pooled outputs of the layers it was made for.

    Pooling and projections are part of the graph; cutting to the dim and normalising are done here. Layer 0 is not part
    of it: torch looks it up in the token table, in float32.

    Args:
        name: See `Backend`.
        encoder: The encoder whose graph it is.
        sizes: The sizes that can be embedded. The graph returns their `graph_layers`.
        runner: Returns the graph as a function for one thread: int64 ids and mask [batch, tokens] → pooled outputs
            [batch, hidden].
        kept: Keeps figures that are measured on the graph, for the next start; None: nothing does.
    """

    def __init__(
        self,
        name: str,
        encoder: NestedEncoder,
        sizes: Sizes,
        runner: Callable[[], GraphFunction],
        kept: FigureCache | None = None,
    ) -> None:
        self.name = name
        self.runner = runner
        self.kept = kept
        self._encoder = encoder
        self._sizes = sizes

    @torch.no_grad()
    def embed(
        self, rows: TokenRows, sizes: Sizes, *, max_tokens: int, label: str | None = None
    ) -> dict[Size, np.ndarray]:
        """Compute embeddings as `Backend.embed` does. Raises UserError for a layer that the graph does not return."""
        self._encoder.check(sizes)
        for layer in sizes.layers:
            if layer not in self._sizes.layers:
                opened = ", ".join(map(str, self._sizes.layers))
                raise UserError(
                    f"{self.name} was opened for layers {opened}, not for layer {layer}", "open it with all the sizes"
                )
        results = {size: np.empty((len(rows), size.dim), dtype=np.float32) for size in sizes}
        results.update(self._encoder.look_up(rows, [size for size in sizes if not size.layer]))
        if not graph_layers(sizes):
            return results
        batches = token_batches([len(row) for row in rows], batch_tokens(max_tokens, "cpu"))
        run = self.runner()
        normalize = self._encoder.config.normalize
        for batch in progress(batches, len(batches), "batches", label) if label else batches:
            outputs = run_on(run, pad([rows[i] for i in batch], self._encoder.pad_id))
            pooled = {layer: torch.from_numpy(found) for layer, found in zip(graph_layers(self._sizes), outputs)}
            for size in sizes:
                if size.layer:
                    results[size][batch] = embedding(pooled[size.layer], size.dim, normalize).numpy()
        return results


def run_on(run: GraphFunction, batch: dict[str, torch.Tensor]) -> Sequence[np.ndarray]:
    """Return the outputs of a graph for a padded batch, as `pad` returns it on the CPU."""
    return run(batch["input_ids"].numpy(), batch["attention_mask"].numpy())


def graph_layers(sizes: Sizes) -> tuple[int, ...]:
    """Return the layers of sizes that a graph computes: those from 1, ascending.

    Example:
        >>> graph_layers(Sizes.parse("0:8,2:8,4:8"))
        (2, 4)
    """
    return tuple(layer for layer in sizes.layers if layer)


def need(*modules: str, extra: str) -> None:
    """Check that the packages of a back end can be imported.

    Args:
        modules: The names of the modules.
        extra: The extra of this package that installs them, for the hint.

    Raises:
        UserError: A module cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            raise UserError(
                f"the package {module} is not installed", f"pip install 'starbucks-retrieval[{extra}]'"
            ) from None


def need_cpu(name: str, encoder: NestedEncoder) -> None:
    """Check that an encoder is on the CPU.

    Args:
        name: The back end that runs there, for the message.
        encoder: The encoder.

    Raises:
        UserError: The encoder is on another device, or has weights of 16 bits.
    """
    if encoder.device.type != "cpu":
        raise UserError(f"{name} runs on CPUs, and the model is on {encoder.device}", "say --device cpu")
    if encoder.autocast_dtype is not None:
        raise UserError(f"{name} needs weights in float32", "leave out --weights_dtype, or take --backend torch")
