"""Candidates by BM25, from bm25s or from Pyserini (Lucene)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, Records, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.candidates import Candidates, CandidateSource, best_rows
from starbucks_retrieval.mine.topics import Docids, Topics

log = logging.getLogger(__name__)

_STOPWORDS = "en"

LUCENE = ".lucene-"  # of the names of folders with a temporary index
_PASSAGES = 4096  # handed to Lucene at once
_QUERIES = 512


class Bm25sEngine:
    """BM25 by the package bm25s: lower-cased words of two letters or more, no English stop words, no stemming.

    A passage that shares no word with the query is not a candidate. Memory: 12 bytes per distinct word of each
    passage, and about as much again while the index is built. Lucene's variant of the formula is used.

    Args:
        k1: Saturation of term counts.
        b: Weight of the passage length, 0 to 1.

    Raises:
        UserError: bm25s is not installed.
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
        """Name, version and parameters."""
        version = importlib.metadata.version("bm25s")
        return {"engine": "bm25s", "version": version, "k1": self.k1, "b": self.b, "stopwords": _STOPWORDS}

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """Return the `depth` best passages of each topic, and the score of every positive of the corpus."""
        found = Candidates.empty(topics, depth)
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
            rows = hits[best_rows(scores[hits], docids.ranks[hits], depth)]
            found.rows[i, : len(rows)] = rows
            found.scores[i, : len(rows)] = scores[rows]
            pairs = topics.pairs(i)
            positives = topics.rows[pairs]
            inside = positives < len(docids)
            found.positive_scores[pairs][inside] = scores[positives[inside]]
        return found


class PyseriniEngine:
    """BM25 by Pyserini (Lucene) with Anserini's default analysis, over an index in a temporary folder.

    The score of a positive is known only if it is among the candidates.

    Args:
        k1: Saturation of term counts.
        b: Weight of the passage length, 0 to 1.
        workspace: Folder under which the temporary index is created.

    Raises:
        UserError: Pyserini is not installed or its Java does not work.
    """

    def __init__(self, k1: float, b: float, workspace: Path) -> None:
        self._pyserini = _import_pyserini()
        self.k1, self.b = k1, b
        self.workspace = workspace

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and parameters."""
        return {"engine": "pyserini", "version": importlib.metadata.version("pyserini"), "k1": self.k1, "b": self.b}

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """Return the `depth` best passages of each topic, and the scores of the positives among them."""
        indexer_class, searcher_class = self._pyserini
        found = Candidates.empty(topics, depth)
        threads = os.cpu_count() or 1
        width = len(str(len(docids)))
        # Anserini orders equal scores by ascending id; ids that count down from the largest docid give descending order.
        names = [f"{len(docids) - 1 - rank:0{width}d}" for rank in docids.ranks.tolist()]
        self.workspace.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=LUCENE, dir=self.workspace) as folder:
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


def bm25_engine(arguments: MineArguments) -> CandidateSource:
    """Return the BM25 engine of `--bm25_backend`; auto prefers Pyserini where its Java works.

    Args:
        arguments: The back end, the parameters of BM25, and the output, beside which Pyserini keeps its index.

    Raises:
        UserError: The package is not installed.
    """
    backend = arguments.bm25_backend
    if backend == "auto":
        backend = "pyserini" if pyserini_works() else "bm25s"
        log.info("BM25 by %s", backend)
    if backend == "pyserini":
        return PyseriniEngine(arguments.bm25_k1, arguments.bm25_b, arguments.output.parent)
    return Bm25sEngine(arguments.bm25_k1, arguments.bm25_b)


def pyserini_works() -> bool:
    """Return whether Pyserini is installed and its Java starts."""
    if importlib.util.find_spec("pyserini") is None:
        return False
    try:
        _import_pyserini()
    except UserError:
        return False
    return True


def _import_pyserini() -> tuple[Any, Any]:
    """Pyserini's indexer and searcher."""
    key = os.environ.get("OPENAI_API_KEY")
    os.environ["OPENAI_API_KEY"] = key or "unused"  # Pyserini's import asks for one, which BM25 never uses
    try:
        from pyserini.index.lucene import LuceneIndexer
        from pyserini.pyclass import autoclass
        from pyserini.search.lucene import LuceneSearcher

        # Java logs to standard output, which is for results.
        level = autoclass("org.apache.logging.log4j.Level").ERROR
        autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)
    except ImportError:
        raise UserError("pyserini is not installed", "pip install 'starbucks-retrieval[pyserini]'") from None
    except Exception as error:  # no Java, or one too old: jnius raises errors of many classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"pyserini is installed but its Java does not work: {reason}",
            "install Java 21 and point JAVA_HOME at it, or take --bm25_backend bm25s",
        ) from None
    finally:
        del os.environ["OPENAI_API_KEY"]
        if key is not None:
            os.environ["OPENAI_API_KEY"] = key
    return LuceneIndexer, LuceneSearcher
