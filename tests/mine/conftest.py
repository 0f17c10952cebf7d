"""A small collection to mine in, and engines without models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import open_corpus, open_groups, scan
from starbucks_retrieval.mine.__main__ import main
from starbucks_retrieval.mine.topics import Docids, read_topics


def write_jsonl(path: Path, rows) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read_jsonl(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def id_row(query_id, positives, text="w1 w2", negatives=()):
    return {
        "query_id": query_id,
        "query_text": text,
        "positive_document_ids": list(positives),
        "negative_document_ids": list(negatives),
    }


def opened(groups: str, corpus: str):
    """Topics, corpus and docids of two files."""
    records = open_corpus(corpus)
    docids = Docids(records, scan(records))
    return read_topics(open_groups(groups), docids), records, docids


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> Path:
    """60 passages of random words, ids with white space and beyond ASCII; 12 queries with one or two positives each."""
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("beir")

    def words(count):
        return " ".join(f"w{i}" for i in rng.integers(0, 40, count))

    ids = [f"é {i}" if i % 7 == 0 else f"d{i}" for i in range(60)]
    corpus = [{"_id": docid, "title": words(2) if i % 2 else "", "text": words(8)} for i, docid in enumerate(ids)]
    queries = [{"_id": f"q {i}", "text": words(4)} for i in range(12)]
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", queries)
    judged = [(f"q {i}", ids[5 * i + k], 1) for i in range(12) for k in range(1 + i % 2)]
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, line)) for line in judged)]
    (folder / "qrels").mkdir()
    (folder / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def run_mine(capfd):
    """Open the door; gives (exit status, figures or None, what went to standard error)."""

    def call(*arguments):
        status = run_command(main, [*map(str, arguments), "--json"])
        printed = capfd.readouterr()
        return status, json.loads(printed.out) if printed.out else None, printed.err

    return call
