"""Training groups: a query with its positives and hard negatives, in every layout that trainers are fed with."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from starbucks_retrieval.data.corpus import passage_from
from starbucks_retrieval.data.fields import (
    ANCHOR,
    ANCHOR_TOO,
    NUMBERED_NEGATIVE,
    QUERY_ID,
    QUERY_TEXT,
    BadRow,
    as_id,
    as_list,
    as_text,
    identifier,
    kind,
    string,
    value,
)
from starbucks_retrieval.data.qrels import Qrels, check_qrels, read_qrels
from starbucks_retrieval.data.queries import open_queries
from starbucks_retrieval.data.records import Group, Passage, Query, Records
from starbucks_retrieval.data.scan import scan
from starbucks_retrieval.data.sources import beir_folder, find_ir, find_rows
from starbucks_retrieval.data.teacher import teacher_scores
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_TSV = {2: ("query", "positive"), 3: ("query", "positive", "negative")}


def open_groups(collection: str, *, config: str | None = None, split: str | None = None) -> Records[Group]:
    """Open training rows. Each row says by its columns which of these it is:

    - `query_id, query, positive_passages, negative_passages`: Tevatron rows, texts inline;
    - `query_id, query_text, positive_document_ids, negative_document_ids`: Tevatron rows, ids of a corpus;
    - `query` or `anchor`, `positive`, optional `negative` and `negative_1`, `negative_2` …, each a text or a list of
      texts; tsv and csv files too. The query may also be called `question`, `text`, `sentence1`, `text1` or `query_text`. Ids
      are made from the texts, so equal texts share one.

    Each may have a teacher's scores in `positive_scores` and `negative_scores`, lists in the order of the passages; a
    single text may have a single number. Other columns are ignored.

    A BEIR folder, `ir:` id or short name gives id rows from its queries and judgements (split `train` by default):
    positives are the grades above 0 sorted by id, negatives the others. Raises UserError for a row without positives.
    """
    if beir_folder(collection) or find_ir(collection, split or "train"):
        return _judged_groups(collection, split or "train")
    rows = find_rows(collection, "groups", _TSV, config, split)
    return Records(collection, rows.source, rows.read, group_from)


def group_from(row: dict[str, Any]) -> Group:
    """A row as a group. Raises BadRow for a missing or wrong column and for a row without positives."""
    for column, make in _KINDS.items():
        if column in row:
            group = make(row)
            if not group.positive_ids:
                raise BadRow("the row has no positives", "remove it, or give it at least one")
            return group
    raise BadRow(
        f"no column {' or '.join(_KINDS)}: the row has {', '.join(map(str, row)) or 'no columns'}",
        "name the columns query and positive, or as docs/howto/data.md shows under Training groups; sentence1, sentence2 "
        "and score are read with --task sts",
    )


def _with_passages(row: dict[str, Any]) -> Group:
    passages: dict[str, Passage] = {}

    def ids(column: str) -> Iterator[str]:
        for item in as_list(row.get(column), column):
            if not isinstance(item, dict):
                raise BadRow(f"{column} holds {kind(item)}, not a passage", "write {docid, title, text} objects")
            passage = passage_from(item)
            if passages.setdefault(passage.docid, passage) != passage:
                raise BadRow(f"the id {passage.docid!r} has two different texts", "give each passage its own id")
            yield passage.docid

    positives, negatives = ids("positive_passages"), ids("negative_passages")
    return _group(row, identifier(row, QUERY_ID), string(row, QUERY_TEXT), positives, negatives, passages)


def _with_ids(row: dict[str, Any]) -> Group:
    def ids(column: str) -> list[str]:
        return [as_id(item, column) for item in as_list(row.get(column), column)]

    positives, negatives = ids("positive_document_ids"), ids("negative_document_ids")
    return _group(row, identifier(row, QUERY_ID), string(row, QUERY_TEXT), positives, negatives, None)


def _with_texts(row: dict[str, Any]) -> Group:
    passages: dict[str, Passage] = {}
    matches = (NUMBERED_NEGATIVE.fullmatch(name) for name, found in row.items() if found != "")  # some have fewer
    numbered = sorted((int(match[1]), match[0]) for match in matches if match)

    def ids(column: str) -> Iterator[str]:
        found = row.get(column)
        for text in [found] if isinstance(found, str) else as_list(found, column):
            if not isinstance(text, str):
                raise BadRow(f"{column} holds {kind(text)}, not a text", "write a string or a list of strings")
            docid = text_id(text)
            passages.setdefault(docid, Passage(docid, "", text))
            yield docid

    query = _plain_query(row)
    query_id = as_id(value(row, QUERY_ID), "query_id") if any(name in row for name in QUERY_ID) else text_id(query)
    negatives = (docid for column in ("negative", *(name for _, name in numbered)) for docid in ids(column))
    return _group(row, query_id, query, ids("positive"), negatives, passages)


def _plain_query(row: dict[str, Any]) -> str:
    """The query of a row of plain texts. Raises BadRow where two columns could be it and differ."""
    for some in (ANCHOR, ANCHOR_TOO):
        filled = [name for name in some if row.get(name) is not None]
        if len({as_text(row[name], name) for name in filled}) > 1:
            raise BadRow(
                f"the columns {' and '.join(filled)} differ, and each could be the query",
                f"call the query {ANCHOR[0]}, and drop or rename the others",
            )
        if filled:
            return string(row, filled)
    return string(row, (*ANCHOR, *ANCHOR_TOO))


_KINDS = {"positive_passages": _with_passages, "positive_document_ids": _with_ids, "positive": _with_texts}


def text_id(text: str) -> str:
    """An id for a text that has none: 16 hex digits of its blake2b."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()


def _group(
    row: dict[str, Any],
    query_id: str,
    query: str,
    positives: Iterable[str],
    negatives: Iterable[str],
    passages: dict[str, Passage] | None,
) -> Group:
    listed_positives, listed_negatives = list(positives), list(negatives)
    positive_ids = tuple(dict.fromkeys(listed_positives))
    # A passage listed on both sides is a positive: pushing it away would train against its own label.
    negative_ids = tuple(docid for docid in dict.fromkeys(listed_negatives) if docid not in positive_ids)
    scores = teacher_scores(row, listed_positives, listed_negatives)
    return Group(query_id, query, positive_ids, negative_ids, passages, scores)


def _judged_groups(collection: str, split: str) -> Records[Group]:
    queries = open_queries(collection, split=split)
    qrels = read_qrels(collection, split=split)
    scan(queries, "queries")
    check_qrels(qrels, {query.query_id for query in queries}, None, f"{collection} ({split})")
    usable = {query_id for query_id, grades in qrels.items() if any(grade > 0 for grade in grades.values())}
    if not usable:
        raise UserError(f"{collection} ({split}) has no grade above 0", "training needs positives")
    if len(usable) < len(qrels):
        log.warning("%s: %d of %d queries have no positive; skipped", collection, len(qrels) - len(usable), len(qrels))
    return Records(
        collection, queries.source, partial(_judged_rows, queries, {name: qrels[name] for name in usable}), group_from
    )


def _judged_rows(
    queries: Records[Query], qrels: Qrels, start: int, stop: int | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    kept = ((number, query) for number, query in queries.numbered() if query.query_id in qrels)
    for number, query in islice(kept, start, stop):
        grades = qrels[query.query_id]
        yield (
            number,
            {
                "query_id": query.query_id,
                "query": query.text,
                "positive_document_ids": sorted(docid for docid, grade in grades.items() if grade > 0),
                "negative_document_ids": sorted(docid for docid, grade in grades.items() if grade <= 0),
            },
        )
