"""Claim: with InfoNCE over rounded passages too (`train --binary_weight 1`), binary codes lose less, and floats nothing.

all-MiniLM-L6-v2 is trained on query-passage pairs of a BEIR folder with InfoNCE at two dims, once as it is and once with
a second InfoNCE on passages rounded to a bit a number (straight-through gradient). Test queries then search the same
passages as floats, int8 codes and bits, by the scales that stores have.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from mine_sizes import beir_folder, part_of
from torch import Tensor

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.data import open_corpus, open_queries, read_qrels
from starbucks_retrieval.demo.api import minilm
from starbucks_retrieval.evaluate import evaluate_run
from starbucks_retrieval.losses.functional import info_nce, round_to_bits
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.search import search_vectors
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store.dtypes import QUANTISED, Quantiser, calibration_rows

_TEMPERATURE = 0.05
Texts = dict[str, str]


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--dataset", default="scifact", help="BEIR folder, or its name in the shared data")
    flags.add_argument("--passages", type=int, default=2000, help="of the corpus, the judged ones first")
    flags.add_argument("--dims", type=int, nargs="+", default=[128, 384], help="dims of the last layer, ascending")
    flags.add_argument("--steps", type=int, default=48, help="training steps")
    flags.add_argument("--queries", type=int, default=16, help="pairs of a step")
    flags.add_argument("--learning_rate", type=float, default=2e-5, help="of AdamW")
    flags.add_argument("--seeds", type=int, default=3, help="runs of each kind, which differ in the order of the pairs")
    settings = flags.parse_args()
    dataset = beir_folder(settings.dataset)
    report = common.Report("train_binary", settings)
    with tempfile.TemporaryDirectory() as name:
        data = str(part_of(dataset, Path(name) / "part", settings.passages, settings.seed))
        passages = {one.docid: f"{one.title} {one.text}".strip() for one in open_corpus(data)}
        queries = {
            split: {one.query_id: one.text for one in open_queries(data, split=split)} for split in ("train", "test")
        }
        qrels = read_qrels(data, split="train")
        pairs = [
            (text, passages[docid])
            for query, text in queries["train"].items()
            for docid, grade in qrels.get(query, {}).items()
            if grade > 0 and docid in passages
        ]
        found: dict[str, list[dict[str, float]]] = {
            "untrained": [
                _score(NestedEncoder.from_pretrained(minilm()), queries["test"], passages, data, settings.dims)
            ]
        }
        for seed, second in ((seed, second) for seed in range(settings.seeds) for second in (False, True)):
            encoder = NestedEncoder.from_pretrained(minilm())
            _train(encoder, pairs, second, settings, settings.seed + seed)
            which = "with the second term" if second else "InfoNCE"
            found.setdefault(which, []).append(_score(encoder, queries["test"], passages, data, settings.dims))
            print(seed, which, found[which][-1], file=sys.stderr, flush=True)
    for which, scores in found.items():
        report.line(
            which,
            "nDCG@10 of the test queries, in float32, over passages of a store dtype: mean over seeds, and each",
            ndcg10={at: round(statistics.mean(one[at] for one in scores), 4) for at in scores[0]},
            by_seed=scores,
            training_pairs=len(pairs),
            passages=len(passages),
            test_queries=len(queries["test"]),
        )


def _train(encoder: NestedEncoder, pairs: list[tuple[str, str]], second: bool, settings: Any, seed: int) -> None:
    order, rng = list(range(len(pairs))), random.Random(seed)
    optimizer = torch.optim.AdamW(encoder.parameters(), settings.learning_rate)
    encoder.eval()  # no dropout: the two kinds differ in the loss alone
    for step in range(settings.steps):
        if len(order) < settings.queries or not step:
            order = rng.sample(range(len(pairs)), len(pairs))
        batch, order = [pairs[i] for i in order[: settings.queries]], order[settings.queries :]
        sides = [_pooled(encoder, list(texts), length) for texts, length in zip(zip(*batch), (48, 128))]
        loss = torch.zeros(())
        for dim in settings.dims:
            queries, passages = (embedding(side, dim, normalize=True) for side in sides)
            targets = torch.arange(len(queries))
            loss = loss + info_nce(queries @ passages.T, targets, _TEMPERATURE)
            if second:
                loss = loss + info_nce(queries @ round_to_bits(passages).T, targets, _TEMPERATURE)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()


def _pooled(encoder: NestedEncoder, texts: list[str], length: int) -> Tensor:
    layer = encoder.sizes.full.layer
    return encoder(**pad(encoder.tokenize(texts, length), encoder.tokenizer.pad_token_id), layers=[layer])[layer]


def _score(encoder: NestedEncoder, queries: Texts, passages: Texts, data: str, dims: list[int]) -> dict[str, float]:
    """{"128 binary": nDCG@10} of every dim and store dtype."""
    encoder.eval()
    sizes = Sizes([Size(encoder.sizes.full.layer, dim) for dim in dims])
    sides = [
        encoder.embed(encoder.tokenize(list(texts.values()), length), sizes, max_tokens=1024)
        for texts, length in ((queries, 48), (passages, 256))
    ]
    values = {}
    for size in sizes:
        asked, vectors = (side[size] for side in sides)
        stored: dict[str, np.ndarray] = {"float32": vectors}
        for dtype in QUANTISED:
            quantiser = Quantiser.calibrate(dtype, vectors[calibration_rows(len(vectors))])
            stored[dtype] = quantiser.decode(quantiser.encode(vectors))
        for dtype, rows in stored.items():
            run = search_vectors(asked, rows, k=10, query_ids=list(queries), passage_ids=list(passages))
            values[f"{size.dim} {dtype}"] = evaluate_run(run, data, "nDCG@10").mean["nDCG@10"]
    return values


if __name__ == "__main__":
    main()
