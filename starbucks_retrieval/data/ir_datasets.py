"""Collections of the optional package ir_datasets, by id or short name; queries and qrels also from pyserini."""

from __future__ import annotations

import fnmatch
from itertools import islice
from typing import Any

from starbucks_retrieval.data.formats import NumberedRows
from starbucks_retrieval.errors import UserError

_INSTALL = "pip install ir-datasets, or name local files instead: a BEIR folder, or TREC's formats"

_FORUMS = (
    *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats", "tex", "unix"),
    *("webmasters", "wordpress"),
)

# Short name → split → id of ir_datasets; `test` is the split that the collection is evaluated on.
SHORT_NAMES: dict[str, dict[str, str]] = {
    "msmarco-train": {"train": "msmarco-passage/train/judged"},
    "msmarco-dev": {"test": "msmarco-passage/dev/small", "dev": "msmarco-passage/dev/small"},
    "dl19": {"test": "msmarco-passage/trec-dl-2019/judged"},
    "dl20": {"test": "msmarco-passage/trec-dl-2020/judged"},
    "dl-hard": {"test": "msmarco-passage/trec-dl-hard"},
    "beir/arguana": {"test": "beir/arguana"},
    "beir/climate-fever": {"test": "beir/climate-fever"},
    **{f"beir/cqadupstack/{forum}": {"test": f"beir/cqadupstack/{forum}"} for forum in _FORUMS},
    "beir/dbpedia-entity": {"test": "beir/dbpedia-entity/test", "dev": "beir/dbpedia-entity/dev"},
    "beir/fever": {"test": "beir/fever/test", "train": "beir/fever/train", "dev": "beir/fever/dev"},
    "beir/fiqa": {"test": "beir/fiqa/test", "train": "beir/fiqa/train", "dev": "beir/fiqa/dev"},
    "beir/hotpotqa": {"test": "beir/hotpotqa/test", "train": "beir/hotpotqa/train", "dev": "beir/hotpotqa/dev"},
    # BEIR's own figures for MS MARCO are on dev; its `test` is DL19.
    "beir/msmarco": {"test": "beir/msmarco/dev", "train": "beir/msmarco/train", "dev": "beir/msmarco/dev"},
    "beir/nfcorpus": {"test": "beir/nfcorpus/test", "train": "beir/nfcorpus/train", "dev": "beir/nfcorpus/dev"},
    "beir/nq": {"test": "beir/nq"},
    "beir/quora": {"test": "beir/quora/test", "dev": "beir/quora/dev"},
    "beir/scidocs": {"test": "beir/scidocs"},
    "beir/scifact": {"test": "beir/scifact/test", "train": "beir/scifact/train"},
    "beir/trec-covid": {"test": "beir/trec-covid"},
    "beir/webis-touche2020": {"test": "beir/webis-touche2020/v2"},
}

# Sets of BEIR that nobody may pass on, and where their texts come from; BEIR's examples/dataset says how to make a folder.
LICENSED: dict[str, str] = {
    "beir/bioasq": "register at bioasq.org for Task 9B",
    "beir/signal1m": "request Signal-1M from Signal AI, and its tweets from X",
    "beir/trec-news": "sign NIST's agreement for the Washington Post collection",
    "beir/robust04": "sign NIST's agreement for TREC disks 4 and 5",
}

_PYSERINI = {
    "msmarco-passage/dev/small": "msmarco-passage-dev-subset",
    "msmarco-passage/trec-dl-2019/judged": "dl19-passage",
    "msmarco-passage/trec-dl-2020/judged": "dl20-passage",
    # BEIR's archive holds the second version of these topics.
    "beir/webis-touche2020/v2": "beir-v1.0.0-webis-touche2020-test",
}


def expand_pattern(source: str) -> list[str]:
    """Return the short names that match a pattern such as `beir/cqadupstack/*`, or `source` itself if none does.

    Example:
        >>> expand_pattern("dl1*"), expand_pattern("my/qrels.tsv")
        (['dl19'], ['my/qrels.tsv'])
    """
    return fnmatch.filter(SHORT_NAMES, source) or [source]


def resolve_short_name(name: str, split: str | None) -> str | None:
    """Return the ir_datasets id of a short name and a split (default: its first), None for any other name.

    Args:
        name: Such as scifact or dl19.
        split: Such as test; None: the first that the collection has.

    Raises:
        UserError: The collection has no such split, or its licence forbids to pass it on.

    Example:
        >>> resolve_short_name("beir/fiqa", "dev")
        'beir/fiqa/dev'
    """
    if name in LICENSED:
        raise UserError(
            f"{name} may not be passed on: {LICENSED[name]}",
            "make its folder as BEIR describes, and name the folder (corpus.jsonl, queries.jsonl, qrels/test.tsv)",
        )
    splits = SHORT_NAMES.get(name)
    if splits is None:
        return None
    chosen = split or next(iter(splits))
    if chosen not in splits:
        raise UserError(f"{name} has no split {chosen!r}", f"it has {', '.join(splits)}")
    return splits[chosen]


