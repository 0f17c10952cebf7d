"""Figures of SRL training on a GPU: milliseconds a step, peak memory, share of the matmul peak, the largest batch that fits.

One step is the forward pass, the loss over six sizes, the backward pass and AdamW, of BERT-base's shape under bf16, on
texts of real lengths cut at 32 and 196 tokens. The published computation takes the same step on the same weights.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import published
import torch

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.losses.srl import SRL, SRLOptions
from starbucks_retrieval.train.module import Chunks, TrainingModule


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0], rounds=10)
    flags.add_argument("--device", default="cuda", help="cpu tries the benchmark out, and reports no memory")
    flags.add_argument("--queries", type=int, default=128, help="queries of a step")
    flags.add_argument("--group", type=int, default=8, help="passages of a query")
    flags.add_argument("--largest", type=int, default=8192, help="stop looking for the largest batch here")
    flags.add_argument("--max_tokens_per_chunk", type=int, default=None, help="padded tokens of a chunk")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    settings = flags.parse_args()
    common.need_gpu(settings.device)
    report = common.Report("train_gpu", settings, device=_name(settings.device))
    with tempfile.TemporaryDirectory() as folder:
        common.save_bert(Path(folder), settings.layers, settings.width, settings.seed)
        peak = _matmul_peak(settings.device, settings.width)
        for cached in (False, True):
            trial = Trial(folder, settings, cached)
            _report_step(report, trial, settings, peak, cached)
            if not cached:
                _report_published(report, trial, settings)
            largest = trial.largest(settings.queries, settings.largest)
            kind = "with the gradient cache" if cached else "without the gradient cache"
            report.line(
                f"largest batch {kind}", "queries of a step, doubled until one failed or the limit", queries=largest
            )


class Trial:
    """A model on the device, and steps over batches of any number of queries."""

    def __init__(self, folder: str, settings: Any, cached: bool) -> None:
        self.device = settings.device
        self.settings = settings
        self.encoder = NestedEncoder.from_pretrained(folder, device=self.device).train()
        sizes = self.encoder.sizes
        objective = SRL(sizes, sizes.full, SRLOptions())
        self.module = TrainingModule(self.encoder, objective, Chunks(settings.max_tokens_per_chunk, cached=cached))
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=0.0)

    def batch(self, count: int) -> dict[str, torch.Tensor]:
        """Token ids of `count` queries and their passages."""
        queries, _ = common.queries(count, self.settings.seed)
        passages, _ = common.passages(count * self.settings.group, self.settings.seed)
        rows = self.encoder.tokenize(queries, 32) + self.encoder.tokenize(passages, 196)
        made = {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "num_queries": torch.tensor(count),
            "docids": torch.arange(1, 1 + len(passages)),
            "known": torch.zeros(count, 1, dtype=torch.int64),
        }
        return {name: tensor.to(self.device) for name, tensor in made.items()}

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Seconds of one step."""
        return self._timed(lambda: self.module(**batch)["loss"])

    def _timed(self, loss: Callable[[], torch.Tensor]) -> float:
        self._wait()
        start = time.perf_counter()
        with torch.autocast(self.device, torch.bfloat16):
            value = loss()
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._wait()
        return time.perf_counter() - start

    def padded(self, count: int) -> tuple[Any, Any]:
        """The same queries and passages as the published computation takes them."""
        queries, _ = common.queries(count, self.settings.seed)
        passages, _ = common.passages(count * self.settings.group, self.settings.seed)
        encoder, made = self.encoder, []
        for rows in (encoder.tokenize(queries, 32), encoder.tokenize(passages, 196)):
            padded = encoder.tokenizer.pad({"input_ids": rows}, pad_to_multiple_of=16, return_tensors="pt")
            made.append(padded.to(self.device))
        return made[0], made[1]

    def published_step(self, batch: tuple[Any, Any]) -> float:
        """Seconds of one step of the published computation."""
        return self._timed(lambda: published.srl_loss(self.encoder.backbone, *batch, self.encoder.sizes))

    def largest(self, count: int, limit: int) -> int:
        """The largest batch, in queries, that one step of fits the device's memory; 0 if `count` does not."""
        fitting = 0
        while count <= limit:
            try:
                self.step(self.batch(count))
            except torch.OutOfMemoryError:
                break
            finally:
                self.optimizer.zero_grad(set_to_none=True)
                if self.device == "cuda":
                    torch.cuda.empty_cache()
            fitting, count = count, 2 * count
        return fitting

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def _report_step(report: common.Report, trial: Trial, settings: Any, peak: float, cached: bool) -> None:
    batch = trial.batch(settings.queries)
    trial.step(batch)  # allocates, and picks kernels
    if trial.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    laps = [trial.step(batch) for _ in range(settings.rounds)]
    tokens = int(batch["lengths"].sum())
    layer = sum(
        weight.numel()
        for name, weight in trial.encoder.backbone.named_parameters()
        if trial.encoder.layout.layer_of(name) and weight.dim() == 2
    )
    # Forward and backward of a matrix of w weights take 6 w operations a token; attention itself is left out.
    operations = 6 * layer * tokens
    seconds = statistics.median(laps)
    report.line(
        "step with the gradient cache" if cached else "step",
        "median milliseconds of a step; the share counts each token's matrices once forward and once backward, real "
        "tokens only, over the matmul peak measured here",
        milliseconds=round(1000 * seconds, 1),
        rounds=len(laps),
        tokens=tokens,
        share_of_matmul_peak=round(operations / seconds / peak, 3),
        matmul_peak_tflops=round(peak / 1e12, 1),
        peak_memory_mb=common.megabytes(torch.cuda.max_memory_allocated()) if trial.device == "cuda" else None,
    )


def _report_published(report: common.Report, trial: Trial, settings: Any) -> None:
    ours, theirs = trial.batch(settings.queries), trial.padded(settings.queries)
    try:
        trial.published_step(theirs)
    except torch.OutOfMemoryError:
        report.line("step time over published", "the published computation does not fit this device", ratio=None)
        return
    pairs = [(trial.step(ours), trial.published_step(theirs)) for _ in range(settings.rounds)]
    peaks = []
    for step in (lambda: trial.step(ours), lambda: trial.published_step(theirs)):
        if trial.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            step()
            peaks.append(common.megabytes(torch.cuda.max_memory_allocated()))
    report.line(
        "step time over published",
        "seconds of a step of ours / of the published computation; lower is better. Peak memory: ours, published",
        **common.ratio([one for one, _ in pairs], [other for _, other in pairs]),
        peak_memory_mb=peaks,
    )


def _matmul_peak(device: str, width: int) -> float:
    """Operations a second of a bf16 product of the shape of a feed-forward layer, the best of ten."""
    a = torch.randn(16384, width, device=device, dtype=torch.bfloat16)
    b = torch.randn(width, 4 * width, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(10):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(4):
            a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / 4)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / best


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
