"""Claim: encoding all six sizes in one pass costs hardly more than the full size alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import common
import torch

from starbucks_retrieval import NestedEncoder


def main() -> None:
    flags = common.parser(__doc__)
    flags.add_argument("--texts", type=int, default=96, help="passages a round")
    flags.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="arithmetic")
    flags.add_argument("--passage_max_len", type=int, default=196, help="tokens of a passage")
    flags.add_argument("--max_tokens_per_batch", type=int, default=4096, help="rows x longest of a batch")
    settings = flags.parse_args()

    texts, source = common.passages(settings.texts, settings.seed)
    with tempfile.TemporaryDirectory() as folder:
        sizes = common.save_bert(Path(folder), 12, 768, settings.seed, settings.passage_max_len)
        encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    described = common.describe_texts(texts, source, settings.passage_max_len)
    report = common.Report("encode_all_sizes", settings, texts=described)
    options = {
        "max_tokens": settings.max_tokens_per_batch,
        "dtype": torch.bfloat16 if settings.dtype == "bf16" else None,
    }
    encoder.encode(texts[:16], sizes, **options)
    seconds = common.interleaved(
        {
            "all sizes": lambda _: encoder.encode(texts, sizes, **options),
            "full size": lambda _: encoder.encode(texts, sizes.full, **options),
        },
        settings.rounds,
    )
    report.line(
        "all sizes over the full size",
        f"seconds of one pass for {sizes} / seconds of one pass for {sizes.full} alone; lower is better, 1 is free",
        **common.ratio(seconds["all sizes"], seconds["full size"]),
        all_sizes={"texts_per_second": common.per_second(len(texts), seconds["all sizes"])},
        full_size={"texts_per_second": common.per_second(len(texts), seconds["full size"])},
    )


if __name__ == "__main__":
    main()
