"""Claim: which back end encodes fastest here, and what its arithmetic costs in quality.

all-MiniLM-L6-v2 over real passages at its six sizes, all from one pass: torch, ONNX Runtime and OpenVINO in every
precision this machine has. Quality: cosine with float32 and overlap of nearest neighbours among the passages, and nDCG@10
on --dataset, or on the demonstration's collection (docstrings of this Python).
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import common

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.demo import SHORT
from starbucks_retrieval.demo.api import minilm
from starbucks_retrieval.demo.corpus import build_corpus, find_modules
from starbucks_retrieval.demo.pipeline import Backbone, Measurement
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.models.backends.drift import drift
from starbucks_retrieval.models.backends.selection import open_backend

_KINDS = (
    *(("torch", "fp32"), ("torch", "bf16"), ("onnx", "fp32")),
    *(("openvino", "fp32"), ("openvino", "bf16"), ("openvino", "int8")),
)


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--texts", type=int, default=256, help="passages a round")
    flags.add_argument("--max_tokens_per_batch", type=int, default=4096, help="rows x longest of a batch")
    names = [f"{backend}-{dtype}" for backend, dtype in _KINDS]
    flags.add_argument("--backends", nargs="+", choices=names, default=names, help="torch-fp32 is always measured")
    flags.add_argument("--dataset", default=None, help="BEIR folder for nDCG@10 (default: docstrings)")
    settings = flags.parse_args()
    base = Backbone.open(minilm())
    encoder = NestedEncoder.from_pretrained(base.path, device="cpu")
    texts, source = common.passages(settings.texts, settings.seed)
    rows = encoder.tokenize(texts, 196)
    runtimes: dict[str, Backend] = {}
    for backend, dtype in _KINDS:
        if f"{backend}-{dtype}" not in ("torch-fp32", *settings.backends):
            continue
        try:
            found = open_backend(backend, encoder, base.sizes, dtype, rows[:300] if dtype == "int8" else None)
        except UserError as error:
            print(f"{backend} {dtype}: {error.what}", file=sys.stderr)
            continue
        runtimes[f"{backend}-{dtype}"] = found

    def timed(run: Backend, number: int) -> None:
        run.embed(rows, base.sizes, max_tokens=settings.max_tokens_per_batch)

    for run in runtimes.values():
        timed(run, 0)
    seconds = common.interleaved(
        {name: partial(timed, run) for name, run in runtimes.items()}, settings.rounds, settings.clock
    )
    report = common.Report("encode_backends", settings, texts=common.describe_texts(texts, source, 196))
    scores = _scores(base, list(runtimes), settings.dataset)
    for name, run in runtimes.items():
        quality = drift(run, encoder, rows, base.sizes, max_tokens=settings.max_tokens_per_batch)
        change = {size: value - scores["torch-fp32"][size] for size, value in scores[name].items()}
        report.line(
            f"{name} over torch-fp32",
            "texts/s of the back end / of torch in float32; higher is better. Drift: mean cosine with float32, and the "
            "share of each text's ten nearest that stays. nDCG@10: of the backbone cut to the size",
            **common.ratio(seconds["torch-fp32"], seconds[name]),
            texts_per_second=common.per_second(len(texts), seconds[name]),
            drift={
                str(size): {key: round(value, 5) for key, value in found.items()} for size, found in quality.items()
            },
            ndcg_at_10={size: round(value, 4) for size, value in scores[name].items()},
            ndcg_change={size: round(value, 4) for size, value in change.items()},
        )


def _scores(base: Backbone, kinds: list[str], dataset: str | None) -> dict[str, dict[str, float]]:
    """nDCG@10 by size of each back end, on a data set, or on the short form of the demonstration's collection."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lengths: dict[str, Any] = {}
        if dataset is None:
            build_corpus(folder / "data", find_modules(), SHORT)
            lengths = {"query_max_len": SHORT.query_max_len, "passage_max_len": SHORT.passage_max_len}
        for kind in kinds:
            backend, dtype = kind.split("-")
            flags = {"model_name_or_path": str(base.path), **lengths, "override": True}
            flags |= {"backend": backend, "dtype": dtype}
            measured = Measurement(folder / kind, Path(dataset or folder / "data"), base.sizes, SHORT, flags).run()
            found[kind] = {size: values["nDCG@10"] for size, values in measured["scores"].items()}
    return found


if __name__ == "__main__":
    main()
