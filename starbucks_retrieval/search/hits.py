"""The passages that were found for one query, and their texts."""

from __future__ import annotations

import json
import tempfile
import threading
from array import array
from dataclasses import asdict, dataclass
from typing import Any

from starbucks_retrieval.data import Passage, open_corpus
from starbucks_retrieval.data.rows import Collection
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import EmbeddingStore

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

    def __getitem__(self, row: int) -> Passage:
        with self._lock:
            self._file.seek(self._ends[row])
            raw = self._file.read(self._ends[row + 1] - self._ends[row])
        return Passage(*json.loads(raw))

    def lookup(self, row: int, docid: str) -> tuple[str, str]:
        """Return the title and the text of a stored passage.

        Args:
            row: Its row in the store, from 0.
            docid: Its id in the store.

        Raises:
            UserError: The corpus has another passage there.
        """
        passage = self[row]
        if passage.docid != docid:
            raise UserError(
                f"passage {row} of the corpus is {passage.docid!r}, in the store it is {docid!r}",
                "give the corpus that was encoded",
            )
        return passage.title, passage.text
