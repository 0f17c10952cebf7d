"""Texts of the passages that a page shows, by one pass over the corpus that keeps nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, open_corpus, open_queries
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)


def read_queries(collection: str, split: str | None = None) -> dict[str, str]:
    """query id → text, in the collection's order."""
    return {query.query_id: query.text for query in open_queries(collection, split=split)}


def read_passages(collection: str, docids: Iterable[str]) -> dict[str, Passage]:
    """Those passages of a corpus that `docids` name; reading stops with the last of them.

    Raises UserError where the corpus has none of them, and logs how many it has not.
    """
    wanted = set(docids)
    found: dict[str, Passage] = {}
    if wanted:
        for passage in progress(open_corpus(collection), None, "passages", "reading the corpus"):
            if passage.docid in wanted:
                found[passage.docid] = passage
                if len(found) == len(wanted):
                    break
    missing = wanted - found.keys()
    if missing and not found:
        raise UserError(
            f"{collection} holds none of the passages that were found (say {min(missing)!r})",
            "name the corpus that was searched",
        )
    if missing:
        log.warning(
            "%s lacks %d of %d passages, say %r: they are shown without text",
            collection,
            len(missing),
            len(wanted),
            min(missing),
        )
    return found
