"""The encoding pass of a grid: pooled outputs of every layer, in stores that resume."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformers import AutoConfig

from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.grid.arguments import EncodingArguments, GridArguments
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.architectures import layout_of
from starbucks_retrieval.models.config import find_config
from starbucks_retrieval.models.loading import explain_load_errors
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, open_store


class GridShape(NamedTuple):
    """Layers, hidden size and configuration of a model, changed by the flags."""

    num_layers: int
    hidden_size: int
    config: EncoderConfig


class LayerStores(NamedTuple):
    """Stores of the pooled outputs of one layer, at the widest dim of the grid."""

    queries: EmbeddingStore
    passages: EmbeddingStore


def grid_shape(arguments: EncodeArguments) -> GridShape:
    """Read a model's configuration without its weights.

    Args:
        arguments: Flags of `encode`: the model, and settings that change those it stores.

    Raises:
        UserError: The model cannot be read, its architecture is not supported, or a flag contradicts what it stores.
    """
    name = arguments.model_name_or_path
    with explain_load_errors(name):
        found = AutoConfig.from_pretrained(name)
    layout_of(found)
    depth, width = int(found.num_hidden_layers), int(found.hidden_size)
    return GridShape(depth, width, arguments.configured(find_config(name, depth, width)))


def encode_arguments(arguments: GridArguments, encoding: EncodingArguments) -> EncodeArguments:
    """Return the flags of `encode`, without data, sizes and output.

    Args:
        arguments: Names the model, and says whether embeddings of another job may be replaced.
        encoding: All other flags, which are copied.
    """
    return EncodeArguments(
        model_name_or_path=arguments.model_name_or_path, overwrite=arguments.overwrite, **dataclasses.asdict(encoding)
    )


def encode_layers(
    base: EncodeArguments, arguments: GridArguments, dataset: str, folder: Path, layers: Sequence[int], dim: int
) -> dict[int, LayerStores]:
    """Encode the queries and passages of a data set at `dim` of each layer, or resume doing so.

    Stored vectors are not normalised, so that truncating one gives exactly the embedding of a smaller size.

    Args:
        base: Flags of `encode` without data, sizes and output.
        arguments: Says where the queries are and which split is read.
        dataset: A BEIR folder or a short name.
        folder: Where the stores go, in `passages`, and in `queries` or `queries-<split>`.
        layers: The layers whose pooled output is stored.
        dim: The width of the stored vectors; the widest dim of the grid.

    Returns:
        The stores of queries and passages by layer.
    """
    queries, passages = layer_jobs(base, arguments, dataset, folder, layers, dim)
    encode(queries)
    encode(passages)
    folders = queries.encode_output_path, passages.encode_output_path
    return {layer: LayerStores(*(open_store(path, Size(layer, dim)) for path in folders)) for layer in layers}


def layer_jobs(
    base: EncodeArguments, arguments: GridArguments, dataset: str, folder: Path, layers: Sequence[int], dim: int
) -> tuple[EncodeArguments, EncodeArguments]:
    """Return the flags of `encode` for the queries and for the passages of a data set.

    Args:
        base: Flags of `encode` without data, sizes and output.
        arguments: Says where the queries are and which split is read.
        dataset: A BEIR folder or a short name.
        folder: Where the stores go.
        layers: The layers to store.
        dim: The width of the stored vectors.

    Returns:
        The flags for the queries, and those for the passages. Neither normalises the vectors.
    """
    sizes = Sizes(Size(layer, dim) for layer in layers)
    pooled_layers = dataclasses.replace(base, sizes=str(sizes), normalize=False, override=True)
    split = arguments.query_split
    queries, passages = folder / (f"queries-{split}" if split else "queries"), folder / "passages"
    of_queries = dataclasses.replace(
        pooled_layers,
        dataset_path=arguments.queries or dataset,
        dataset_split=split,
        encode_is_query=True,
        encode_output_path=str(queries),
    )
    return of_queries, dataclasses.replace(pooled_layers, dataset_path=dataset, encode_output_path=str(passages))


def remove_layers(stores: Sequence[LayerStores], root: Path) -> None:
    """Delete the stores, and then empty folders up to `root`; nothing else is touched.

    Args:
        stores: The stores of every data set and layer.
        root: The highest folder to delete. It stays if it holds anything else.
    """
    folders = [folder for pair in stores for store in pair for folder in store.folders]
    for folder in folders:
        shutil.rmtree(folder)
    for parent in sorted({parent for folder in folders for parent in folder.parents}, reverse=True):
        if (parent == root or root in parent.parents) and not any(parent.iterdir()):
            parent.rmdir()
