"""Token states of a backbone at several layers, and its embedding layer by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from starbucks_retrieval.models.architectures import ArchitectureLayout, layers_of, truncated_view


def hidden_states(
    backbone: Any, layout: ArchitectureLayout, layers: Sequence[int], input_ids: Tensor, attention_mask: Tensor
) -> dict[int, Tensor]:
    """{layer: [batch, tokens, hidden]} at the asked layers, from one pass that ends at the deepest of them.

    As for taps, the state at layer n is the output of the model truncated to n layers, final norm included.
    """
    deepest = max(layers)
    model = truncated_view(backbone, layout, deepest)
    found: dict[int, Tensor] = {}
    stack = layers_of(backbone, layout)
    hooks = [stack[number - 1].register_forward_hook(partial(_keep, found, number)) for number in {*layers} - {deepest}]
    try:
        last = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    if layout.final_norm is not None:
        norm = backbone.get_submodule(layout.final_norm)
        found = {number: norm(state) for number, state in found.items()}
    return found | {deepest: last}


def _keep(found: dict[int, Tensor], number: int, module: nn.Module, inputs: Any, output: Any) -> None:
    found[number] = output[0] if isinstance(output, tuple) else output


def embedded(backbone: Any, ids: Tensor) -> Tensor:
    """What the first layer is given for token ids [batch, tokens]: [batch, tokens, hidden]."""
    return widened(backbone, backbone.embeddings(input_ids=ids))


def widened(backbone: Any, vectors: Tensor, bias: bool = True) -> Tensor:
    """Vectors as wide as the word embeddings, brought to the width of the layers: [..., E] -> [..., D].

    Only ELECTRA's small models have two widths, and a projection between their embeddings and their layers.
    """
    project = getattr(backbone, "embeddings_project", None)
    if project is None:
        return vectors
    return functional.linear(vectors, project.weight, project.bias if bias else None)


def position_embeddings(backbone: Any, tokens: int) -> Tensor:
    """The learned embeddings of the first positions of a text without padding to its left: [tokens, hidden]."""
    table = backbone.embeddings.position_embeddings.weight
    # RoBERTa and its kin number positions from after the padding token's id.
    start = getattr(backbone.embeddings, "padding_idx", -1) + 1
    return widened(backbone, table[start : start + tokens], bias=False)
