"""The passages that are found for one query, and their texts: of a corpus, or of a list of strings."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.data import Passage, Records, open_corpus, scan
from starbucks_retrieval.data.records import Scan
from starbucks_retrieval.data.sources import Collection
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, MemoryStore, StoreSpec, output_folder

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder

_SHOWN = 60  # characters of a text in a notebook


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
        docid: Its id in the store.
        score: Its inner product with the query, at the size that is searched last.
        title: Its title; empty without a corpus.
        text: Its text; empty without a corpus.
    """

    docid: str
    score: float
    title: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    def __repr__(self) -> str:
        shown = [f"{name}={_shorten(value)!r}" for name in ("title", "text") if (value := getattr(self, name))]
        return f"Hit({', '.join([repr(self.docid), f'{self.score:.4f}', *shown])})"


@dataclass(frozen=True)
class SearchResult:
    """The hits of one query, and the time it took.

    Attributes:
        hits: Best first.
        encode_ms: Milliseconds of encoding the query.
        search_ms: Milliseconds of searching, without looking up titles and texts.
    """

    hits: list[Hit]
    encode_ms: float
    search_ms: float

    def __repr__(self) -> str:
        best = f", the best is {self.hits[0]}" if self.hits else ""
        times = f"encode {self.encode_ms:.1f} ms, search {self.search_ms:.1f} ms"
        return f"SearchResult(hits: {len(self.hits)}, {times}{best})"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class PassageTexts:
    """The passages behind a store, by row: in a temporary file without a name, with 8 bytes of memory for each.

    A corpus may be compressed, a table or on a hub, none of which gives quick access to a single row.

    Args:
        corpus: The corpus that was encoded; it is read once.
        store: The store of its passages.

    Raises:
        UserError: The corpus cannot be read, or has another number of passages.
    """

    def __init__(self, corpus: Collection, store: EmbeddingStore) -> None:
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

    def lookup(self, row: int, docid: str) -> tuple[str, str]:
        """Return the title and the text of a stored passage.

        Args:
            row: Its row in the store, from 0.
            docid: Its id in the store.

        Raises:
            UserError: The corpus has another passage there.
        """
        with self._lock:
            self._file.seek(self._ends[row])
            raw = self._file.read(self._ends[row + 1] - self._ends[row])
        found, title, text = json.loads(raw)
        if found != docid:
            raise UserError(
                f"passage {row} of the corpus is {found!r}, in the store it is {docid!r}",
                "give the corpus that was encoded",
            )
        return title, text


CORPUS = "corpus.jsonl"


