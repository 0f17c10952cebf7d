"""Claim: encoding at (n, d) costs the first n layers over real tokens.

Throughput over (a) the published way, all layers over padded batches and a slice afterwards, and (b)
sentence-transformers on a model truncated to the same size. Tokenisation is part of everybody's time. Each figure also
says which share of the machine's matrix multiplication, measured in the same rounds, ours is.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import published
import torch

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes

_WARM_UP = 4  # texts
_TOLERANCE = {"fp32": 1e-3, "bf16": 0.5}  # largest difference of any coordinate, in standard deviations between texts


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--texts", type=int, default=96, help="passages a round")
    flags.add_argument("--sizes", default="all", help="sizes such as 2:32,12:768")
    flags.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="arithmetic of all contenders")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument("--passage_max_len", type=int, default=196, help="tokens of a passage")
    flags.add_argument("--max_tokens_per_batch", type=int, default=4096, help="ours: rows x longest of a batch")
    flags.add_argument("--rival_batch_size", type=int, default=64, help="rows of a batch of the published way")
    flags.add_argument("--alone", action="store_true", help="only the share of the matmul peak, without the others")
    settings = flags.parse_args()

    texts, source = common.passages(settings.texts, settings.seed)
    with tempfile.TemporaryDirectory() as folder:
        model_sizes = common.save_bert(
            Path(folder), settings.layers, settings.width, settings.seed, settings.passage_max_len
        )
        sizes = Sizes.parse(settings.sizes, model_sizes)
        ours = _ours(folder, settings)
        encode_all = rival = None
        if not settings.alone:
            encode_all = all_layers(folder, settings.dtype, settings.passage_max_len, settings.rival_batch_size)
            rival = sentence_transformers(folder, settings.dtype, settings.width, settings.passage_max_len)

    described = common.describe_texts(texts, source, settings.passage_max_len)
    report = common.Report("encode_sizes", settings, texts=described)
    contenders: dict[str, Callable[[list[str]], np.ndarray]] = {"published": encode_all} if encode_all else {}
    for size in sizes:
        contenders[f"ours {size}"] = partial(ours, size=size)
        if rival is not None:
            contenders[f"sentence-transformers {size}"] = partial(rival, size=size)
    found = {name: run(texts[:_WARM_UP]) for name, run in contenders.items()}

    def timed(name: str, number: int) -> None:
        found[name] = contenders[name](texts)

    multiply = common.matmul(settings.width, settings.dtype)
    laps = {"matmul": multiply} | {name: partial(timed, name) for name in contenders}
    seconds = common.interleaved(laps, settings.rounds, settings.clock)
    difference = _difference(found, sizes)
    if difference > _TOLERANCE[settings.dtype]:
        sys.exit(f"embeddings differ by {difference} of their spread: the contenders do not do the same work")
    tokens = common.token_counts(texts, settings.passage_max_len)
    for size in sizes:
        mine = seconds[f"ours {size}"]
        work = common.encoder_flops(tokens, size.layer, settings.width) / common.matmul_flops(settings.width)
        report.line(
            f"{size} share of the matmul peak",
            "operations a second of the layers of ours / of one large matrix product; higher is better",
            **common.ratio([work * lap for lap in seconds["matmul"]], mine),
            peak_tflops=round(common.per_second(1, seconds["matmul"]) * common.matmul_flops(settings.width) / 1e12, 3),
        )
        rivals = {"published": "published"} if encode_all else {}
        if rival is not None:
            rivals["sentence-transformers"] = f"sentence-transformers {size}"
        for name, key in rivals.items():
            report.line(
                f"{size} over {name}",
                f"texts/s of ours at {size} / texts/s of {name}; higher is better",
                **common.ratio(seconds[key], mine),
                ours={"texts_per_second": common.per_second(len(texts), mine)},
                rival={"texts_per_second": common.per_second(len(texts), seconds[key])},
                largest_difference={"of_spread": difference, "tolerance": _TOLERANCE[settings.dtype]},
            )


def _ours(folder: str, settings: Any) -> Callable[..., np.ndarray]:
    encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    dtype = torch.bfloat16 if settings.dtype == "bf16" else None

    def run(texts: list[str], size: Size) -> np.ndarray:
        return encoder.encode(texts, size, max_tokens=settings.max_tokens_per_batch, dtype=dtype)[size]

    return run


def all_layers(
    folder: str, dtype: str, max_length: int, batch_size: int, device: str = "cpu"
) -> Callable[[list[str]], np.ndarray]:
    """The published way to encode texts with the model of a folder: every state, [texts, layers + 1, hidden]."""
    model, tokenizer = published.load(folder).to(device), common.tokenizer()

    def run(texts: list[str]) -> np.ndarray:
        with common.autocast(dtype, device):
            return published.encode(model, tokenizer, texts, max_length, batch_size)

    return run


def sentence_transformers(
    folder: str, dtype: str, width: int, max_length: int, device: str = "cpu"
) -> Callable[..., np.ndarray] | None:
    """sentence-transformers on the model of a folder cut to a size; None where it is not installed."""
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        print("sentence-transformers 6 is not installed: its figures are left out", file=sys.stderr)
        return None
    transformer = Transformer(folder, max_seq_length=max_length)
    model = SentenceTransformer(modules=[transformer, Pooling(width, "cls")], device=device)
    stack = transformer.auto_model.encoder
    layers = list(stack.layer)

    def run(texts: list[str], size: Size) -> np.ndarray:
        stack.layer = torch.nn.ModuleList(layers[: size.layer])  # microseconds
        with common.autocast(dtype, device):
            return model.encode(texts, truncate_dim=size.dim, show_progress_bar=False)  # batch size and order: its own

    return run


def _difference(found: dict[str, np.ndarray], sizes: Sizes) -> float:
    """The largest difference of any coordinate from a rival's, over the mean standard deviation between texts."""
    largest = 0.0
    for size in sizes:
        mine = found[f"ours {size}"]
        others = [found["published"][:, size.layer, : size.dim]] if "published" in found else []
        if (theirs := found.get(f"sentence-transformers {size}")) is not None:
            others.append(theirs)
        spread = mine.std(axis=0).mean()
        largest = max([largest, *(float(np.abs(mine - other).max() / spread) for other in others)])
    return float(f"{largest:.2g}")


if __name__ == "__main__":
    main()
