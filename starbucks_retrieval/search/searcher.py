"""Answering queries as text: encode the query, search stored passages, look up their texts."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.codes import code_shortlister
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.funnel import Funnel, FunnelStep
from starbucks_retrieval.search.funnel_search import Shortlister, funnel_search
from starbucks_retrieval.search.pairs import only_passage_size
from starbucks_retrieval.search.passage_texts import PassageTexts
from starbucks_retrieval.search.stores import open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, open_store
from starbucks_retrieval.store.spec import same_fingerprint


class QueryEncoder(Protocol):
    """The part of a model that a Searcher needs; `NestedEncoder` has it.

    One with an attribute `projections` that is not None also searches passages of other layers in `projections.space`.
    """

    config: Any

    def encode(self, texts: list[str], sizes: Sizes, *, is_query: bool) -> dict[Size, np.ndarray]: ...

    def fingerprint(self, layer: int) -> str: ...


@dataclass(frozen=True)
class Hit:
    """A passage that was found, and its inner product with the query. `title` and `text` are empty without a corpus."""

    docid: str
    score: float
    title: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)


@dataclass(frozen=True)
class SearchResult:
    """The hits of one query, best first, and the milliseconds of encoding and of searching."""

    hits: list[Hit]
    encode_ms: float
    search_ms: float


@dataclass(frozen=True)
class _Setup:
    """What a search needs: replaced as one, so that a running query keeps what it began with."""

    funnel: Funnel
    stores: Mapping[Size, EmbeddingStore]
    encoder: QueryEncoder
    first: Shortlister | None = None  # scans the codes of a quantised first step


class Searcher:
    """Answers queries from stored passages: by exact search at one size, or through a funnel.

    A query is encoded once for all sizes that it needs. Several threads may search at the same time.

    Args:
        model: A model folder, a hub name, or an encoder.
        passage_reps: Where the passages are stored, or an open store.
        corpus: The corpus that was encoded, to show titles and texts. It is read once, into a temporary file.
        size: The size to search at; may be omitted where only one is stored.
        funnel: The steps of a funnel, instead of one size.
        query_size: The layer of the queries, if it differs from that of the passages, and their dims at least. Only
            this layer of a model is loaded.
        max_memory: Bytes for vectors and result lists.
        device: Where a model that is named is loaded.

    Raises:
        UserError: The model or the corpus is not the one behind the store, or a size is not stored.

    Example:
        >>> import tempfile, types, numpy as np
        >>> from starbucks_retrieval.search.stores import write_vectors
        >>> class LetterCounter:  # in practice a NestedEncoder
        ...     config = types.SimpleNamespace(
        ...         pooling="cls", normalize=False, passage_size=lambda size: size, query_sizes=lambda size: [size]
        ...     )
        ...     def encode(self, texts, sizes, *, is_query):
        ...         counts = np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32)
        ...         return {size: counts[:, : size.dim] for size in sizes}
        ...     def fingerprint(self, layer):
        ...         return ""
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     passages = write_vectors(f"{folder}/L1-D3", ["many a", "many b"], np.array([[3, 0, 1], [0, 3, 1]], "f4"))
        ...     searcher = Searcher(LetterCounter(), passages, size=Size(1, 3))
        ...     [(hit.docid, hit.score) for hit in searcher.search("a banana", k=1)]
        [('many a', 12.0)]
    """

    def __init__(
        self,
        model: str | Path | QueryEncoder,
        passage_reps: str | Path | EmbeddingStore,
        corpus: str | None = None,
        *,
        size: Size | None = None,
        funnel: Funnel | str | None = None,
        query_size: Size | None = None,
        max_memory: int = MAX_MEMORY,
        device: str | None = None,
    ) -> None:
        import_faiss()
        self.max_memory = max_memory
        self._model, self._reps, self._device = model, passage_reps, device
        self._encoding = threading.Lock()  # an encoder keeps the layers that it captures
        self._loaded: tuple[int, QueryEncoder] | None = None  # number of layers and the model
        if size is None and funnel is None:
            size = self._only_size() if query_size is None else only_passage_size(passage_reps, query_size)
        self.use(size, funnel, query_size)
        self._texts = PassageTexts(corpus, self.store) if corpus is not None else None

    @property
    def funnel(self) -> Funnel:
        """The steps of a search; one for exact search."""
        return self._setup.funnel

    @property
    def size(self) -> Size:
        """The size whose scores the hits have."""
        return self.funnel.last

    @property
    def store(self) -> EmbeddingStore:
        """The passages at that size."""
        return self._setup.stores[self.size]

    @property
    def stored_sizes(self) -> list[Size]:
        """The sizes of queries that can be searched, ascending; smaller dims of each can be searched too."""
        return self._query_sizes(self.encoder)

    @property
    def encoder(self) -> QueryEncoder:
        """The model."""
        return self._setup.encoder

    def use(self, size: Size | None = None, funnel: Funnel | str | None = None, query_size: Size | None = None) -> None:
        """Search from now on at `size`, or through `funnel`.

        Args:
            size: The size to search at.
            funnel: The steps of a funnel, instead of one size.
            query_size: The layer of the queries, if it differs from that of the passages.

        Raises:
            UserError: A size is not stored, queries and passages are not comparable, or not exactly one of `size` and
                `funnel` is given; nothing changes.
        """
        if (size is None) == (funnel is None):
            raise UserError("a search needs either a size or a funnel", "give --size or --funnel")
        steps = Funnel((FunnelStep(size),)) if size is not None else funnel
        assert steps is not None
        steps = Funnel.parse(steps) if isinstance(steps, str) else steps
        steps = steps.with_queries_at(query_size)
        stored_sizes(self._reps)  # raises for a wrong path before a model is loaded
        named = steps.query_sizes
        encoder = self._encoder(max(named.get(step, step).layer for step in steps.sizes))
        wanted = {step: step if step in named else encoder.config.passage_size(step) for step in steps.sizes}
        opened = open_sizes(self._reps, dict.fromkeys(wanted.values()))
        stores = {step: opened[other] for step, other in wanted.items()}
        for step, store in stores.items():
            _check_model(store, encoder, named.get(step, step))
        first, scanned = None, stores[steps.sizes[0]]
        if steps.steps[0].code:
            first = code_shortlister(steps.steps[0], scanned, max_memory=self.max_memory)
        else:
            scanned.hold(self.max_memory // 2)  # every query scans all of it
        self._setup = _Setup(steps, stores, encoder, first)

    def search(self, text: str, k: int = 10) -> list[Hit]:
        """Return the best passages of one query, best first.

        Args:
            text: The query, without the model's prefix for queries.
            k: Passages to return; fewer when the store or the last step of the funnel has fewer.

        Raises:
            UserError: `k` is below 1, or the corpus is not the one that was encoded.
        """
        return self.answer(text, k).hits

    def answer(self, text: str, k: int = 10) -> SearchResult:
        """Return what `search` finds and the time it took."""
        if k < 1:
            raise UserError(f"--hits {k} is below 1", "give at least 1")
        setup = self._setup
        began = time.perf_counter()
        named = setup.funnel.query_sizes
        sizes = {step: named.get(step, step) for step in setup.funnel.sizes}
        with self._encoding:
            vectors = setup.encoder.encode([text], Sizes(sorted(set(sizes.values()))), is_query=True)
        encoded = {step: vectors[size] for step, size in sizes.items()}
        encoded_at = time.perf_counter()
        # A funnel whose last step names a number keeps that number, whatever part is shown.
        funnel = setup.funnel.at_depth(k if setup.funnel.depth is None else None)
        [(rows, scores)] = funnel_search(encoded, setup.stores, funnel, first=setup.first, max_memory=self.max_memory)
        found = rows[0][:k]
        docids = setup.stores[funnel.last].ids(found)
        searched_at = time.perf_counter()
        hits = [
            Hit(docid, float(score), *self._title_and_text(row, docid))
            for row, docid, score in zip(found.tolist(), docids, scores[0])
        ]
        return SearchResult(hits, 1000 * (encoded_at - began), 1000 * (searched_at - encoded_at))

    def _only_size(self) -> Size:
        stored = (self._reps if isinstance(self._reps, EmbeddingStore) else open_store(self._reps)).spec.size
        found = self._query_sizes(self._encoder(stored.layer))
        if len(found) > 1:
            raise UserError(
                f"passages at {stored} are searched at {', '.join(map(str, found))}", "name one with --size"
            )
        return found[0]

    def _query_sizes(self, encoder: QueryEncoder) -> list[Size]:
        return sorted(size for stored in stored_sizes(self._reps) for size in encoder.config.query_sizes(stored))

    def _encoder(self, layer: int) -> QueryEncoder:
        """Return the model up to `layer` at least; a loaded model also serves the layers below."""
        if not isinstance(self._model, str | Path):
            return self._model
        if self._loaded is None or self._loaded[0] < layer:
            self._loaded = layer, _load(self._model, layer, self._device)
        return self._loaded[1]

    def _title_and_text(self, row: int, docid: str) -> tuple[str, str]:
        if self._texts is None:
            return "", ""
        passage = self._texts[row]
        if passage.docid != docid:
            raise UserError(
                f"passage {row} of the corpus is {passage.docid!r}, in the store it is {docid!r}",
                "give the corpus that was encoded",
            )
        return passage.title, passage.text


def _check_model(store: EmbeddingStore, encoder: QueryEncoder, query_size: Size) -> None:
    """Raise UserError unless queries of the encoder at `query_size` can be compared with the stored passages."""
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


def _load(model: str | Path, layer: int, device: str | None) -> QueryEncoder:
    from starbucks_retrieval.models import NestedEncoder

    return NestedEncoder.from_pretrained(model, layers=layer, device=device)
