"""The encoder as one static graph, for back ends other than torch, and checks of a converted graph against torch."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import shallow_copy, truncated_view
from starbucks_retrieval.models.backends.base import GraphFunction, TokenRows, run_on
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.sizes import Size, Sizes

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "embedding"

# tests/models/test_backends.py converts each of these and compares it with torch.
CONVERTIBLE = (
    *("bert", "camembert", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta"),
    *("llama", "mistral", "qwen2", "qwen3", "eurobert", "gemma3_text", "nomic_bert"),
)

# Tolerances of a converted graph against torch. In fp32: the largest difference, relative to the largest number of the
# embeddings or to 1. Otherwise: the smallest mean cosine, which finds broken models; `drift` measures what others lose.
_MAX_DIFFERENCE = 1e-4
_MIN_COSINE = 0.8
_COMPARED = 32  # texts


class PooledLayersGraph(nn.Module):
    """The pooled outputs of several layers as one function of token ids and mask.

    It holds no weights above the deepest layer, and of the projections only those of its layers. Padding is on the
    right. In a row without tokens, the first padding token counts as one, so that no row gives NaN.

    Args:
        encoder: The encoder.
        layers: The layers to return, ascending.

    Attributes:
        outputs: The names of the outputs, such as `layer_6`.
    """

    def __init__(self, encoder: NestedEncoder, layers: Sequence[int]) -> None:
        super().__init__()
        self.layers = tuple(layers)
        if max(layers):
            self.backbone = truncated_view(encoder.backbone, encoder.layout, max(layers))
            self.head = encoder.head
        if (maps := encoder.projections) is not None:
            self.projections = nn.ModuleList(maps.parts(layers))
        self._encoder = [encoder]  # inside a list it is no submodule, so its other layers are not exported

    @property
    def encoder(self) -> NestedEncoder:
        """The encoder that the graph was made from."""
        return self._encoder[0]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [f"layer_{layer}" for layer in self.layers]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return float32 [batch, hidden] for each layer, from int64 token ids and mask [batch, tokens]."""
        empty = attention_mask.sum(dim=1, keepdim=True) == 0
        first = torch.arange(attention_mask.shape[1], device=attention_mask.device) == 0
        mask = torch.where(empty & first, torch.ones_like(attention_mask), attention_mask)
        with _NoEmptyAttention(), self.encoder.shortened():
            pooled_layers = self.encoder(input_ids, mask, self.layers)
        return tuple(pooled_layers[layer] for layer in self.layers)

    @torch.no_grad()
    def expected(self, batch: dict[str, Tensor]) -> list[np.ndarray]:
        """Return the outputs of the encoder itself, in torch, for a padded batch."""
        return [pooled.numpy() for pooled in self.encoder(**batch, layers=self.layers).values()]


class EmbeddingGraph(nn.Module):
    """The embedding at one size as one function of token ids and mask.

    Its projection, if there is one, is cut to the dimensions of the size.

    Args:
        encoder: The encoder.
        size: The size of the embedding.
    """

    def __init__(self, encoder: NestedEncoder, size: Size) -> None:
        super().__init__()
        encoder.check(Sizes([size]))
        if encoder.projections is not None:
            whole, encoder = encoder.projections, shallow_copy(encoder)
            encoder.projections = whole.cut(size)
        self.size = size
        self.outputs = [OUTPUT]
        self.pooled_layers = PooledLayersGraph(encoder, [size.layer])

    @property
    def encoder(self) -> NestedEncoder:
        """The encoder that the graph was made from."""
        return self.pooled_layers.encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return float32 [batch, dim] from int64 token ids and mask [batch, tokens]."""
        return embedding(self.pooled_layers(input_ids, attention_mask)[0], self.size.dim, self.encoder.config.normalize)

    @torch.no_grad()
    def expected(self, batch: dict[str, Tensor]) -> list[np.ndarray]:
        """Return the outputs of the encoder itself, in torch, for a padded batch."""
        pooled = self.encoder(**batch, layers=[self.size.layer])[self.size.layer]
        return [embedding(pooled, self.size.dim, self.encoder.config.normalize).numpy()]


Graph = PooledLayersGraph | EmbeddingGraph


class _NoEmptyAttention(TorchFunctionMode):
    """Lets a token that may attend to nothing attend to everything.

    With local attention, padding far behind a text has only padding in its window. The softmax over nothing is NaN in
    some back ends, and NaN times a weight of zero is NaN, which would reach the text. No token of a text attends to
    padding, so the states of padding do not matter.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        mask = kwargs.get("attn_mask")
        if func is nn.functional.scaled_dot_product_attention and mask is not None and mask.dtype is torch.bool:
            kwargs = kwargs | {"attn_mask": mask | ~mask.any(dim=-1, keepdim=True)}
        return func(*args, **kwargs)


