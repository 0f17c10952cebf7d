"""Answering queries as text: encode the query, search stored passages, look up their texts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.sources import Collection
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.hits import Hit, PassageTexts, SearchResult, TextList, sizes_to_encode
from starbucks_retrieval.search.pairs import only_passage_size
from starbucks_retrieval.search.search_setup import (
    QueryEncoder,
    as_funnel,
    check_names,
    check_query,
    find_stores,
    set_up,
    stored_config,
)
from starbucks_retrieval.search.stores import PassageReps, shown, stored_sizes
from starbucks_retrieval.sizes import Size, Sizes, as_size, as_sizes
from starbucks_retrieval.store import EmbeddingStore, MemoryStore

_NAME_ONE = 'name one with --size, in Python size="6:128"'


class Searcher:
    """Answers queries from stored passages: by exact search at one size, or through a funnel.

    A query is encoded once for all sizes that it needs. Several threads may search at the same time.
    `Searcher.from_texts` searches a list of strings without files.

    Args:
        model: A model folder, a hub name, or an encoder.
        passage_reps: Where the passages are stored, an open store, or several by size.
        corpus: The corpus that was encoded, to show titles and texts. It is read once, into a temporary file.
        size: The size to search at, such as "6:128"; may be omitted where only one is stored.
        funnel: The steps of a funnel, such as "2:32@1000,6:128", instead of one size.
        query_size: Layer of the queries, if the passages have another, and their dims at least. Only it is loaded.
        max_memory: Bytes for vectors and result lists, as a number or as "2GB".
        device: Where a model that is named is loaded.
        checksum: Compare vectors and ids with their checksums where they are read first.
        encode_only: Load a BERT in half the time; `encoder` can then not be trained or saved.

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
        passage_reps: PassageReps,
        corpus: Collection | None = None,
        *,
        size: Size | str | None = None,
        funnel: Funnel | str | None = None,
        query_size: Size | str | None = None,
        max_memory: int | str = MAX_MEMORY,
        device: str | None = None,
        checksum: bool = True,
        encode_only: bool = False,
    ) -> None:
        check_names(model, corpus, passage_reps)
        self.max_memory = parse_bytes(max_memory)
        self._model, self._reps, self._device, self._checksum = model, passage_reps, device, checksum
        self._load_options = {"encode_only": True} if encode_only else {}
        self._encoding = threading.Lock()  # an encoder keeps the layers that it captures
        self._loaded: tuple[int, QueryEncoder] | None = None  # number of layers and the model
        if size is None and funnel is None:
            size = self._only_size() if query_size is None else only_passage_size(passage_reps, as_size(query_size))
        self.use(size, funnel, query_size)
        self._texts: PassageTexts | TextList | None = None if corpus is None else PassageTexts(corpus, self.store)

    @classmethod
    def from_texts(
        cls,
        model: str | Path | Any,
        texts: Iterable[str],
        ids: Iterable[Any] | None = None,
        *,
        titles: Iterable[str] | None = None,
        sizes: Sizes | Iterable[Size | str] | Size | str | None = None,
        size: Size | str | None = None,
        funnel: Funnel | str | None = None,
        query_size: Size | str | None = None,
        max_memory: int | str = MAX_MEMORY,
        device: str | None = None,
        show_progress_bar: bool = False,
    ) -> Searcher:
        """Encode a list of strings and search it, without files. `save` writes it to disk.

        Args:
            model: A model folder, a hub name, or a `NestedEncoder`.
            texts: The passages: a list, an array, a column of a table or a generator of strings.
            ids: An id for each; by default their numbers from 0, as text.
            titles: A title for each, which is encoded before the text.
            sizes: The sizes to encode and keep, such as "2:32,6:128"; by default `size`, the sizes of `funnel`, or else
                all sizes of the model. `use` can switch between them and to smaller dims of each.
            size: The size to search at first; by default the largest of `sizes`.
            funnel: The steps of a funnel, such as "2:32@1000,6:128", instead of one size.
            query_size: The layer of the queries, if it differs from that of the passages.
            max_memory: Bytes for result lists, as a number or as "2GB"; the embeddings stay in memory in any case.
            device: Where a model that is named is loaded.
            show_progress_bar: Show progress.

        Raises:
            UserError: An item is not a text, an id occurs twice, or the model lacks a size.

        Example:
            ```python
            searcher = Searcher.from_texts("my-model", ["Hens lay eggs.", "Moths fly at night."])
            searcher.search("which birds lay eggs?", k=1)  # [Hit('0', 0.6832, text='Hens lay eggs.')]
            searcher.use("4:128")
            ```
        """
        from starbucks_retrieval.models.info import model_info  # imports torch

        check_names(model)
        listed = TextList.of(texts, ids, titles)
        info = model_info(str(model)) if isinstance(model, str | Path) else model
        wanted = None if sizes is None else as_sizes(sizes, info.sizes)
        if size is None and funnel is None:
            wanted = wanted or info.sizes
            size = wanted[-1]
        steps = as_funnel(size, funnel, query_size)
        queries, stored = sizes_to_encode(steps, wanted, info.config)
        deepest = max(one.layer for one in (*queries, *stored))
        encoder: Any = _load(model, deepest, device) if isinstance(model, str | Path) else model
        stores = listed.embed(encoder, stored, show_progress_bar)
        searcher = cls(encoder, stores, funnel=steps, max_memory=max_memory)
        searcher._texts = listed
        return searcher

    def save(self, folder: str | os.PathLike[str], *, store_dtype: str = "float32", overwrite: bool = False) -> Path:
        """Write the passages of `from_texts` to disk: a store for each size, and corpus.jsonl.

        `Searcher(model, folder, folder / "corpus.jsonl", size=…)` and `starbucks search --passage_reps` open them. The
        model is not written; `NestedEncoder.save_pretrained` does that.

        Args:
            folder: The output folder; it is created.
            store_dtype: "float16" takes half the space, "int8" a quarter, "binary" 1/32; float32 keeps scores as they are.
            overwrite: Replace other passages in the folder.

        Returns:
            The folder.

        Raises:
            UserError: The passages were opened from disk, or the folder holds other ones.

        Example:
            ```python
            Searcher.from_texts("my-model", texts).save("emb/mine")
            searcher = Searcher("my-model", "emb/mine", "emb/mine/corpus.jsonl", size="6:384")
            ```
        """
        if not isinstance(self._texts, TextList) or not isinstance(self._reps, Mapping):
            raise UserError("these passages are on disk already", "copy the folder of the store")
        stores = [store for store in self._reps.values() if isinstance(store, MemoryStore)]
        self._texts.save(Path(folder), stores, store_dtype, overwrite)
        return Path(folder)

    def __repr__(self) -> str:
        name = getattr(self.encoder, "name", "") or self.store.spec.model_name
        model = f", model {name!r}" if name else ""
        at = f"through {self.funnel}" if len(self.funnel.steps) > 1 else f"at {self.funnel}"
        return f"Searcher({self.store.count} passages {at}{model})"

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

    def use(
        self,
        size: Size | str | None = None,
        funnel: Funnel | str | None = None,
        query_size: Size | str | None = None,
    ) -> None:
        """Search from now on at `size`, or through `funnel`.

        Args:
            size: The size to search at, such as "6:128".
            funnel: The steps of a funnel, such as "2:32@1000,6:128", instead of one size.
            query_size: The layer of the queries, if it differs from that of the passages.

        Raises:
            UserError: As of `Searcher`, or not exactly one of `size` and `funnel` is given; nothing changes.
        """
        steps = as_funnel(size, funnel, query_size)
        config = stored_config(self._model) if self._loaded is None else self._loaded[1].config
        stores = find_stores(self._reps, steps, config, self._checksum)  # raises before a model is loaded
        encoder = self._encoder(max(steps.query_sizes.get(step, step).layer for step in steps.sizes))
        self._setup = set_up(stores, steps, encoder, self.max_memory)

    def search(self, text: str, k: int = 10) -> list[Hit]:
        """Return the best passages of one query, best first.

        Args:
            text: The query, without the model's prefix for queries.
            k: Passages to return; fewer when the store or the last step of the funnel has fewer.

        Raises:
            UserError: `text` is not one string, `k` is not a number of 1 or more, or the corpus is not the encoded one.
        """
        return self.answer(text, k).hits

    def answer(self, text: str, k: int = 10) -> SearchResult:
        """Return what `search` finds and the time it took; arguments and errors are those of `search`."""
        k = check_query(text, k)
        setup = self._setup.checked()
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
        texts = [("", "") if self._texts is None else self._texts.lookup(*row) for row in zip(found.tolist(), docids)]
        hits = [Hit(docid, float(score), *text) for docid, score, text in zip(docids, scores[0], texts)]
        return SearchResult(hits, 1000 * (encoded_at - began), 1000 * (searched_at - encoded_at))

    def _only_size(self) -> Size:
        stored = stored_sizes(self._reps)
        if len(stored) > 1:
            raise UserError(f"{shown(self._reps)} holds several sizes: {', '.join(map(str, stored))}", _NAME_ONE)
        found = self._query_sizes(self._encoder(stored[0].layer))
        if len(found) > 1:
            raise UserError(f"passages at {stored} are searched at {', '.join(map(str, found))}", _NAME_ONE)
        return found[0]

    def _query_sizes(self, encoder: QueryEncoder) -> list[Size]:
        return sorted(size for stored in stored_sizes(self._reps) for size in encoder.config.query_sizes(stored))

    def _encoder(self, layer: int) -> QueryEncoder:
        """Return the model up to `layer` at least; a loaded model also serves the layers below."""
        if not isinstance(self._model, str | Path):
            return self._model
        if self._loaded is None or self._loaded[0] < layer:
            self._loaded = layer, _load(self._model, layer, self._device, **self._load_options)
        return self._loaded[1]


def _load(model: str | Path, layer: int, device: str | None, **options: Any) -> QueryEncoder:
    from starbucks_retrieval.models import NestedEncoder

    return NestedEncoder.from_pretrained(model, layers=layer, device=device, **options)
