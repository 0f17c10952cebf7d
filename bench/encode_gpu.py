"""Figures of encoding on a GPU: passages a second at each size, share of the matmul peak, over the other ways.

BERT-base's shape in bf16 over passages of MS MARCO's lengths cut at 196 tokens. Ours are tokenised beforehand, so that the share
is the GPU's; against the published way and sentence-transformers, everybody's time includes tokenisation.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import common
import numpy as np
import torch
from encode_sizes import all_layers, sentence_transformers

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.models.unpadded import NAME
from starbucks_retrieval.sizes import Size, Sizes


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--texts", type=int, default=16384, help="passages a round")
    flags.add_argument("--max_tokens_per_batch", type=int, default=65536, help="rows x longest of a batch")
    flags.add_argument("--device", default="cuda", help="cpu tries the benchmark out")
    flags.add_argument("--products", type=int, default=64, help="matrix products of a round")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    settings = flags.parse_args()
    device = settings.device
    common.need_gpu(device)
    with tempfile.TemporaryDirectory() as folder:
        sizes = common.save_bert(Path(folder), settings.layers, settings.width, settings.seed)
        encoders = {
            "padded": NestedEncoder.from_pretrained(folder, device=device),
            "unpadded": NestedEncoder.from_pretrained(folder, device=device, attn_implementation=NAME),
        }
        encode_all = all_layers(folder, "bf16", 196, 64, device)
        rival = sentence_transformers(folder, "bf16", settings.width, 196, device)
    texts, source = common.passages(settings.texts, settings.seed)
    rows = encoders["padded"].tokenize(texts, 196)
    left = torch.randn(16384, settings.width, device=device, dtype=torch.bfloat16)
    right = torch.randn(settings.width, 4 * settings.width, device=device, dtype=torch.bfloat16)
    products = settings.products

    def multiply(number: int) -> None:
        for _ in range(products):
            left @ right
        if device == "cuda":
            torch.cuda.synchronize()

    def embed(kind: str, asked: Sizes, number: int) -> dict[Size, np.ndarray]:
        return encoders[kind].embed(rows, asked, max_tokens=settings.max_tokens_per_batch, dtype=torch.bfloat16)

    def encode(size: Size, number: int) -> None:
        encoders["padded"].encode(
            texts, size, max_length=196, max_tokens=settings.max_tokens_per_batch, dtype=torch.bfloat16
        )

    def rivals(size: Size, number: int) -> object:
        return rival(texts, size) if rival is not None else None

    contenders: dict[str, Callable[[int], object]] = {"matmul": multiply}
    for kind in encoders:
        contenders |= {f"{kind} {size}": partial(embed, kind, Sizes([size])) for size in sizes}
        contenders |= {f"{kind} all": partial(embed, kind, sizes)}
    contenders["published"] = lambda _: encode_all(texts)
    for size in sizes:
        contenders[f"ours {size}"] = partial(encode, size)
        if rival is not None:
            contenders[f"sentence-transformers {size}"] = partial(rivals, size)
    for run in contenders.values():
        run(0)
    one, other = (embed(kind, Sizes([sizes.full]), 0)[sizes.full] for kind in encoders)
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    if cosine.min() < 0.99:
        sys.exit(f"padded and unpadded embeddings differ: cosine {cosine.min()}")
    seconds = common.interleaved(contenders, settings.rounds)
    report = common.Report(
        "encode_gpu",
        settings,
        texts=common.describe_texts(texts, source, 196),
        device=torch.cuda.get_device_name() if device == "cuda" else device,
    )
    lengths = [len(row) for row in rows]
    product = products * 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
    for size in sizes:
        work = common.encoder_flops(lengths, size.layer, settings.width) / product
        for kind in encoders:
            mine = seconds[f"{kind} {size}"]
            report.line(
                f"{size} {kind}, share of the matmul peak",
                "operations a second of the layers over real tokens / of large bf16 products; higher is better",
                **common.ratio([work * lap for lap in seconds["matmul"]], mine),
                passages_per_second=common.per_second(len(rows), mine),
            )
        report.line(
            f"{size} unpadded over padded",
            "passages/s without padding / with; higher is better",
            **common.ratio(seconds[f"padded {size}"], seconds[f"unpadded {size}"]),
        )
        for name, key in (("published", "published"), ("sentence-transformers", f"sentence-transformers {size}")):
            if key in seconds:
                report.line(
                    f"{size} over {name}",
                    f"texts/s of ours at {size} / texts/s of {name}; higher is better",
                    **common.ratio(seconds[key], seconds[f"ours {size}"]),
                )
    for kind in encoders:
        report.line(
            f"all sizes in one pass over the full size alone, {kind}",
            "seconds / seconds; lower is better",
            **common.ratio(seconds[f"{kind} all"], seconds[f"{kind} {sizes.full}"]),
        )


if __name__ == "__main__":
    main()
