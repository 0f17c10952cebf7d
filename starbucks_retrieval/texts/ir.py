"""Collections of the optional package ir_datasets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from starbucks_retrieval.errors import UserError


def rows(dataset_id: str, part: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, column → value) of the `corpus`, `queries` or `qrels` of an ir_datasets id."""
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
            f"try it alone: ir_datasets export {dataset_id} {kind}",
        ) from None


def _load(dataset_id: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise UserError(f"ir:{dataset_id} needs the package ir_datasets", "pip install ir-datasets") from None
    try:
        return ir_datasets.load(dataset_id)
    except KeyError:
        raise UserError(f"ir_datasets knows no {dataset_id!r}", "list its names: ir_datasets list") from None


def _passage(doc: Any) -> dict[str, Any]:
    if hasattr(doc, "text"):
        return {"docid": doc.doc_id, "title": getattr(doc, "title", ""), "text": doc.text}
    return {"docid": doc.doc_id, "title": "", "text": doc.default_text()}


def _query(query: Any) -> dict[str, Any]:
    text = query.text if hasattr(query, "text") else query.default_text()
    return {"query_id": query.query_id, "query": text}


def _judgement(qrel: Any) -> dict[str, Any]:
    return {"query-id": qrel.query_id, "corpus-id": qrel.doc_id, "score": qrel.relevance}