def rows(dataset_id: str, part: str, start: int = 0, stop: int | None = None) -> NumberedRows:
    """Yield (row number from 1, column → value) of the `corpus`, `queries` or `qrels` of an ir_datasets id.

    If ir_datasets fails, queries and qrels are read from pyserini where it has them.

    Args:
        dataset_id: An id of ir_datasets, such as `beir/fiqa/dev`.
        part: `corpus`, `queries` or `qrels`.
        start: The position, from 0, of the first row.
        stop: The position after the last row; None for all rows.

    Raises:
        UserError: Neither package has the data; the message is that of ir_datasets.
    """
    found = _from_ir_datasets(dataset_id, part, start, stop)
    try:
        first = next(found, None)
    except UserError:
        rows_of_pyserini = _from_pyserini(dataset_id, part)
        if rows_of_pyserini is None:
            raise
        yield from islice(enumerate(rows_of_pyserini, 1), start, stop)
        return
    if first is not None:
        yield first
        yield from found


def _from_ir_datasets(dataset_id: str, part: str, start: int, stop: int | None) -> NumberedRows:
    dataset = _load(dataset_id)
    kind, row = {"corpus": ("docs", _passage), "queries": ("queries", _query), "qrels": ("qrels", _judgement)}[part]
    if not getattr(dataset, f"has_{kind}")():
        raise UserError(f"ir_datasets' {dataset_id} has no {part}", "name a more specific id: ir_datasets list")
    try:
        for number, item in enumerate(islice(getattr(dataset, f"{kind}_iter")(), start, stop), start + 1):
            yield number, row(item)
    except Exception as error:
        # ir_datasets downloads while it iterates; every exception means that the data did not arrive.
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"cannot read {part} of ir_datasets' {dataset_id}: {line}",
            f"try it alone: ir_datasets export {dataset_id} {kind}; or name local files instead",
        ) from None


def _load(dataset_id: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise UserError(f"ir:{dataset_id} needs the package ir_datasets", _INSTALL) from None
    try:
        return ir_datasets.load(dataset_id)
    except KeyError:
        raise UserError(f"ir_datasets has no data set {dataset_id!r}", "list its names: ir_datasets list") from None


def _from_pyserini(dataset_id: str, part: str) -> list[dict[str, Any]] | None:
    """Return the rows of queries or qrels, or None where pyserini is not installed, fails, or does not have them."""
    name = _pyserini_name(dataset_id)
    if name is None or part not in ("queries", "qrels"):
        return None
    try:
        from pyserini.search import get_qrels, get_topics

        qrels = get_qrels(name)
        topics = get_topics(name) if part == "queries" else {}
    except Exception:  # it starts a Java machine and downloads, which fails in many ways
        return None
    # pyserini turns numeric ids into integers.
    if part == "queries":
        return [{"query_id": str(key), "query": topic["title"]} for key, topic in topics.items() if key in qrels]
    return [
        {"query-id": str(key), "corpus-id": str(docid), "score": int(grade)}
        for key, grades in qrels.items()
        for docid, grade in grades.items()
    ]


def _pyserini_name(dataset_id: str) -> str | None:
    """Return the name of the topics and qrels of an ir_datasets id in pyserini, None if it is not known to have them."""
    if dataset_id in _PYSERINI:
        return _PYSERINI[dataset_id]
    if not any(dataset_id == splits["test"] for name, splits in SHORT_NAMES.items() if name.startswith("beir/")):
        return None
    if dataset_id.startswith("beir/msmarco"):
        return None
    return f"beir-v1.0.0-{dataset_id.removeprefix('beir/').removesuffix('/test').replace('/', '-')}-test"


def _passage(doc: Any) -> dict[str, Any]:
    if hasattr(doc, "text"):
        return {"docid": doc.doc_id, "title": getattr(doc, "title", ""), "text": doc.text}
    return {"docid": doc.doc_id, "title": "", "text": doc.default_text()}


def _query(query: Any) -> dict[str, Any]:
    text = query.text if hasattr(query, "text") else query.default_text()
    return {"query_id": query.query_id, "query": text}


def _judgement(qrel: Any) -> dict[str, Any]:
    return {"query-id": qrel.query_id, "corpus-id": qrel.doc_id, "score": qrel.relevance}
