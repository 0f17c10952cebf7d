"""The part of a model that a Searcher needs, and a check that it is the one behind stored passages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.cli.checks import check_collection
from starbucks_retrieval.cli.checks import check_model as check_model_name
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, StoreSpec
from starbucks_retrieval.store.spec import same_fingerprint


class QueryEncoder(Protocol):
    """The part of a model that a Searcher needs; `NestedEncoder` has it.

    `encode` returns {size: [texts, dim] float32}; `fingerprint` identifies the weights and settings up to a layer. An
    encoder with an attribute `projections` that is not None also searches passages of other layers in
    `projections.space`.

    Attributes:
        config: Has `pooling`, `normalize`, `passage_size(query size)` and `query_sizes(passage size)`, as
            `EncoderConfig`.
    """

    config: Any

    def encode(self, texts: list[str], sizes: Sizes, *, is_query: bool) -> Mapping[Size, np.ndarray]: ...

    def fingerprint(self, layer: int) -> str: ...


def check_model(store: EmbeddingStore, encoder: QueryEncoder, query_size: Size) -> None:
    """Check that queries of an encoder can be compared with stored passages.

    Args:
        store: The passages.
        encoder: The model of the queries.
        query_size: The size of the queries; its layer may be another than that of the passages.

    Raises:
        UserError: The store holds queries, the two sizes are not in one space, or the passages were encoded by another
            model or with another pooling or normalisation.
    """
    spec, config, layer = store.spec, encoder.config, query_size.layer
    if spec.kind != "passages":
        raise UserError("this store holds queries, not passages", "name the passages with --passage_reps")
    space = getattr(getattr(encoder, "projections", None), "space", "")
    if layer == spec.size.layer or not space or space != spec.shared_space:
        if config.passage_size(query_size) != spec.size:
            raise UserError(
                f"queries at {query_size} and passages at {spec.size} are not in one space: {space or 'none'} and "
                f"{spec.shared_space or 'none'}",
                "encode the passages with the model of the queries, which starbucks fit made, or search at one layer",
            )
        _check_fingerprint(spec, encoder, layer)
    for name in ("pooling", "normalize"):
        expected, found = getattr(spec, name), getattr(config, name)
        if expected != found:
            raise UserError(
                f"the passages were encoded with {name} {expected!r}, this model has {found!r}",
                "give the model that encoded them, or encode them again",
            )


def _check_fingerprint(spec: StoreSpec, encoder: QueryEncoder, layer: int) -> None:
    # Layers above that of the queries may not be loaded; the store of deeper passages lists the fingerprints below.
    deeper = layer < spec.size.layer
    of_model = encoder.fingerprint(min(layer, spec.size.layer))
    stored = spec.fingerprint if not deeper else spec.lineage[layer - 1] if len(spec.lineage) >= layer else "unknown"
    if not same_fingerprint(of_model, stored):
        raise UserError(
            f"the passages were encoded by another model: {spec.model_name or 'unnamed'} ({stored}), this one is {of_model}",
            "give the model that encoded them, or encode them again",
        )


def check_model_type(model: Any) -> None:
    """Check that a model is a name or an encoder.

    Args:
        model: A model folder, a hub name, or an encoder.

    Raises:
        UserError: The model is of another type or an encoder at one size, or names a folder that does not exist.
    """
    if hasattr(model, "size_name"):
        raise UserError(
            f"{model!r} is an encoder at one size",
            f'give the encoder, and the size beside it: size="{model.size_name}"',
        )
    if isinstance(model, str | Path):
        check_model_name(model)
    elif not hasattr(model, "fingerprint"):
        raise UserError(
            f"a model is a folder, a hub name or an encoder, not a {type(model).__name__}", "name the model"
        )


def check_names(model: Any, corpus: Any = None) -> None:
    """Check the types and names of a model and a corpus, without reading either.

    Args:
        model: A model folder, a hub name, or an encoder.
        corpus: A corpus; only a string is checked.

    Raises:
        UserError: The model is of another type or an encoder at one size, or a name is that of a local path
            without a file.
    """
    check_model_type(model)
    if isinstance(corpus, str):
        check_collection(corpus)


def stored_config(model: str | Path | QueryEncoder) -> Any:
    """Return the configuration of a model, without loading the model.

    Args:
        model: A model folder, a hub name, or an encoder.

    Returns:
        Of an encoder, its `config`. For a name, an `EncoderConfig`: what its starbucks.json says, or the defaults.
    """
    if not isinstance(model, str | Path):
        return model.config
    from starbucks_retrieval.models.config import FILE, EncoderConfig
    from starbucks_retrieval.models.modules_json import model_file

    path = model_file(str(model), FILE)
    return EncoderConfig.load(path) if path else EncoderConfig()


def sizes_and_settings(model: Any) -> Any:
    """Return the sizes and the settings of a model, from its folder or from an encoder.

    Args:
        model: A model folder, a hub name, or an encoder.

    Returns:
        A `ModelInfo` for a name, else the encoder; both have `sizes` and `config`.
    """
    from starbucks_retrieval.models.info import model_info

    return model_info(str(model)) if isinstance(model, str | Path) else model
