"""A handful of test queries with what is found for them at the smallest and at the full size."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.measures import trec_order
from starbucks_retrieval.texts import open_corpus, open_queries, read_qrels, read_run

_TOP = 3


@dataclass(frozen=True)
class Found:
    """One passage of a ranking."""

    docid: str
    text: str
    relevant: bool


@dataclass(frozen=True)
class Answer:
    """The first passages at one size, and the rank of the relevant one (None: not within the depth searched)."""

    size: str
    found: list[Found]
    rank: int | None
    depth: int


@dataclass(frozen=True)
class Example:
    """One query and its answers, smallest size first."""

    query: str
    answers: list[Answer]


def pick_examples(data: Path, runs: dict[str, Path], count: int, seed: int) -> list[Example]:
    """`count` test queries, picked by a hash rather than by how well they do, with the top passages of each run."""
    qrels = read_qrels(str(data), split="test")
    texts = {query.query_id: query.text for query in open_queries(str(data), split="test")}
    chosen = sorted(qrels, key=lambda name: hashlib.blake2b(f"{seed} {name}".encode()).digest())[:count]
    orders: dict[str, dict[str, list[str]]] = {}
    for size, path in runs.items():
        run = read_run(path)
        orders[size] = {query_id: trec_order(run.get(query_id, {})) for query_id in chosen}
    shown = {docid for order in orders.values() for docids in order.values() for docid in docids[:_TOP]}
    passages = {passage.docid: passage.text for passage in open_corpus(str(data)) if passage.docid in shown}
    return [
        Example(texts[name], [_answer(size, orders[size][name], set(qrels[name]), passages) for size in runs])
        for name in chosen
    ]


def _answer(size: str, order: Sequence[str], relevant: set[str], passages: dict[str, str]) -> Answer:
    found = [Found(docid, passages[docid], docid in relevant) for docid in order[:_TOP]]
    rank = next((rank for rank, docid in enumerate(order, 1) if docid in relevant), None)
    return Answer(size, found, rank, len(order))
