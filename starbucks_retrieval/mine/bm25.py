"""Candidates by BM25 with bm25s: everything in memory, no Java."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, Records, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.candidates import Candidates, best
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.topics import Topics

_STOPWORDS = "en"


class Bm25sEngine:
    """Lucene's BM25 over lower-cased words of two letters or more, without English stop words, unstemmed.

    A passage that shares no word with the query is no candidate. Memory: 12 bytes per distinct word of each passage,
    and about as much again while the index is made. Raises UserError when bm25s is not installed.
    """

    def __init__(self, k1: float, b: float) -> None:
        try:
            import bm25s
        except ImportError:
            raise UserError(
                "--bm25 needs bm25s, which is not installed",
                "pip install 'starbucks-retrieval[bm25]', or use pyserini with Java 21",
            ) from None
        self._bm25s = bm25s
        self.k1, self.b = k1, b

    @property
    def identity(self) -> dict[str, Any]:
        """Version and parameters."""
        version = importlib.metadata.version("bm25s")
        return {"engine": "bm25s", "version": version, "k1": self.k1, "b": self.b, "stopwords": _STOPWORDS}

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """The `depth` best passages for each topic, and the score of every positive of the corpus."""
        found = Candidates.none_yet(topics, depth)
        passages = progress(corpus, len(docids), "passages", "reading for BM25")
        tokens = self._bm25s.tokenize(map(join_text, passages), stopwords=_STOPWORDS, show_progress=False)
        index = self._bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
        if tokens.vocab:  # a corpus without words has no mean length
            index.index(tokens, create_empty_token=False, show_progress=False)
        for i, text in enumerate(progress(topics.texts, len(topics), "queries", "BM25")):
            [words] = self._bm25s.tokenize([text], stopwords=_STOPWORDS, return_ids=False, show_progress=False)
            known = [tokens.vocab[word] for word in words if word in tokens.vocab]
            scores = index.get_scores_from_ids(known) if known else np.zeros(len(docids), np.float32)
            hits = np.flatnonzero(scores > 0)
            rows = hits[best(scores[hits], docids.ranks[hits], depth)]
            found.rows[i, : len(rows)] = rows
            found.scores[i, : len(rows)] = scores[rows]
            pairs = topics.pairs(i)
            own = topics.rows[pairs]
            inside = own < len(docids)
            found.positive_scores[pairs][inside] = scores[own[inside]]
        return found
