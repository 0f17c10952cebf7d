"""Claim: encoding at (n, d) costs the first n layers over real tokens.

Throughput over (a) the published way, all layers over padded batches and a slice afterwards, (b)
sentence-transformers on a model truncated to the same size, and (c) with --other_python its OpenVINO and ONNX back ends. Tokenisation is part of everybody's time. Each figure also
says which share of the machine's matrix multiplication, measured in the same rounds, ours is.
"""

from __future__ import annotations

import itertools
import os
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
from other_environment import OtherEnvironment

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.export.hugging_face import write_sentence_transformers
from starbucks_retrieval.models.backends.selection import open_backend
from starbucks_retrieval.sizes import Size, Sizes

_WARM_UP = 4  # texts
_TOLERANCE = {"fp32": 1e-3, "bf16": 0.5}  # largest difference of any coordinate, in standard deviations between texts


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--texts", type=int, default=96, help="passages a round")
    flags.add_argument("--sizes", default="all", help="sizes such as 2:32,12:768")
    flags.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="arithmetic of all contenders")
    flags.add_argument("--backend", choices=["torch", "onnx", "openvino"], default="torch", help="ours")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument("--passage_max_len", type=int, default=196, help="tokens of a passage")
    flags.add_argument("--max_tokens_per_batch", type=int, default=4096, help="ours: rows x longest of a batch")
    flags.add_argument("--rival_batch_size", type=int, default=64, help="rows of a batch of the published way")
    flags.add_argument(
        "--other_python", default=None, help="Python of an environment for other_environment.py (default: without it)"
    )
    flags.add_argument(
        "--other_backends",
        nargs="+",
        choices=["openvino", "onnx", "torch"],
        default=["openvino"],
        help="back ends of it",
    )
    flags.add_argument(
        "--rivals",
        nargs="*",
        choices=["published", "sentence-transformers"],
        default=["published", "sentence-transformers"],
        help="whom to compare with; nobody: only the share of the matmul peak",
    )
    settings = flags.parse_args()

    texts, source = common.passages(settings.texts, settings.seed)
    with tempfile.TemporaryDirectory() as folder:
        model_sizes = common.save_bert(
            Path(folder), settings.layers, settings.width, settings.seed, settings.passage_max_len
        )
        sizes = Sizes.parse(settings.sizes, model_sizes)
        ours = _ours(folder, sizes, settings)
        encode_all = rival = None
        if "published" in settings.rivals:
            encode_all = all_layers(folder, settings.dtype, settings.passage_max_len, settings.rival_batch_size)
        if "sentence-transformers" in settings.rivals:
            rival = sentence_transformers(folder, settings.dtype, settings.width, settings.passage_max_len)
        other = other_environment(Path(folder), sizes, texts, settings) if settings.other_python else None

    described = common.describe_texts(texts, source, settings.passage_max_len)
    more = {} if other is None else {"other_versions": other.versions}
    report = common.Report("encode_sizes", settings, texts=described, **more)
    contenders: dict[str, Callable[[list[str]], np.ndarray]] = {"published": encode_all} if encode_all else {}
    for size in sizes:
        contenders[f"ours {size}"] = partial(ours, size=size)
        if rival is not None:
            contenders[f"sentence-transformers {size}"] = partial(rival, size=size)
    found = {name: run(texts[:_WARM_UP]) for name, run in contenders.items()}

    def timed(name: str, number: int) -> None:
        found[name] = contenders[name](texts)

    multiply = common.matmul(settings.width, settings.dtype)
    laps: dict[str, Callable[[int], object]] = {"matmul": multiply}
    laps |= {name: partial(timed, name) for name in contenders}
    if other is not None:
        for backend, at in itertools.product(settings.other_backends, map(str, sizes)):
            found[f"sentence-transformers {backend} {at}"] = other.embeddings(backend, at)
            laps[f"sentence-transformers {backend} {at}"] = partial(other.seconds, backend, at)
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
        if other is not None:
            names = [f"sentence-transformers {backend}" for backend in settings.other_backends]
            rivals |= {name: f"{name} {size}" for name in names}
        for name, key in rivals.items():
            report.line(
                f"{size} over {name}",
                f"texts/s of ours at {size} / texts/s of {name}; higher is better",
                **common.ratio(seconds[key], mine),
                ours={"texts_per_second": common.per_second(len(texts), mine)},
                rival={"texts_per_second": common.per_second(len(texts), seconds[key])},
                largest_difference={"of_spread": difference, "tolerance": _TOLERANCE[settings.dtype]},
            )


def _ours(folder: str, sizes: Sizes, settings: Any) -> Callable[..., np.ndarray]:
    encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    os.environ["STARBUCKS_CACHE"] = folder  # random models are not worth keeping
    only = {size: Sizes([size]) for size in sizes}
    opened = {size: open_backend(settings.backend, encoder, one, settings.dtype) for size, one in only.items()}

    def run(texts: list[str], size: Size) -> np.ndarray:
        rows = encoder.tokenize(texts, settings.passage_max_len)
        return opened[size].embed(rows, only[size], max_tokens=settings.max_tokens_per_batch)[size]

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


def other_environment(folder: Path, sizes: Sizes, texts: list[str], settings: Any) -> OtherEnvironment:
    """sentence-transformers in another environment, with the model of a folder cut to each size."""
    models = {str(size): str(folder / f"L{size.layer}-D{size.dim}") for size in sizes}
    for size in sizes:
        cut = NestedEncoder.from_pretrained(folder, layers=size.layer, device="cpu")
        write_sentence_transformers(cut, size, Path(models[str(size)]))
    job = {"backends": settings.other_backends, "threads": torch.get_num_threads()}
    job |= {"dtype": settings.dtype, "clock": settings.clock}
    return OtherEnvironment(settings.other_python, models, texts, job)


def _difference(found: dict[str, np.ndarray], sizes: Sizes) -> float:
    """The largest difference of any coordinate from a rival's, over the mean standard deviation between texts."""
    largest = 0.0
    for size in sizes:
        mine = found[f"ours {size}"]
        others = [found["published"][:, size.layer, : size.dim]] if "published" in found else []
        others += [
            theirs for name, theirs in found.items() if name.endswith(f" {size}") and not name.startswith("ours")
        ]
        spread = mine.std(axis=0).mean()
        largest = max([largest, *(float(np.abs(mine - other).max() / spread) for other in others)])
    return float(f"{largest:.2g}")


if __name__ == "__main__":
    main()
