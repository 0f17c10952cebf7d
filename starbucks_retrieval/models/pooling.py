"""From token ids to pooled outputs of any layers of a backbone, and from these to embeddings: cut, then normalise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import bert, unpadded
from starbucks_retrieval.models.architectures import layers_of, layout_of, truncated_view
from starbucks_retrieval.models.captured import CapturedLayers
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.head import Head
from starbucks_retrieval.models.layer_maps import TokenTable
from starbucks_retrieval.models.packed_bert import PackedBert
from starbucks_retrieval.models.projections import Projections


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return one vector per text.

    Args:
        hidden: Token states [batch, tokens, hidden].
        mask: 1 for tokens and 0 for padding, [batch, tokens].
        pooling: "cls" takes the first token, "mean" the average over all tokens that are not padding, "last" the last
            of them; the padding may be on either side.

    Returns:
        [batch, hidden], float32 or wider.

    Example:
        >>> hidden = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> mask = torch.tensor([[1, 1, 0]])
        >>> [pool(hidden, mask, pooling).item() for pooling in ("cls", "mean", "last")]
        [1.0, 2.0, 3.0]
    """
    if pooling == "cls":
        pooled = hidden[:, 0]
    elif pooling == "last":
        positions = torch.arange(mask.shape[1], device=mask.device)
        last = (mask * positions).argmax(dim=1)
        # shape[0] and not len(), which would fix the batch of a traced graph
        pooled = hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
    else:
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        pooled = (hidden * weights).sum(dim=1, dtype=wide) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return pooled.to(torch.promote_types(pooled.dtype, torch.float32))


def embedding(pooled: Tensor, dim: int, normalize: bool) -> Tensor:
    """Return the embedding of a pooled output: its first `dim` numbers, then L2-normalised if `normalize`.

    The other order would leave vectors of different lengths, whose dot product is not a cosine.
    Source: Starbucks (arXiv 2410.13230), eq. 1.

    Args:
        pooled: [batch, hidden].
        dim: The dimensions to keep.
        normalize: Divide each row by its length.

    Returns:
        [batch, dim].

    Example:
        >>> embedding(torch.tensor([[3.0, 4.0, 12.0]]), 2, normalize=True)
        tensor([[0.6000, 0.8000]])
    """
    cut = pooled[:, :dim]
    return torch.nn.functional.normalize(cut, dim=-1) if normalize else cut


