"""A small collection with ties, and a grid's cells measured the long way: encode, search and evaluate for each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.data import read_run
from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.evaluate import EvaluateArguments, evaluate
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.search import SearchArguments, search
from starbucks_retrieval.sizes import Size


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> Path:
    """90 passages, three of them of one text; 12 queries, one unjudged."""
    folder = tmp_path_factory.mktemp("beir") / "small"
    (folder / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(5)
    texts = [" ".join(f"w{k}" for k in rng.integers(0, 95, rng.integers(3, 20))) for _ in range(90)]
    texts[40] = texts[12] = texts[7]
    ids = [f"d{i}" for i in rng.permutation(90)]
    rows = [{"_id": one, "title": "", "text": text} for one, text in zip(ids, texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [" ".join(texts[i].split()[:4]) for i in range(0, 36, 3)]
    rows = [{"_id": f"q{i}", "text": text} for i, text in enumerate(asked)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        f"q{i}\t{ids[j]}\t{grade}" for i in range(11) for j, grade in ((3 * i, 2), (7, 1), (12, 1), (3 * i + 1, 1))
    ]
    judged = dict.fromkeys(tuple(line.split("\t")[:2]) for line in lines)
    kept = [next(line for line in lines if tuple(line.split("\t")[:2]) == pair) for pair in judged]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(kept) + "\n")
    return folder


def separately(model: Path, beir: Path, out: Path, size: Size, measures: str, depth: int = 20, **encoding):
    """The run {query_id: {docid: score}} of one size, and its cells by measure, by the doors' own functions."""
    base = {"model_name_or_path": str(model), "dataset_path": str(beir), "sizes": str(size), "store_dtype": "float32"}
    encode(EncodeArguments(**base, **encoding, encode_output_path=str(out / "p")))
    encode(EncodeArguments(**base, **encoding, encode_output_path=str(out / "q"), encode_is_query=True))
    search(
        SearchArguments(
            query_reps=str(out / "q"),
            passage_reps=str(out / "p"),
            size=str(size),
            depth=depth,
            save_ranking_to=str(out / "run.trec"),
        )
    )
    evaluate(EvaluateArguments(out / "run.trec", str(beir), measures=measures, output=out / "scores.json"))
    return read_run(out / "run.trec"), {cell.measure: cell for cell in read_results(out / "scores.json").cells}
