"""Texts for the tiny model, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.fit.__main__ import main


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of the tiny tokenizer's words; the two halves of a text share their words."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(f"w{i}" for i in [*words, *rng.permutation(words)])
        for words in (rng.integers(0, 95, rng.integers(4, 12)) for _ in range(count))
    ]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A BEIR folder of 80 passages and 40 queries, of which the split train judges 20."""
    folder = tmp_path_factory.mktemp("texts") / "set"
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"d{i}", "title": "w1", "text": text} for i, text in enumerate(make_texts(80))]
    queries = [{"_id": f"q{i}", "text": text} for i, text in enumerate(make_texts(40, seed=1))]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"q{i}\td{i}\t1" for i in range(20)]
    (folder / "qrels" / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


@pytest.fixture
def run(tiny_bert, corpus, tmp_path, capsys) -> Callable[..., Any]:
    """Run `starbucks fit` on the tiny model and the corpus, with other flags on top; return figures or the error."""

    def call(*flags: str, **changes: Any) -> Any:
        values = {"model_name_or_path": tiny_bert, "dataset_path": corpus, "output_dir": tmp_path / "out"}
        values |= {"max_texts": 120, "pooling": "mean", "normalize": "true"} | changes
        argv = [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]
        status = run_command(main, [*argv, "--json", "--device", "cpu", *flags])
        captured = capsys.readouterr()
        if status:
            return captured.err
        return json.loads(captured.out) | {"log": captured.err}

    return call
