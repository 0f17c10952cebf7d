"""Candidates for hard negatives: their arrays, their cache on disk, and reading them from a run."""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.data import Passage, Records
from starbucks_retrieval.data.run_reader import Run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer, file_digest, write_json
from starbucks_retrieval.mine.topics import Docids, Topics
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.provenance import describe

log = logging.getLogger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The best passages of each topic.

    Attributes:
        rows: int32 [topics, depth], rows of the corpus, best first, -1 after the last.
        scores: float32 [topics, depth].
        positive_scores: float32 [pairs], aligned with `Topics.rows`; NaN where the score is unknown.
    """

    rows: np.ndarray
    scores: np.ndarray
    positive_scores: np.ndarray

    @classmethod
    def empty(cls, topics: Topics, depth: int) -> Candidates:
        """Return lists without candidates, to be filled.

        Args:
            topics: The queries and their positives.
            depth: Passages per topic.

        Returns:
            Rows of -1, scores of -inf and unknown (NaN) scores of positives.
        """
        shape = len(topics), depth
        unknown = np.full(len(topics.rows), np.nan, np.float32)
        return cls(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32), unknown)


class CandidateSource(Protocol):
    """A BM25 index or a model that ranks the passages of a corpus for each topic."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything besides the texts that the candidates depend on, JSON-ready."""
        ...

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """Return the `depth` best passages of each topic, and the scores of the positives where they are known.

        Args:
            topics: The queries and their positives.
            corpus: The passages; candidates name them by their position.
            docids: The ids of the corpus, by which equal scores are ordered.
            depth: Passages per topic.
        """
        ...


def best_rows(scores: np.ndarray, ranks: np.ndarray, depth: int) -> np.ndarray:
    """Return the positions of the `depth` best scores in trec_eval's order: score, then docid, both descending.

    Args:
        scores: [n].
        ranks: [n], the positions of the docids in ascending order, as in `Docids.ranks`.
        depth: How many to return.

    Returns:
        int64 [min(depth, n)].

    Example:
        >>> best_rows(np.array([1.0, 3.0, 3.0]), np.array([0, 1, 2]), 2)
        array([2, 1])
    """
    near = np.arange(len(scores))
    if len(scores) > depth:
        floor = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        near = np.flatnonzero(scores >= floor)
    return near[np.lexsort((ranks[near], scores[near]))[::-1][:depth]]


_ARRAYS = tuple(field.name for field in dataclasses.fields(Candidates))


def candidates_folder(output: Path) -> Path:
    """Return the cache folder of an output file.

    Raises:
        UserError: A file has that name.

    Example:
        >>> candidates_folder(Path("mined.jsonl.gz")).name
        'mined.jsonl.gz.candidates'
    """
    folder = output.with_name(f"{output.name}.candidates")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "move it, or name another --output_path")
    return folder


def save_candidates(
    folder: Path, candidates: Candidates, identity: dict[str, Any], configuration: dict[str, Any]
) -> None:
    """Write the candidates to their cache; a process killed meanwhile leaves a folder that is not loaded.

    Args:
        folder: The cache folder, created if needed.
        candidates: The arrays to write.
        identity: Everything that the candidates depend on; compared by `load_candidates`.
        configuration: Flags, recorded as provenance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MANIFEST).unlink(missing_ok=True)
    for name in _ARRAYS:
        with atomic_writer(folder / f"{name}.npy") as out:
            np.save(out, getattr(candidates, name), allow_pickle=False)
    digests = {name: file_digest(folder / f"{name}.npy") for name in _ARRAYS}
    content = {"format": FORMAT, "identity": identity, "arrays": digests, "provenance": describe(configuration)}
    write_json(folder / _MANIFEST, content)


@dataclasses.dataclass(frozen=True)
class _Written:
    format: Any
    identity: dict[str, Any]
    arrays: dict[str, str]


def load_candidates(folder: Path, identity: dict[str, Any]) -> Candidates | None:
    """Return the cached candidates of the same search, memory-mapped.

    Args:
        folder: The cache folder, as `save_candidates` wrote it.
        identity: Everything that the candidates depend on; it must equal the stored identity.

    Returns:
        The candidates; None if there are none, they are damaged, or they come from another search.
    """
    if not (folder / _MANIFEST).is_file():
        return None
    try:
        content = read_json(folder / _MANIFEST, _Written)
        stored, digests, same_format = content.identity, content.arrays, content.format == FORMAT
    except UserError:
        log.warning("%s is damaged: searching again", folder / _MANIFEST)
        return None
    other = sorted(key for key in stored.keys() | identity.keys() if stored.get(key) != identity.get(key))
    if other or not same_format:
        log.info("the candidates in %s come from another search (%s): searching again", folder, ", ".join(other))
        return None
    for name in _ARRAYS:
        path = folder / f"{name}.npy"
        if not path.is_file() or file_digest(path) != digests.get(name):
            log.warning("%s is damaged or missing: searching again", path)
            return None
    log.info("the candidates in %s are used again; delete the folder to search anew", folder)
    return Candidates(*(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS))


def candidates_from_run(run: Run, topics: Topics, docids: Docids, depth: int) -> Candidates:
    """Return the run's `depth` best passages of each topic, by score, then docid, both descending.

    Args:
        run: Scores by query id and docid.
        topics: The queries and their positives.
        docids: The ids of the corpus. Results that it lacks are left out with a warning.
        depth: Passages per topic.

    Returns:
        The candidates. A positive that the run does not have gets the score NaN.

    Raises:
        UserError: A score is not finite, or the run holds no document of the corpus.
    """
    found = Candidates.empty(topics, depth)
    unknown = 0
    for i, query_id in enumerate(topics.query_ids):
        results = run.get(query_id, {})
        if not all(map(math.isfinite, results.values())):
            raise UserError(f"the run has a score of query {query_id!r} that is not finite", "correct the run file")
        ranked = sorted(results, key=lambda docid: (results[docid], docid), reverse=True)
        rows = docids.rows(ranked)
        unknown += int((rows < 0).sum())
        kept = rows[rows >= 0][:depth]
        found.rows[i, : len(kept)] = kept
        found.scores[i, : len(kept)] = [results[docid] for docid, row in zip(ranked, rows) if row >= 0][:depth]
        pairs = topics.pairs(i)
        found.positive_scores[pairs] = [results.get(docid, math.nan) for docid in topics.docids[pairs]]
    if (found.rows < 0).all():
        raise UserError(
            "the run holds no document of the corpus for these queries",
            "check that run, queries and corpus belong together",
        )
    if unknown:
        log.warning("%d results of the run are of documents that the corpus lacks; left out", unknown)
    absent = sum(query_id not in run for query_id in topics.query_ids)
    if absent:
        log.warning("the run has nothing for %d of %d queries", absent, len(topics))
    return found
