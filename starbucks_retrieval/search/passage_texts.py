"""Titles and texts of stored passages, by row."""

from __future__ import annotations

import json
import tempfile
import threading
from array import array

from starbucks_retrieval.data import Passage, open_corpus
from starbucks_retrieval.data.rows import Collection
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import EmbeddingStore


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
        """Return the title and the text of a stored passage. Raises UserError if the corpus has another one there."""
        passage = self[row]
        if passage.docid != docid:
            raise UserError(
                f"passage {row} of the corpus is {passage.docid!r}, in the store it is {docid!r}",
                "give the corpus that was encoded",
            )
        return passage.title, passage.text