def trace(graph: Graph) -> torch.export.ExportedProgram:
    """Export a graph with torch.export, for any number of texts, and of tokens up to the model's limit.

    Args:
        graph: The graph, with its weights on the CPU.

    Returns:
        A program that takes token ids and mask, int64 [batch, tokens].

    Raises:
        UserError: The architecture was not checked, or the weights are not on the CPU.
    """
    encoder = graph.encoder
    kind = encoder.backbone.config.model_type
    if kind not in CONVERTIBLE:
        raise UserError(
            f"the architecture {kind!r} has not been checked outside torch",
            f"checked: {', '.join(sorted(CONVERTIBLE))}",
        )
    if encoder.device.type != "cpu":
        raise UserError(f"the model is on {encoder.device}, and conversion works on a CPU", "say --device cpu")
    # Two texts, of different lengths: tracing would take a 1 for a constant.
    example = pad([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3]], 0)
    axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("tokens", min=1, max=encoder.token_limit)}
    with torch.no_grad(), quiet_export():
        return torch.export.export(graph, tuple(example.values()), dynamic_shapes=(axes, axes), strict=False)


def check_close(graph: Graph, run: GraphFunction, backend: str) -> None:
    """Compare a converted graph in fp32 with torch on a few random batches.

    Args:
        graph: The graph in torch.
        run: The converted graph.
        backend: Its name for the message.

    Raises:
        RuntimeError: An output differs by more than 1e-4.
    """
    for batch in _random_batches(graph.encoder):
        for name, expected, found in zip(graph.outputs, graph.expected(batch), run_on(run, batch)):
            difference = float(np.abs(expected - found).max())
            if not difference <= _MAX_DIFFERENCE * max(1.0, float(np.abs(expected).max())):
                raise RuntimeError(f"{name} of {backend} differs from torch by {difference:.2g}; this is a bug")


def check(graph: Graph, run: GraphFunction, backend: str, dtype: str, rows: TokenRows | None = None) -> None:
    """Compare a converted graph with torch: by `check_close` in fp32, else by the mean cosine of the embeddings.

    Args:
        graph: The graph in torch.
        run: The converted graph.
        backend: Its name for the message.
        dtype: Its precision.
        rows: Token rows, of which the first 32 are compared in low precision; None: random ones.

    Raises:
        UserError: The mean cosine in low precision is below 0.8.
    """
    if dtype == "fp32":
        check_close(graph, run, backend)
    else:
        _check_similar(graph, run, f"{backend} in {dtype}", rows and rows[:_COMPARED])


def _check_similar(graph: Graph, run: GraphFunction, backend: str, rows: TokenRows | None) -> None:
    """Raise UserError if the mean cosine of the embeddings with torch's is below 0.8, on token rows or on random ones."""
    batches = [pad([row], 0) for row in rows] if rows is not None else _random_batches(graph.encoder)
    cosines = []
    for batch in batches:
        for expected, found in zip(graph.expected(batch), run_on(run, batch)):
            lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
            cosines.append((expected * found).sum(1) / lengths)
    mean = float(np.concatenate(cosines).mean())
    if not mean >= _MIN_COSINE:
        raise UserError(
            f"{backend} gives embeddings whose mean cosine with torch's is {mean:.2f}",
            "stay with fp32, or give more calibration texts of the kind that are encoded",
        )


def _random_batches(encoder: NestedEncoder) -> list[dict[str, Tensor]]:
    """Return batches of one text and of several, of one token and of many, with much padding and with none."""
    rng = np.random.default_rng(0)
    vocabulary = int(encoder.backbone.config.vocab_size)
    long = min(encoder.token_limit, 48)
    shapes = [[1], [long], [long, 1, 5], [4, 4, 4, 4, 4]]
    # Ids from 5 on: most vocabularies begin with special tokens, padding among them.
    return [pad([rng.integers(5, vocabulary, length).tolist() for length in lengths], 0) for lengths in shapes]


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Silence the notes of exporters about missing libraries and their own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
