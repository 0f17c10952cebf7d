"""Collections of the optional package ir_datasets; their topics and judgements also from pyserini, where it has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from starbucks_retrieval.data.short_names import pyserini_name
from starbucks_retrieval.errors import UserError

_REMEDY = "pip install ir-datasets, or name local files instead: a BEIR folder, or TREC's formats"


def rows(dataset_id: str, part: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, column → value) of the `corpus`, `queries` or `qrels` of an ir_datasets id.

    Where ir_datasets is missing or gives nothing, queries and qrels that pyserini knows come from there. Raises
    UserError, about ir_datasets, if neither has them.
    """
    found = _of_ir_datasets(dataset_id, part, start, stop)
    try:
        first = next(found, None)
    except UserError:
        other = _of_pyserini(dataset_id, part)
        if other is None:
            raise
        yield from islice(enumerate(other, 1), start, stop)
        return
    if first is not None:
        yield first
        yield from found


def _of_ir_datasets(dataset_id: str, part: str, start: int, stop: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    dataset = _load(dataset_id)
    kind, row = {"corpus": ("docs", _passage), "queries": ("queries", _query), "qrels": ("qrels", _judgement)}[part]
    if not getattr(dataset, f"has_{kind}")():
        raise UserError(f"ir_datasets' {dataset_id} has no {part}", "name a more specific id: ir_datasets list")
    try:
        for number, item in enumerate(islice(getattr(dataset, f"{kind}_iter")(), start, stop), start + 1):
            yield number, row(item)
    except Exception as error:
        # ir_datasets downloads while it iterates; whatever it raises means that the data did not arrive.
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"cannot read {part} of ir_datasets' {dataset_id}: {line}",
            f"try it alone: ir_datasets export {dataset_id} {kind}; or name local files instead",
        ) from None


def _load(dataset_id: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise UserError(f"ir:{dataset_id} needs the package ir_datasets", _REMEDY) from None
    try:
        return ir_datasets.load(dataset_id)
    except KeyError:
        raise UserError(f"ir_datasets knows no {dataset_id!r}", "list its names: ir_datasets list") from None


def _of_pyserini(dataset_id: str, part: str) -> list[dict[str, Any]] | None:
    """Rows of the queries or qrels, or None where pyserini is not installed, does not start, or has not got them."""
    name = pyserini_name(dataset_id)
    if name is None or part not in ("queries", "qrels"):
        return None
    try:
        from pyserini.search import get_qrels, get_topics

        qrels = get_qrels(name)
        topics = get_topics(name) if part == "queries" else {}
    except Exception:  # it starts a Java machine and downloads: whatever it raises means that it cannot help
        return None
    # Numbers for ids are pyserini's own reading of them.
    if part == "queries":
        return [{"query_id": str(key), "query": topic["title"]} for key, topic in topics.items() if key in qrels]
    return [
        {"query-id": str(key), "corpus-id": str(docid), "score": int(grade)}
        for key, grades in qrels.items()
        for docid, grade in grades.items()
    ]


def _passage(doc: Any) -> dict[str, Any]:
    if hasattr(doc, "text"):
        return {"docid": doc.doc_id, "title": getattr(doc, "title", ""), "text": doc.text}
    return {"docid": doc.doc_id, "title": "", "text": doc.default_text()}


def _query(query: Any) -> dict[str, Any]:
    text = query.text if hasattr(query, "text") else query.default_text()
    return {"query_id": query.query_id, "query": text}


def _judgement(qrel: Any) -> dict[str, Any]:
    return {"query-id": qrel.query_id, "corpus-id": qrel.doc_id, "score": qrel.relevance}
