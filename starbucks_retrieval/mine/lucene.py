"""Candidates by BM25 with Pyserini: Anserini's analysis and scores, on disk, needs Java 21."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, Records, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.candidates import Candidates
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.topics import Topics

_PASSAGES = 4096  # handed to Lucene at once
_QUERIES = 512


class PyseriniEngine:
    """BM25 over an index that Lucene makes in a temporary folder under `workspace`, by Anserini's default analysis.

    A positive's score is known only if it is among the candidates. Raises UserError without Pyserini or Java 21.
    """

    def __init__(self, k1: float, b: float, workspace: Path) -> None:
        self._pyserini = _load()
        self.k1, self.b = k1, b
        self.workspace = workspace

    @property
    def identity(self) -> dict[str, Any]:
        """Version and parameters."""
        return {"engine": "pyserini", "version": importlib.metadata.version("pyserini"), "k1": self.k1, "b": self.b}

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """The `depth` best passages for each topic, and the scores of positives among them."""
        indexer_class, searcher_class = self._pyserini
        found = Candidates.none_yet(topics, depth)
        threads = os.cpu_count() or 1
        width = len(str(len(docids)))
        # Anserini orders equal scores by ascending id: ids that count down from the largest docid give our order.
        names = [f"{len(docids) - 1 - rank:0{width}d}" for rank in docids.ranks.tolist()]
        self.workspace.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lucene-", dir=self.workspace) as folder:
            indexer = indexer_class(folder, threads=threads)
            stream = zip(names, progress(corpus, len(docids), "passages", "indexing for BM25"))
            while batch := [{"id": i, "contents": join_text(p)} for i, p in itertools.islice(stream, _PASSAGES)]:
                indexer.add_batch_dict(batch)
            indexer.close()
            searcher = searcher_class(folder)
            searcher.set_bm25(self.k1, self.b)
            for start in progress(range(0, len(topics), _QUERIES), -(-len(topics) // _QUERIES), "batches", "BM25"):
                texts = topics.texts[start : start + _QUERIES]
                hits = searcher.batch_search(texts, list(map(str, range(len(texts)))), depth, threads)
                for i in range(len(texts)):
                    self._fill(found, topics, docids, start + i, hits.get(str(i), []))
            searcher.close()
        return found

    @staticmethod
    def _fill(found: Candidates, topics: Topics, docids: Docids, topic: int, hits: Any) -> None:
        scores = {int(docids.order[len(docids) - 1 - int(hit.docid)]): hit.score for hit in hits}
        found.rows[topic, : len(scores)] = list(scores)
        found.scores[topic, : len(scores)] = list(scores.values())
        pairs = topics.pairs(topic)
        found.positive_scores[pairs] = [scores.get(row, float("nan")) for row in topics.rows[pairs].tolist()]


def works() -> bool:
    """Whether Pyserini is installed and its Java starts."""
    if importlib.util.find_spec("pyserini") is None:
        return False
    try:
        _load()
    except UserError:
        return False
    return True


def _load() -> tuple[Any, Any]:
    """Pyserini's indexer and searcher."""
    try:
        with _placeholder("OPENAI_API_KEY"):  # Pyserini's import asks for one, which BM25 never uses
            from pyserini.index.lucene import LuceneIndexer
            from pyserini.pyclass import autoclass
            from pyserini.search.lucene import LuceneSearcher
        # Java logs to standard output, which is for results.
        level = autoclass("org.apache.logging.log4j.Level").ERROR
        autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)
    except ImportError:
        raise UserError("pyserini is not installed", "pip install 'starbucks-retrieval[pyserini]'") from None
    except Exception as error:  # no Java, or one too old: jnius raises what it finds, of many classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"pyserini is installed but its Java does not work: {reason}",
            "install Java 21 and point JAVA_HOME at it, or take --bm25_backend bm25s",
        ) from None
    return LuceneIndexer, LuceneSearcher


@contextmanager
def _placeholder(name: str) -> Iterator[None]:
    if os.environ.get(name):
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = "unused"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