class PooledBackbone(nn.Module):
    """A backbone that returns the pooled outputs of any of its layers in one pass.

    The pooled output of layer n equals that of the model truncated to n layers, and no layer above the deepest one
    needed runs. Several threads may use one object. A head, if there is one, is part of the pooling of every layer. With
    projections, the map of each layer is applied to its output.

    Args:
        backbone: A bare Hugging Face model of a supported architecture.
        config: Its pooling is read at every pass.
        projections: The maps of the layers, or None.
        head: The Dense and LayerNorm modules after pooling, or None.

    Attributes:
        num_layers: Layers of the backbone.
        hidden_size: Width of a pooled output: that of the head, or of the backbone without one.
    """

    def __init__(
        self,
        backbone: nn.Module,
        config: EncoderConfig,
        projections: Projections | None = None,
        head: Head | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = config
        self.projections = projections
        self.head = head
        self.layout = layout_of(backbone.config)
        self.num_layers = int(backbone.config.num_hidden_layers)
        self.hidden_size = int(backbone.config.hidden_size) if head is None else head.width
        self._captured = CapturedLayers()
        layers = layers_of(backbone, self.layout)
        if len(layers):
            layers[0].register_forward_pre_hook(self._before_layers, with_kwargs=True)
        for number, layer in enumerate(layers, 1):
            layer.register_forward_hook(partial(self._after_layer, number))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.backbone.parameters()).device

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The type of weights of 16 bits, in which they are computed; None for float32."""
        dtype = next(self.backbone.parameters()).dtype
        return dtype if dtype in (torch.bfloat16, torch.float16) else None

    def compile_layers(self) -> None:
        """Compile each layer's forward with torch.compile, in place, for inputs of any length."""
        for layer in layers_of(self.backbone, self.layout):
            layer.forward = torch.compile(layer.forward, dynamic=True)

    def shortened(self) -> contextlib.AbstractContextManager[None]:
        """Compute the deepest layer for the first token alone, where pooling takes no other, in passes of this thread."""
        return self._captured.shortened()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the pooled outputs of several layers in one pass.

        Args:
            input_ids: Token ids [batch, tokens].
            attention_mask: 1 for tokens and 0 for padding, [batch, tokens].
            layers: The layers, from 1. Layer 0 is the token table of a model with projections; without them it is the
                output of the embedding layer, and only beside others.

        Returns:
            {layer: [batch, hidden]}, ascending, after the head and the projections that the model has, not cut and not
            normalised.

        Raises:
            UserError: The model lacks a layer.

        Example:
            ```python
            pooled = encoder(**encoder.tokenizer(["hens lay eggs"], return_tensors="pt"), layers=[2, 6])
            pooled[2].shape  # torch.Size([1, 384])
            ```
        """
        return self._projected(
            layers,
            lambda needed: self.unprojected(input_ids, attention_mask, needed),
            lambda table: table(input_ids, attention_mask),
        )

    def unprojected(self, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the pooled outputs of the backbone as `forward` does, without the projections.

        Args:
            input_ids: Token ids [batch, tokens].
            attention_mask: 1 for tokens and 0 for padding, [batch, tokens].
            layers: The layers from 1; 0, the output of the embedding layer, only beside others.

        Returns:
            {layer: [batch, hidden]}, ascending, after the head.

        Raises:
            UserError: The backbone lacks a layer.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        mask = self.pooling_mask(input_ids, attention_mask)
        return self._pooled_layers(inputs, partial(self._pool, mask=mask), layers)

    def pooling_mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mask of the tokens that count in pooling: all but padding, and but prompts where they do not.

        Args:
            input_ids: Token ids [batch, tokens].
            attention_mask: 1 for tokens and 0 for padding, [batch, tokens].
        """
        return attention_mask

    def forward_unpadded(self, rows: Sequence[Sequence[int]], layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the pooled outputs as `forward` does, from rows of token ids laid end to end, without padding.

        The encoder must have been loaded with `attn_implementation="unpadded"`.

        Args:
            rows: The token ids of each text.
            layers: The layers, as in `forward`.

        Returns:
            {layer: [rows, hidden]}.
        """
        packing = self._packing(rows)
        inputs = {"input_ids": packing.ids, "position_ids": packing.positions}
        pooled = self._pooling_of(packing)
        with unpadded.attend_within(packing):
            return self._projected(
                layers,
                lambda needed: self._pooled_layers(inputs, pooled, needed),
                lambda table: table(packing.padded_ids, packing.mask),  # tokens that do not count get no gradient
            )

    def forward_packed(
        self, rows: Sequence[Sequence[int]], layers: Sequence[int], packed: PackedBert
    ) -> dict[int, Tensor]:
        """Return the pooled outputs as `forward` does, computed in bfloat16 by packed layers.

        Args:
            rows: The token ids of each text.
            layers: The layers, as in `forward`.
            packed: The layers that are needed, from `pack_bert`.

        Returns:
            {layer: [rows, hidden]}.
        """
        packing = self._packing(rows)
        pooled = self._pooling_of(packing)

        def finish(hidden: Tensor, first_only: bool) -> Tensor:
            return self._pool(hidden, packing.mask) if first_only else pooled(hidden)

        return self._projected(
            layers,
            lambda needed: packed(packing, needed, finish),
            lambda table: table(packing.padded_ids, packing.mask),
        )

    def _packing(self, rows: Sequence[Sequence[int]]) -> unpadded.Packing:
        return unpadded.Packing.pack(rows, unpadded.first_position(self.backbone.config), self.device)

    def _pooling_of(self, packing: unpadded.Packing) -> Callable[[Tensor], Tensor]:
        """Return the pooling of token states [1, tokens, hidden]."""
        mask = self.pooling_mask(packing.padded_ids, packing.mask)

        def pooled(hidden: Tensor) -> Tensor:
            if self.config.pooling == "cls":  # no other token is needed
                return self._pool(hidden[0, packing.bounds[:-1]].unsqueeze(1), mask)
            return self._pool(packing.padded(hidden), mask)

        return pooled

    def _projected(
        self,
        layers: Sequence[int],
        pooled_layers: Callable[[Sequence[int]], dict[int, Tensor]],
        look_up: Callable[[TokenTable], Tensor],
    ) -> dict[int, Tensor]:
        """Apply the projections, if there are any, to the pooled outputs that they need, in float32."""
        projections = self.projections
        if projections is None:
            return pooled_layers(layers)
        needed = projections.inputs(layers)
        pooled = pooled_layers(sorted(needed - {0})) if needed - {0} else {}
        with self._without_autocast():
            if 0 in needed:
                table = projections.token_table if 0 in layers else projections.table
                assert table is not None  # maps that take it come with it
                pooled[0] = look_up(table)
            return {layer: projections.map(layer)(pooled) if layer else pooled[0] for layer in sorted(set(layers))}

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the pooled output of token states, with the head applied."""
        pooled = pool(hidden, mask, self.config.pooling)
        if self.head is None:
            return pooled
        with self._without_autocast():
            return self.head(pooled)

    def _without_autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Keep the maps and the head out of half precision, which autocast would compute them in."""
        kind = self.device.type
        # Entering a context for nothing would end up in traced graphs.
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()

    def _pooled_layers(
        self, inputs: dict[str, Tensor], pooled: Callable[[Tensor], Tensor], layers: Sequence[int]
    ) -> dict[int, Tensor]:
        deepest = max(layers)
        if not (min(layers) >= 0 and 1 <= deepest <= self.num_layers):
            raise UserError(f"a model of {self.num_layers} layers has no layers {sorted(layers)}", "layers start at 1")
        below = set(layers) - {deepest}
        last = layers_of(self.backbone, self.layout)[deepest - 1]
        first_only = (
            self._captured.first_only
            and self.config.pooling == "cls"
            and deepest > 1
            and bert.can_compute_first_token(last, self.backbone, inputs)
        )
        run = deepest - first_only  # layers that compute all tokens
        model = self.backbone if run == self.num_layers else truncated_view(self.backbone, self.layout, run)
        finish = partial(self._finish, pooled)
        with self._captured.collect(below, finish) as states:
            hidden = model(**inputs).last_hidden_state
        if first_only:
            hidden = bert.compute_first_token(last, hidden, inputs["attention_mask"])
        # Token states, of three dimensions, were left as they are while gradients are recorded.
        pooled_layers = {layer: finish(state) if state.dim() == 3 else state for layer, state in states.items()}
        pooled_layers[deepest] = pooled(hidden)
        return {layer: pooled_layers[layer] for layer in sorted(set(layers))}

    def _before_layers(self, module: nn.Module, inputs: Any, keywords: Any) -> None:
        self._captured.add(0, inputs[0] if inputs else keywords["hidden_states"])

    def _after_layer(self, number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        self._captured.add(number, output[0] if isinstance(output, tuple) else output)

    def _finish(self, pooled: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        if self.layout.final_norm is not None:
            hidden = self.backbone.get_submodule(self.layout.final_norm)(hidden)
        return pooled(hidden)
