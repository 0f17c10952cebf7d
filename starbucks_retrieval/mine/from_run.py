"""Candidates from a run that some other engine wrote."""

from __future__ import annotations

import logging
import math

from starbucks_retrieval.data.run_reader import Run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.candidates import Candidates
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.topics import Topics

log = logging.getLogger(__name__)


def from_run(run: Run, topics: Topics, docids: Docids, depth: int) -> Candidates:
    """The run's `depth` best for each topic by score, then docid, both descending; its ranks are ignored.

    Raises UserError for a score that is not finite, and for a run without any document of the corpus.
    """
    found = Candidates.none_yet(topics, depth)
    unknown = 0
    for i, query_id in enumerate(topics.query_ids):
        results = run.get(query_id, {})
        if not all(map(math.isfinite, results.values())):
            raise UserError(f"the run has a score of query {query_id!r} that is not finite", "mend the run")
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
