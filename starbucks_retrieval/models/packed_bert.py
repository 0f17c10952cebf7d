"""BERT in bfloat16 on a CPU, for encoding: packed weights, texts laid end to end, and compiled loops between the products.

Where products of bfloat16 are several times as fast as those of float32, the operations between them take most of the time
under autocast: attention, GELU, layer norms, casts, and copies. Here queries, keys and values are one product, attention is
two products of matrices with a compiled softmax between them, and a sum and its layer norm are one pass. Token rows are filled
up to a multiple of `_STEP`, because oneDNN compiles a kernel for each shape.

Products, sums and norms are rounded to bfloat16; inside a loop numbers are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from starbucks_retrieval.models.precision import pack
from starbucks_retrieval.models.unpadded import Packing

_STEP = 32  # number of token rows and of tokens in attention


class PackedBert:
    """The first layers of a BERT, in bfloat16. Its weights are copies. Several threads may call it at once.

    Args:
        backbone: A model for which `pack_bert` returns one of these.
        deepest: The number of layers.
        first_only: Compute the deepest layer for the first token of each text alone.
        loops: `starbucks_retrieval.models.compiled`.
    """

    def __init__(self, backbone: Any, deepest: int, first_only: bool, loops: ModuleType) -> None:
        self._backbone, self._first_only = backbone, first_only
        shortened = [first_only and number == deepest for number in range(1, deepest + 1)]
        self._layers = [_Layer(*pair, loops) for pair in zip(backbone.encoder.layer, shortened)]

    def __call__(
        self, packing: Packing, layers: Sequence[int], pooled: Callable[[Tensor, bool], Tensor]
    ) -> dict[int, Tensor]:
        """Compute the pooled outputs of layers.

        Args:
            packing: The texts.
            layers: The layers, 0 for the output of the embedding layer.
            pooled: Returns the pooled output from token states [1, tokens, hidden], or where its second argument is true
                from the states of first tokens alone, [texts, 1, hidden].

        Returns:
            {layer: [texts, hidden]} in order of the layers.
        """
        count = packing.ids.shape[1]
        hidden = self._backbone.embeddings(input_ids=packing.ids, position_ids=packing.positions)
        if hasattr(self._backbone, "embeddings_project"):  # of an ELECTRA with narrow embeddings
            hidden = self._backbone.embeddings_project(hidden)
        found = {0: pooled(hidden, False)} if 0 in layers else {}
        states = hidden.new_zeros(_up(count), hidden.shape[-1], dtype=torch.bfloat16)
        states[:count] = hidden[0]
        texts = _Texts(packing.bounds.numpy().astype(np.uint64), _up(packing.mask.shape[1]))
        for number, layer in enumerate(self._layers, 1):
            if self._first_only and number == len(self._layers):
                found[number] = pooled(layer.first_tokens(states, texts)[:, None], True)
                break
            states = layer(states, texts)
            if number in layers:
                found[number] = pooled(states[None, :count], False)
        return found


@dataclass(frozen=True)
class _Texts:
    """Where texts start, and the end of the last, [texts + 1] uint64; and the tokens of a text in attention."""

    starts: np.ndarray
    longest: int


class _Layer:
    """A layer of BERT.

    Args:
        layer: The layer of transformers.
        first_only: It will be asked for first tokens only.
        loops: As in `PackedBert`.
    """

    def __init__(self, layer: Any, first_only: bool, loops: ModuleType) -> None:
        attend, self._loops = layer.attention.self, loops
        self._heads = attend.num_attention_heads
        query, rest = (attend.query, attend.scaling), [(attend.key, 1.0), (attend.value, 1.0)]
        self._query = _Linear(query) if first_only else None
        self._inputs = _Linear(*rest) if first_only else _Linear(query, *rest)
        self._attended = _Linear((layer.attention.output.dense, 1.0))
        self._attention_norm = _AddNorm(layer.attention.output.LayerNorm, loops)
        self._intermediate = _Linear((layer.intermediate.dense, 1.0))
        self._output = _Linear((layer.output.dense, 1.0))
        self._output_norm = _AddNorm(layer.output.LayerNorm, loops)

    def __call__(self, states: Tensor, texts: _Texts) -> Tensor:
        """Return the output for all tokens, [token rows, hidden] as `states`."""
        context = self._attend(states, texts, None)
        joined = torch.empty_like(states)
        self._loops.join_heads(_bits(context), texts.starts, self._heads, _bits(joined))
        return self._feed_forward(joined, states)

    def first_tokens(self, states: Tensor, texts: _Texts) -> Tensor:
        """Return the output for the first token of each text, [texts, hidden]."""
        assert self._query is not None
        first = states[torch.from_numpy(texts.starts[:-1].astype(np.int64))]
        context = self._attend(states, texts, self._query(first).view(len(first) * self._heads, 1, -1))
        return self._feed_forward(context.view(len(first), -1), first)

    def _attend(self, states: Tensor, texts: _Texts, queries: Tensor | None) -> Tensor:
        """Return [texts * heads, tokens, width of a head]. `queries`: the same, or None for those of all tokens."""
        inputs = self._inputs(states)
        parts = 3 if queries is None else 2
        matrices = (len(texts.starts) - 1) * self._heads
        split = inputs.new_empty(parts, matrices, texts.longest, inputs.shape[1] // (parts * self._heads))
        self._loops.split_heads(_bits(inputs), texts.starts, self._heads, _bits(split))
        scores = torch.bmm(split[0] if queries is None else queries, split[-2].transpose(1, 2))
        self._loops.softmax(_bits(scores), texts.starts, self._heads)
        return torch.bmm(scores, split[-1])

    def _feed_forward(self, context: Tensor, states: Tensor) -> Tensor:
        attended = self._attention_norm(self._attended(context), states)
        return self._output_norm(self._output(self._intermediate(attended, "gelu")), attended)


class _Linear:
    """Linear layers of the same input as one product.

    Args:
        parts: Each layer, and a factor of its output.
    """

    def __init__(self, *parts: tuple[nn.Linear, float]) -> None:
        weight, bias = (
            torch.cat([getattr(layer, name).detach() * factor for layer, factor in parts])
            for name in ("weight", "bias")
        )
        self._weight, self._bias = pack(weight), bias.to(torch.bfloat16)

    def __call__(self, states: Tensor, activation: str = "none") -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(states, self._weight, self._bias, activation, [], "none")


class _AddNorm:
    """A layer norm of a sum."""

    def __init__(self, norm: nn.LayerNorm, loops: ModuleType) -> None:
        self._weight, self._bias = (part.detach().float().numpy() for part in (norm.weight, norm.bias))
        self._epsilon, self._loops = np.float32(norm.eps), loops

    def __call__(self, states: Tensor, residual: Tensor) -> Tensor:
        normed = torch.empty_like(states)
        self._loops.add_norm(*map(_bits, (states, residual)), self._weight, self._bias, self._epsilon, _bits(normed))
        return normed


def _bits(states: Tensor) -> np.ndarray:
    """A tensor of bfloat16 as Numba takes it: an array in the same memory."""
    return states.view(torch.int16).numpy().view(np.uint16)


def _up(number: int) -> int:
    return -(-number // _STEP) * _STEP
