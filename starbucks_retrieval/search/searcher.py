"""From a typed query to passages with their text: the one place of this package that meets an encoder."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.data import Passage, open_corpus
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.funnel.funnel import Funnel, FunnelStep, funnel_search
from starbucks_retrieval.search.funnel.passage_slice import open_sizes, stored_sizes
from starbucks_retrieval.search.plan import parse_bytes
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, open_store
from starbucks_retrieval.store.spec import same_fingerprint


class QueryEncoder(Protocol):
    """What a Searcher needs of a model; `NestedEncoder` is one."""

    config: Any

    def encode(self, texts: list[str], sizes: Sizes, *, is_query: bool) -> dict[Size, np.ndarray]: ...

    def fingerprint(self, layer: int) -> str: ...


@dataclass(frozen=True)
class Hit:
    """One passage found. `title` and `text` are empty without a corpus."""

    docid: str
    score: float
    title: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


@dataclass(frozen=True)
class SearchResult:
    """The hits of one query, best first, and where its time went, in milliseconds."""

    hits: list[Hit]
    encode_ms: float
    search_ms: float


@dataclass(frozen=True)
class _Way:
    """How queries are answered: replaced as a whole, so that a query under way keeps the one that it began with."""

    funnel: Funnel
    stores: Mapping[Size, EmbeddingStore]
    encoder: QueryEncoder


class Searcher:
    """Answers typed queries from stores of passages: exactly at one size, or through a funnel.

    `model` is a folder, a hub name or an open encoder; `passage_reps` and `size` are as for `search`; `funnel` names
    the steps instead of one size. A query is encoded once for all sizes that it needs. `corpus` is the collection that
    was encoded, read once; its texts wait in a temporary file. `device` is where a model that is named is loaded. Several threads may search at a time. Raises UserError
    when the model or the corpus is not the one behind the store.
    """

    def __init__(
        self,
        model: str | Path | QueryEncoder,
        passage_reps: str | Path | EmbeddingStore,
        corpus: str | None = None,
        *,
        size: Size | None = None,
        funnel: Funnel | str | None = None,
        max_memory: str | int = "2GB",
        device: str | None = None,
    ) -> None:
        import_faiss()
        self.max_memory = max_memory
        self._model, self._reps, self._device = model, passage_reps, device
        self._encoding = threading.Lock()  # an encoder keeps the taps of the pass that it is in
        self._loaded: tuple[int, QueryEncoder] | None = None  # how many layers are there
        self._way: _Way | None = None
        if size is None and funnel is None:
            size = self._only_size()
        self.use(size, funnel)
        self._texts = _Texts(corpus, self.store) if corpus is not None else None

    @property
    def funnel(self) -> Funnel:
        """The steps of a search; one for exact search."""
        return self._now.funnel

    @property
    def size(self) -> Size:
        """The size whose scores the hits have."""
        return self.funnel.last

    @property
    def store(self) -> EmbeddingStore:
        """The passages at that size."""
        return self._now.stores[self.size]

    @property
    def stored_sizes(self) -> list[Size]:
        """The sizes of queries that can be searched, ascending; so can the first numbers of each."""
        return self._query_sizes(self.encoder)

    @property
    def encoder(self) -> QueryEncoder:
        """The model."""
        return self._now.encoder

    def use(self, size: Size | None = None, funnel: Funnel | str | None = None) -> None:
        """Answer from now on at `size`, or through `funnel`. Raises UserError, and changes nothing, if it cannot be."""
        if (size is None) == (funnel is None):
            raise UserError("a search goes by one size or by a funnel", "give --size or --funnel")
        steps = Funnel((FunnelStep(size),)) if size is not None else funnel
        assert steps is not None
        steps = Funnel.parse(steps) if isinstance(steps, str) else steps
        stored_sizes(self._reps)  # refuses a wrong path before a model is loaded
        encoder = self._encoder(max(steps.sizes.layers))
        wanted = {step: encoder.config.passage_size(step) for step in steps.sizes}
        there = open_sizes(self._reps, dict.fromkeys(wanted.values()))
        stores = {step: there[other] for step, other in wanted.items()}
        for step, store in stores.items():
            _check_model(store, encoder, step.layer)
        stores[steps.sizes[0]].hold(parse_bytes(self.max_memory) // 2)  # every query looks at all of it
        self._way = _Way(steps, stores, encoder)

    def search(self, text: str, k: int = 10) -> list[Hit]:
        """The `k` best passages for one query, best first; fewer when the store or a funnel's last step has fewer."""
        return self.answer(text, k).hits

    def answer(self, text: str, k: int = 10) -> SearchResult:
        """What `search` finds, and how long it took."""
        if k < 1:
            raise UserError(f"--hits {k} is below 1", "ask for at least one passage")
        way = self._now
        began = time.perf_counter()
        with self._encoding:
            encoded = way.encoder.encode([text], way.funnel.sizes, is_query=True)
        encoded_at = time.perf_counter()
        # A funnel that says where it ends is run to its end, whatever part of it is shown.
        funnel = way.funnel.at_depth(k if way.funnel.depth is None else None)
        [(rows, scores)] = funnel_search(encoded, way.stores, funnel, max_memory=self.max_memory)
        found = rows[0][:k]
        docids = way.stores[funnel.last].ids(found)
        searched_at = time.perf_counter()
        hits = [
            Hit(docid, float(score), *self._text(row, docid))
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

    @property
    def _now(self) -> _Way:
        assert self._way is not None
        return self._way

    def _encoder(self, layer: int) -> QueryEncoder:
        """The model up to `layer` at least; one that is loaded already serves all layers below its own."""
        if not isinstance(self._model, str | Path):
            return self._model
        if self._loaded is None or self._loaded[0] < layer:
            self._loaded = layer, _load(self._model, layer, self._device)
        return self._loaded[1]

    def _text(self, row: int, docid: str) -> tuple[str, str]:
        if self._texts is None:
            return "", ""
        passage = self._texts[row]
        if passage.docid != docid:
            raise UserError(
                f"passage {row} of the corpus is {passage.docid!r}, in the store it is {docid!r}",
                "give the corpus that was encoded",
            )
        return passage.title, passage.text


class _Texts:
    """The passages behind a store, by row: in a temporary file without a name, with 8 bytes of memory for each.

    A collection may come compressed, from a table or from a hub, none of which gives up a single row quickly.
    """

    def __init__(self, corpus: str, store: EmbeddingStore) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the searcher lives
        self._lock = threading.Lock()
        self._ends = array("q", [0])
        first = store.first_row
        for passage in open_corpus(corpus).rows(first, first + store.count):
            written = self._file.write(json.dumps([passage.docid, passage.title, passage.text]).encode())
            self._ends.append(self._ends[-1] + written)
        found = len(self._ends) - 1
        if found != store.count:
            raise UserError(
                f"{corpus} has {first + found} passages, the store has {first + store.count}",
                "give the corpus that was encoded",
            )

    def __getitem__(self, row: int) -> Passage:
        with self._lock:
            self._file.seek(self._ends[row])
            raw = self._file.read(self._ends[row + 1] - self._ends[row])
        return Passage(*json.loads(raw))


def _check_model(store: EmbeddingStore, encoder: QueryEncoder, layer: int) -> None:
    """Raise UserError unless queries that the encoder makes at `layer` lie in the space of the stored passages."""
    spec, config = store.spec, encoder.config
    if spec.kind != "passages":
        raise UserError("this store holds queries, not passages", "name the passages with --passage_reps")
    # Layers above the queries' may not be loaded; passages that are deeper tell what lies below.
    deeper = layer < spec.size.layer
    here = encoder.fingerprint(min(layer, spec.size.layer))
    there = spec.fingerprint if not deeper else spec.lineage[layer - 1] if len(spec.lineage) >= layer else "unknown"
    if not same_fingerprint(here, there):
        raise UserError(
            f"the passages were encoded by another model: {spec.model_name or 'unnamed'} ({there}), this one is {here}",
            "give the model that encoded them, or encode them again",
        )
    for name in ("pooling", "normalize"):
        stored, own = getattr(spec, name), getattr(config, name)
        if stored != own:
            raise UserError(
                f"the passages were encoded with {name} {stored!r}, this model has {own!r}",
                "give the model that encoded them, or encode them again",
            )


def _load(model: str | Path, layer: int, device: str | None) -> QueryEncoder:
    from starbucks_retrieval.models import NestedEncoder

    return NestedEncoder.from_pretrained(model, layers=layer, device=device)
