"""The one encoding pass of a grid: taps of queries and passages at every layer, in stores that resume."""

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
    """Depth, width and configuration of a model, the flags' changes included."""

    num_layers: int
    hidden_size: int
    config: EncoderConfig


class Stores(NamedTuple):
    """Taps at one layer, at the widest dim of the grid."""

    queries: EmbeddingStore
    passages: EmbeddingStore


def grid_shape(arguments: EncodeArguments) -> GridShape:
    """What the model is like, without reading its weights. Raises UserError as loading it does."""
    name = arguments.model_name_or_path
    with explain_load_errors(name):
        found = AutoConfig.from_pretrained(name)
    layout_of(found)
    depth, width = int(found.num_hidden_layers), int(found.hidden_size)
    return GridShape(depth, width, arguments.configured(find_config(name, depth, width)))


def encode_arguments(asked: GridArguments, encoding: EncodingArguments) -> EncodeArguments:
    """What `encode` would be told, but for data, sizes and place."""
    return EncodeArguments(
        model_name_or_path=asked.model_name_or_path, overwrite=asked.overwrite, **dataclasses.asdict(encoding)
    )


def encode_layers(
    base: EncodeArguments, asked: GridArguments, dataset: str, folder: Path, layers: Sequence[int], dim: int
) -> dict[int, Stores]:
    """Encode queries and passages of a data set, or what is left of them, at `dim` of each layer.

    What is stored is not normalised: a smaller dim is cut from the tap itself, not from what rounding to length 1 made
    of it, and so is what encoding at that size would have given.
    """
    queries, passages = tap_jobs(base, asked, dataset, folder, layers, dim)
    encode(queries)
    encode(passages)
    places = queries.encode_output_path, passages.encode_output_path
    return {layer: Stores(*(open_store(place, Size(layer, dim)) for place in places)) for layer in layers}


def tap_jobs(
    base: EncodeArguments, asked: GridArguments, dataset: str, folder: Path, layers: Sequence[int], dim: int
) -> tuple[EncodeArguments, EncodeArguments]:
    """What `encode` is told for the queries and for the passages of a data set."""
    sizes = Sizes(Size(layer, dim) for layer in layers)
    pooled_layers = dataclasses.replace(base, sizes=str(sizes), normalize=False, override=True)
    split = asked.query_split
    queries, passages = folder / (f"queries-{split}" if split else "queries"), folder / "passages"
    of_queries = dataclasses.replace(
        pooled_layers,
        dataset_path=asked.queries or dataset,
        dataset_split=split,
        encode_is_query=True,
        encode_output_path=str(queries),
    )
    return of_queries, dataclasses.replace(pooled_layers, dataset_path=dataset, encode_output_path=str(passages))


def remove_layers(stores: Sequence[Stores], root: Path) -> None:
    """Delete the stores, and the folders up to `root` that are empty then; nothing else is touched."""
    folders = [folder for pair in stores for store in pair for folder in store.folders]
    for folder in folders:
        shutil.rmtree(folder)
    for parent in sorted({parent for folder in folders for parent in folder.parents}, reverse=True):
        if (parent == root or root in parent.parents) and not any(parent.iterdir()):
            parent.rmdir()
