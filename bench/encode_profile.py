"""Where the time of encoding goes: shares of linear layers, attention, GELU, LayerNorm, additions, casts, tokenisation.

BERT-base's shape with random weights over passages of real lengths, by torch.profiler. Padding is a share of the computed
tokens, and the rest are shares of the time from text to embeddings. In bf16 this is autocast, as small jobs compute it: the
profiler does not see the compiled loops of large ones.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import common
import torch
from torch.profiler import ProfilerActivity, profile

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.models.batching import batch_tokens, token_batches
from starbucks_retrieval.sizes import Sizes

_PARTS = {
    "linear": ("addmm", "aten::mm", "_linear_pointwise", "_reorder_linear_weight", "aten::linear"),
    "attention": ("scaled_dot_product",),
    "gelu": ("gelu",),
    "layer_norm": ("layer_norm",),
    "add": ("aten::add",),
    "copies_and_casts": ("copy_", "aten::to", "_to_copy", "clone", "contiguous"),
}


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0], rounds=3)
    flags.add_argument("--texts", type=int, default=96, help="passages of a pass")
    flags.add_argument("--sizes", default="6:128,12:768", help="sizes, each in a pass of its own")
    flags.add_argument("--dtypes", default="fp32,bf16", help="arithmetic")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument("--max_tokens_per_batch", type=int, default=4096, help="rows x longest of a batch, at most")
    settings = flags.parse_args()
    texts, source = common.passages(settings.texts, settings.seed)
    with tempfile.TemporaryDirectory() as folder:
        sizes = Sizes.parse(
            settings.sizes, common.save_bert(Path(folder), settings.layers, settings.width, settings.seed)
        )
        encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    report = common.Report("encode_profile", settings, texts=common.describe_texts(texts, source, 196))
    for dtype in settings.dtypes.split(","):
        for size in sizes:
            shares: list[dict[str, float]] = []
            for number in range(settings.rounds + 1):  # the first one warms up
                found = _shares(encoder, texts, Sizes([size]), dtype, settings.max_tokens_per_batch)
                shares += [found] if number else []
            report.line(
                f"{size} in {dtype}",
                "share of the time from text to embeddings, mean of the rounds; padding: share of the computed tokens",
                shares={name: round(sum(one[name] for one in shares) / len(shares), 3) for name in shares[0]},
            )


def _shares(encoder: NestedEncoder, texts: list[str], sizes: Sizes, dtype: str, max_tokens: int) -> dict[str, float]:
    start = time.perf_counter()
    rows = encoder.tokenize(texts, 196)
    tokenise = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CPU]) as found:
        start = time.perf_counter()
        encoder.embed(rows, sizes, max_tokens=max_tokens, dtype=torch.bfloat16 if dtype == "bf16" else None)
        embed = time.perf_counter() - start
    parts = dict.fromkeys((*_PARTS, "other operators"), 0.0)
    for event in found.key_averages():
        kind = next((part for part, words in _PARTS.items() if any(word in event.key for word in words)), None)
        parts[kind or "other operators"] += event.self_cpu_time_total / 1e6
    parts |= {"tokenise": tokenise, "python": max(0.0, embed - sum(parts.values()))}
    lengths = [len(row) for row in rows]
    batches = token_batches(lengths, batch_tokens(max_tokens, "cpu"))
    computed = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return {name: seconds / (tokenise + embed) for name, seconds in parts.items()} | {
        "padding": 1 - sum(lengths) / computed
    }


if __name__ == "__main__":
    main()
