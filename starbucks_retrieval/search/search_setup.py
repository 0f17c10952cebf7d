"""What a search of typed queries needs, made once for a size or a funnel, and whether its model is that of the passages."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.cli.checks import check_collection
from starbucks_retrieval.cli.checks import check_model as check_model_name
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.engines.float16_scan import hold
from starbucks_retrieval.search.funnel import INDEX, Funnel, FunnelStep
from starbucks_retrieval.search.funnel_first_steps import code_shortlister
from starbucks_retrieval.search.funnel_search import Shortlister
from starbucks_retrieval.search.stores import PassageReps, open_sizes, skip_checksums
from starbucks_retrieval.sizes import Size, Sizes, as_size
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


def check_names(model: Any, corpus: Any = None, passage_reps: Any = None) -> None:
    """Check the types and names of a model, a corpus and stored passages, without reading any.

    Args:
        model: A model folder, a hub name, or an encoder.
        corpus: A corpus; only a string is checked.
        passage_reps: Where passages are stored; only a list is refused.

    Raises:
        UserError: The model is of another type or an encoder at one size, or a name is that of a local path
            without a file.
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
    if isinstance(corpus, str):
        check_collection(corpus)
    if isinstance(passage_reps, list | tuple):
        raise UserError("passage_reps is a list", "of texts, make a searcher with Searcher.from_texts(model, texts)")


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


@dataclass(frozen=True)
class SearchSetup:
    """What a search needs: replaced as one, so that a running query keeps what it began with.

    Attributes:
        funnel: The steps; one for a search at a single size.
        stores: The passages, by the size of the step.
        encoder: Encodes the queries; `set_up` compared it with the stores.
    """

    funnel: Funnel
    stores: Mapping[Size, EmbeddingStore]
    encoder: QueryEncoder
    first: Shortlister | None = None  # scans the codes of a quantised first step
    projections: Any = None  # the maps that the encoder had

    def checked(self) -> SearchSetup:
        """Return self. Raises UserError if the encoder was fitted since: its queries no longer fit the passages."""
        if getattr(self.encoder, "projections", None) is not self.projections:
            raise UserError("the encoder was fitted after its passages were encoded", "encode the passages again")
        return self


def as_funnel(size: Size | str | None, funnel: Funnel | str | None, query_size: Size | str | None) -> Funnel:
    """Return the steps of a search: one for a size.

    Args:
        size: The size to search at.
        funnel: The steps, instead of one size.
        query_size: The layer of the queries, if it differs from that of the passages.

    Raises:
        UserError: Not exactly one of `size` and `funnel` is given, or one cannot be read.

    Example:
        >>> print(as_funnel("6:128", None, None), as_funnel(None, "2:32@100,6:128", None))
        6:128 2:32@100,6:128
    """
    if (size is None) == (funnel is None):
        raise UserError("a search needs either a size or a funnel", 'give size="6:128", or funnel="2:32@1000,6:128"')
    if isinstance(size, str) and ("@" in size or "," in size):
        raise UserError(f"{size} is not one size", f'if it is a funnel, write funnel="{size}"')
    steps = Funnel((FunnelStep(as_size(size)),)) if size is not None else funnel
    if not isinstance(steps, str | Funnel):
        raise UserError(f"the funnel is {steps!r}, not a string", 'write funnel="2:32@1000,6:128"')
    steps = Funnel.parse(steps) if isinstance(steps, str) else steps
    if steps.steps[0].code == INDEX:
        raise UserError(
            f"the funnel {steps} asks an index, which only stored queries do", "take a size or a code first"
        )
    return steps.with_queries_at(as_size(query_size) if query_size is not None else None)


def find_stores(reps: PassageReps, steps: Funnel, config: Any, checksum: bool = True) -> dict[Size, EmbeddingStore]:
    """Open the stores that a search needs: the passages for each step.

    Args:
        reps: Where the passages are stored.
        steps: The size or the funnel.
        config: The configuration of the model, which need not be loaded.
        checksum: Compare what is read with its checksums.

    Raises:
        UserError: There is no store, a size is not stored, or FAISS is missing.
    """
    named = steps.query_sizes
    wanted = {step: step if step in named else config.passage_size(step) for step in steps.sizes}
    opened = open_sizes(reps, dict.fromkeys(wanted.values()))
    if not checksum:
        skip_checksums(opened)
    import_faiss()
    return {step: opened[other] for step, other in wanted.items()}


def set_up(stores: Mapping[Size, EmbeddingStore], steps: Funnel, encoder: QueryEncoder, max_memory: int) -> SearchSetup:
    """Check that the model is the one behind the stores, and prepare them for queries.

    Args:
        stores: The passages for each step, as `find_stores` returns them.
        steps: The size or the funnel.
        encoder: The model.
        max_memory: Bytes for vectors and result lists.

    Raises:
        UserError: Queries and passages are not comparable.
    """
    named = steps.query_sizes
    for step, store in stores.items():
        check_model(store, encoder, named.get(step, step))
    first, scanned = None, stores[steps.sizes[0]]
    if steps.steps[0].code:
        first = code_shortlister(steps.steps[0], scanned, max_memory=max_memory)
    else:
        hold(scanned, max_memory // 2, 1)  # every query scans all of it
    return SearchSetup(steps, stores, encoder, first, getattr(encoder, "projections", None))


def check_query(text: Any, k: Any) -> int:
    """Return the number of passages to find for a query.

    Args:
        text: The query.
        k: The passages to find.

    Raises:
        UserError: `text` is not one string, or `k` is not a number of 1 or more.
    """
    if not isinstance(text, str):
        shown = "None" if text is None else f"of type {type(text).__name__}"
        raise UserError(
            f"the query is {shown}, not one string", "of several: [searcher.search(text) for text in texts]"
        )
    try:
        k = operator.index(k)
    except TypeError:
        raise UserError(f"k is {k!r}", "give a whole number from 1 on") from None
    check_hits(k)
    return k


def check_hits(k: int) -> None:
    """Raise UserError for a number of hits below 1."""
    if k < 1:
        raise UserError(f"--hits {k} is below 1", "give at least 1")