@dataclasses.dataclass(frozen=True)
class TextList:
    """Passages in memory, and the statistics that a store records of them.

    Attributes:
        passages: In the order of the rows.
        scan: Their number and digest, among others.
    """

    passages: list[Passage]
    scan: Scan

    @classmethod
    def of(
        cls, texts: Iterable[str], ids: Iterable[Any] | None = None, titles: Iterable[str] | None = None
    ) -> TextList:
        """Check texts, and give those without ids their numbers from 0.

        Args:
            texts: The texts.
            ids: An id for each; numbers become strings.
            titles: A title for each, empty where there is none.

        Raises:
            UserError: An item is not a text, an id is empty or repeated, or the numbers of items differ.

        Example:
            >>> [(passage.docid, passage.text) for passage in TextList.of(["hens", "moths"]).passages]
            [('0', 'hens'), ('1', 'moths')]
        """
        from starbucks_retrieval.models.input_texts import checked_texts  # imports torch

        listed = checked_texts(texts, "from_texts")
        if not listed:
            raise UserError("there are no texts to search", "give at least one")
        names = [str(number) for number in range(len(listed))] if ids is None else _listed(ids, "ids", len(listed))
        heads = [""] * len(listed) if titles is None else _listed(titles, "titles", len(listed))
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise UserError(f"the id {name!r} occurs {times} times", "give each text its own id")
        passages = [Passage(*parts) for parts in zip(names, heads, listed)]
        return cls(passages, scan(_records(passages)))

    def lookup(self, row: int, docid: str) -> tuple[str, str]:
        """Return the title and the text of a passage.

        Args:
            row: Its row, from 0.
            docid: Not used; the rows are those of the stores that `embed` makes.
        """
        return self.passages[row].title, self.passages[row].text

    def embed(
        self, encoder: NestedEncoder, sizes: Iterable[Size], show_progress_bar: bool = False
    ) -> dict[Size, MemoryStore]:
        """Return the embeddings of the passages at some sizes, as stores in memory.

        Args:
            encoder: The model.
            sizes: The sizes of the passages.
            show_progress_bar: Show progress.

        Raises:
            UserError: The model lacks a size, or an embedding is not finite.
        """
        from starbucks_retrieval.models.precision import dtype_name

        wanted = Sizes(sorted(set(sizes)))
        separator = encoder.config.passage_field_separator
        bodies = [f"{each.title}{separator}{each.text}" if each.title else each.text for each in self.passages]
        vectors = encoder.encode(bodies, wanted, show_progress_bar=show_progress_bar)
        ids = [passage.docid for passage in self.passages]
        about: dict[str, Any] = {"compute_dtype": dtype_name(encoder.autocast_dtype), "store_dtype": "float32"}
        about |= {"data_digest": self.scan.digest, "data_count": self.scan.count, "data_name": "a list of texts"}
        specs = [StoreSpec("passages", size, **encoder.store_fields(size, is_query=False), **about) for size in wanted]
        return {spec.size: MemoryStore(spec, ids, vectors[spec.size]) for spec in specs}

    def save(
        self, folder: Path, stores: Iterable[MemoryStore], store_dtype: str = "float32", overwrite: bool = False
    ) -> None:
        """Write the passages as corpus.jsonl, and a store for each size.

        Args:
            folder: The output folder; it is created.
            stores: The embeddings.
            store_dtype: `float32`, `float16`, `int8` or `binary`.
            overwrite: Replace other passages in the folder.

        Raises:
            UserError: The folder holds other passages.
        """
        lines = "".join(
            json.dumps({"docid": each.docid, "title": each.title, "text": each.text}, ensure_ascii=False) + "\n"
            for each in self.passages
        ).encode()
        path = folder / CORPUS
        if path.exists() and not overwrite and path.read_bytes() != lines:
            raise UserError(f"{path} holds other passages", "choose another folder, or pass overwrite=True")
        for store in stores:
            spec = dataclasses.replace(store.spec, provenance=describe())
            store.save(output_folder(folder, spec.size), spec, overwrite, store_dtype)
        with atomic_writer(path) as file:
            file.write(lines)


def sizes_to_encode(steps: Funnel, wanted: Sizes | None, config: Any) -> tuple[list[Size], list[Size]]:
    """Return the sizes of queries and of passages that a search needs.

    Args:
        steps: The size or the funnel that is searched first.
        wanted: The sizes to keep, as those of queries; None: the sizes of the steps.
        config: The `EncoderConfig` of the model, which says at which size the passages of a query are.
    """
    named = steps.query_sizes
    queries = [named.get(size, size) for size in steps.sizes]
    if wanted is not None:
        return queries, [config.passage_size(size) for size in wanted]
    return queries, [size if size in named else config.passage_size(size) for size in steps.sizes]


def _records(passages: list[Passage]) -> Records[Passage]:
    def read(start: int, stop: int | None) -> Iterator[tuple[int, Any]]:
        yield from enumerate(passages[start:stop], start + 1)

    return Records("the list of texts", "passage", read, lambda passage: passage)  # type: ignore[arg-type, return-value]


def _listed(values: Iterable[Any], name: str, count: int) -> list[str]:
    if isinstance(values, str):
        raise UserError(f"{name} is one string", f"give a list of {name}, one for each text")
    listed = [str(value) for value in values]
    if len(listed) != count:
        raise UserError(f"{len(listed)} {name} for {count} texts", f"give {name} in the order of the texts, or none")
    return listed
