"""Training groups: a query with its positives, its hard negatives and, optionally, the scores of a teacher."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from starbucks_retrieval.data import fields
from starbucks_retrieval.data.collection import Qrels, check_qrels, open_queries, passage_from, read_qrels
from starbucks_retrieval.data.fields import BadRow, as_id, as_list, as_number, as_text, identifier, kind, string, value
from starbucks_retrieval.data.formats import NumberedRows
from starbucks_retrieval.data.records import Group, Passage, Query, Records, scan
from starbucks_retrieval.data.sources import Collection, as_path, beir_folder, find_ir, find_rows
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_LAYOUTS = {2: ("query", "positive"), 3: ("query", "positive", "negative")}


def open_groups(collection: Collection, *, config: str | None = None, split: str | None = None) -> Records[Group]:
    """Open training groups. The columns of each row decide its layout:

    - `query_id, query, positive_passages, negative_passages`: rows of Tevatron with their texts;
    - `query_id, query_text, positive_document_ids, negative_document_ids`: rows of Tevatron with ids of a corpus;
    - `query` or `anchor`, `positive`, optional `negative` and `negative_1`, `negative_2` …, each a text or a list of
      texts; also in tsv and csv files. The query may also be called `question`, `text`, `sentence1`, `text1` or
      `query_text`, the positive `answer`. Ids are hashes of the texts, so equal texts share one.

    Every layout may have a teacher's scores in `positive_scores` and `negative_scores`, lists in the order of the
    passages; a single text may have a single number. Other columns are ignored.

    Args:
        collection: As for `open_corpus`. A BEIR folder, `ir:` id or short name gives rows with ids, made from its queries
            and qrels: grades above 0 are positives, sorted by id, all others negatives.
        config: Configuration of a Hugging Face data set.
        split: As for `open_corpus`; for qrels `train` by default.

    Returns:
        The groups in the order of the collection.

    Raises:
        UserError: As for `open_corpus`; iterating also raises it for a row without positives.
    """
    collection = as_path(collection)
    if beir_folder(collection) or find_ir(collection, split or "train"):
        return _judged_groups(collection, split or "train")
    rows = find_rows(collection, "groups", _LAYOUTS, config, split)
    return Records(collection, rows.source, rows.read, group_from)


def group_from(row: dict[str, Any]) -> Group:
    """Convert a row to a group.

    Args:
        row: Column → value. The positives are passages (`positive_passages`), ids (`positive_document_ids`) or texts
            (`positive` or `answer`); the first of these columns that is filled decides.

    Raises:
        BadRow: A column is missing or has the wrong type, two columns could hold the positives, or there are none.
    """
    columns = [column for column in _LAYOUT_OF_COLUMN if column in row]
    # Rows of one table have the same columns, filled or not.
    filled = [column for column in columns if row[column] not in (None, [])]
    if fields.POSITIVE[0] in filled[1:]:
        raise BadRow(
            f"the columns {' and '.join(filled[:2])} are filled, and each could hold the positives",
            "drop or rename one of them",
        )
    if columns:
        group = _LAYOUT_OF_COLUMN[(filled or columns)[0]](row)
        if not group.positive_ids:
            raise BadRow("the row has no positives", "remove it, or give it at least one")
        return group
    raise BadRow(
        f"no column {' or '.join(_LAYOUT_OF_COLUMN)}: the row has {', '.join(map(str, row)) or 'no columns'}",
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
    return _group(row, identifier(row, fields.QUERY_ID), string(row, fields.QUERY_TEXT), positives, negatives, passages)


def _with_ids(row: dict[str, Any]) -> Group:
    def ids(column: str) -> list[str]:
        return [as_id(item, column) for item in as_list(row.get(column), column)]

    positives, negatives = ids("positive_document_ids"), ids("negative_document_ids")
    return _group(row, identifier(row, fields.QUERY_ID), string(row, fields.QUERY_TEXT), positives, negatives, None)


def _with_texts(row: dict[str, Any]) -> Group:
    passages: dict[str, Passage] = {}
    # An empty cell means that the row has fewer negatives.
    matches = (fields.NUMBERED_NEGATIVE.fullmatch(name) for name, found in row.items() if found != "")
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
    query_id = (
        as_id(value(row, fields.QUERY_ID), "query_id")
        if any(name in row for name in fields.QUERY_ID)
        else text_id(query)
    )
    negatives = (docid for column in ("negative", *(name for _, name in numbered)) for docid in ids(column))
    positive = next((name for name in fields.POSITIVE if row.get(name) is not None), fields.POSITIVE[0])
    return _group(row, query_id, query, ids(positive), negatives, passages)


def _plain_query(row: dict[str, Any]) -> str:
    """Return the query of a row of plain texts. Raises BadRow if several columns could hold it and they differ."""
    for names in (fields.ANCHOR, fields.ANCHOR_FALLBACK):
        filled = [name for name in names if row.get(name) is not None]
        if len({as_text(row[name], name) for name in filled}) > 1:
            raise BadRow(
                f"the columns {' and '.join(filled)} differ, and each could be the query",
                f"call the query {fields.ANCHOR[0]}, and drop or rename the others",
            )
        if filled:
            return string(row, filled)
    return string(row, (*fields.ANCHOR, *fields.ANCHOR_FALLBACK))


_LAYOUT_OF_COLUMN = {
    "positive_passages": _with_passages,
    "positive_document_ids": _with_ids,
    **dict.fromkeys(fields.POSITIVE, _with_texts),
}


def text_id(text: str) -> str:
    """Return an id for a text without one: 16 hexadecimal digits of its blake2b hash.

    Example:
        >>> text_id("Hens lay eggs.")
        '6edadb6c8932f389'
    """
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
    # A passage listed on both sides is a positive: as a negative it would contradict its own label.
    negative_ids = tuple(docid for docid in dict.fromkeys(listed_negatives) if docid not in positive_ids)
    scores = _teacher_scores(row, listed_positives, listed_negatives)
    return Group(query_id, query, positive_ids, negative_ids, passages, scores)


def _teacher_scores(row: dict[str, Any], positives: Sequence[str], negatives: Sequence[str]) -> dict[str, float] | None:
    """Return id → score from `positive_scores` and `negative_scores`, None for a row that has neither.

    `positives` and `negatives` are the ids as listed in the row, before equal ones are merged: scores have their order.
    A single number counts as a list of one. An id on both sides keeps its score as a positive. Raises BadRow for a
    number of scores that differs from the number of ids, for one missing side, and for two different scores of one id.
    """
    if row.get(fields.POSITIVE_SCORES) is None and row.get(fields.NEGATIVE_SCORES) is None:
        return None
    scores = _scores_of_side(row, fields.POSITIVE_SCORES, positives)
    for docid, score in _scores_of_side(row, fields.NEGATIVE_SCORES, negatives).items():
        scores.setdefault(docid, score)
    return scores


def _scores_of_side(row: dict[str, Any], column: str, docids: Sequence[str]) -> dict[str, float]:
    found = row.get(column)
    if found is None and docids:
        other = fields.NEGATIVE_SCORES if column == fields.POSITIVE_SCORES else fields.POSITIVE_SCORES
        raise BadRow(f"the row has {other} but no {column}", "score both sides, or neither")
    listed = [found] if isinstance(found, (int, float, str)) else as_list(found, column)
    if len(listed) != len(docids):
        raise BadRow(
            f"{column} has {len(listed)} score{'' if len(listed) == 1 else 's'} for {len(docids)} "
            f"passage{'' if len(docids) == 1 else 's'}",
            "give every passage its score, in the order of the passages",
        )
    scores: dict[str, float] = {}
    for docid, item in zip(docids, listed):
        score = as_number(item, column)
        if scores.setdefault(docid, score) != score:
            raise BadRow(
                f"{column} has {scores[docid]} and {score} for one passage, {docid!r}",
                "list a passage once on each side",
            )
    return scores


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


def _judged_rows(queries: Records[Query], qrels: Qrels, start: int, stop: int | None) -> NumberedRows:
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
