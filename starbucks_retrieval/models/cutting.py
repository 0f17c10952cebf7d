"""One size of an encoder: its projections, for exports and static graphs, and the number of its weights."""

from __future__ import annotations

from typing import TypeVar

from starbucks_retrieval.models.architectures import shallow_copy
from starbucks_retrieval.models.projections import LayerMap, Projections, TokenTable
from starbucks_retrieval.models.token_encoder import TokenEncoder
from starbucks_retrieval.sizes import Size

Encoder = TypeVar("Encoder", bound=TokenEncoder)


def cut_projections(projections: Projections, size: Size) -> Projections:
    """Return what one size needs: the first rows of the map of its layer and the token table if that is an input of the
    map, or for layer 0 the first columns of the token table.

    Args:
        projections: The projections of a model.
        size: The layer, 0 for the token table, and the numbers of an embedding.

    Returns:
        A copy, in the same space.

    Raises:
        UserError: The layer has no map.

    Example:
        >>> import torch
        >>> whole = Projections({1: LayerMap(torch.eye(3), torch.ones(3), (1,), normalize=True)}, None, {}, "")
        >>> tuple(cut_projections(whole, Size(1, 2)).map(1).weight.shape)
        (2, 3)
    """
    maps, table = {}, projections.table
    if size.layer == 0:
        whole = projections.token_table
        table = TokenTable(whole.rows.detach()[:, : size.dim].clone(), whole.counted)
    else:
        found = projections.map(size.layer)
        bias = None if found.bias is None else found.bias.detach()[: size.dim].clone()
        maps[size.layer] = LayerMap(found.weight.detach()[: size.dim].clone(), bias, found.inputs, found.normalize)
        table = table if 0 in found.inputs else None  # whole: it is an input
    return Projections(maps, table, projections.fingerprints, projections.space, None, table_is_input=size.layer > 0)


def with_projections(encoder: Encoder, projections: Projections | None) -> Encoder:
    """Return an encoder with other projections that shares the backbone and tokenizer of `encoder`."""
    view = shallow_copy(encoder)
    view.projections = projections
    return view


def count_parameters(encoder: TokenEncoder, size: Size) -> int:
    """Return the number of weights that an embedding at `size` needs: all but those of the layers above it.

    Layer 0 needs its token table only, another layer of a model with projections its map too, and the modules after
    pooling if there are any.

    Args:
        encoder: The encoder. Adapters are not counted; weights that ZeRO 3 shards are counted in full.
        size: The size, of which only the layer matters.
    """
    weights = [
        weight
        for name, weight in encoder.backbone.named_parameters()
        if encoder.layout.layer_of(name) <= size.layer and ".lora_" not in name
    ]
    if encoder.head is not None:
        weights += encoder.head.parameters()
    if encoder.projections is not None:
        parts = encoder.projections.parts([size.layer])
        weights = [*(weights if size.layer else ()), *(weight for part in parts for weight in part.parameters())]
    return sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights)  # ZeRO 3 shards weights
