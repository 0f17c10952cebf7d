"""Claim: with the gradient cache the memory of a training step does not grow with its batch.

Peak resident memory of one SRL step (forward, backward, AdamW) of batches of 1x, 2x and 4x the queries, with and
without the cache, each in a fresh process; above a process that holds weights, gradients and AdamW states and takes no
step. The time that the cache costs is measured in interleaved rounds.

Large blocks of memory are taken from the system one by one (--mmap_threshold): glibc's heap frays under chunks of many
shapes, and its holes would be measured as memory in use. 0 leaves glibc alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import torch

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.losses.srl import SRL, SRLOptions
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.train.module import Chunks, TrainingModule


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--queries", type=int, default=4, help="queries of a step at 1x")
    flags.add_argument("--group", type=int, default=8, help="passages of a query")
    flags.add_argument("--factors", type=int, nargs="+", default=[1, 2, 4], help="batches, in multiples of --queries")
    flags.add_argument("--max_tokens_per_chunk", type=int, default=1024, help="tokens of a chunk")
    flags.add_argument("--mmap_threshold", type=int, default=131072, help="bytes from which a block is one by itself")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument("--skip", nargs="*", choices=["time", "memory"], default=[], help="what not to measure")
    flags.add_argument("--child", nargs=3, default=None, help="used by the benchmark itself")
    settings = flags.parse_args()
    if settings.child:
        mode, folder, factor = settings.child
        Step(folder, settings, int(factor)).once(mode, occupy=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        common.save_bert(Path(folder), settings.layers, settings.width, settings.seed)
        texts, source = common.passages(settings.queries * settings.group, settings.seed)
        report = common.Report("train_memory", settings, passages=common.describe_texts(texts, source, 196))
        if "memory" not in settings.skip:
            _memory(folder, settings, report)
        if "time" not in settings.skip:
            _time(Step(folder, settings, settings.factors[0]), settings, report)


class Step:
    """One model and one batch."""

    def __init__(self, folder: str, settings: Any, factor: int) -> None:
        self.encoder = NestedEncoder.from_pretrained(folder, device="cpu").train()
        unpadded.enable(self.encoder.backbone)  # as in training
        self.max_tokens = settings.max_tokens_per_chunk
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=0.0)
        count = settings.queries * factor
        queries, _ = common.queries(count, settings.seed)
        passages, _ = common.passages(count * settings.group, settings.seed)
        rows = self.encoder.tokenize(queries, 32) + self.encoder.tokenize(passages, 196)
        self.batch = {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "num_queries": torch.tensor(count),
            "docids": torch.arange(1, 1 + len(passages)),
            "known": torch.zeros(count, 1, dtype=torch.int64),
        }

    def once(self, mode: str, occupy: bool = False) -> None:
        """A step with or without the cache, or (resident) none; `occupy` makes the optimiser's memory resident first."""
        if occupy:
            for weight in self.encoder.parameters():
                weight.grad = torch.empty_like(weight).zero_()
            self.optimizer.step()
        if mode == "resident":
            return
        sizes = self.encoder.sizes
        objective = SRL(sizes, sizes.full, SRLOptions())
        module = TrainingModule(self.encoder, objective, Chunks(self.max_tokens, cached=mode == "cached"))
        module(**self.batch)["loss"].backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


def _memory(folder: str, settings: Any, report: common.Report) -> None:
    def peak(mode: str, factor: int) -> int:
        command = [sys.executable, __file__, *sys.argv[1:], "--child", mode, folder, str(factor)]
        found = common.peak_memory(command)
        print(f"{mode} {factor}x: {common.megabytes(found)} MB", file=sys.stderr, flush=True)
        return found

    if settings.mmap_threshold:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(settings.mmap_threshold)
    first = settings.factors[0]
    resident = peak("resident", first)
    above = {mode: {f: peak(mode, f) - resident for f in settings.factors} for mode in ("plain", "cached")}
    for mode, peaks in above.items():
        for factor in settings.factors[1:]:
            report.line(
                f"{mode}: memory at {factor}x the batch",
                f"peak memory above resident of a step of {factor * settings.queries} queries / of {first * settings.queries}",
                **common.ratio([peaks[factor]], [peaks[first]]),
                peak_mb=common.megabytes(peaks[factor]),
                resident_mb=common.megabytes(resident),
            )
    os.environ.pop("MALLOC_MMAP_THRESHOLD_", None)
    last = settings.factors[-1]
    report.line(
        f"cached over plain at {last}x",
        "peak memory above resident of a step with the cache / without; lower is better",
        **common.ratio([above["cached"][last]], [above["plain"][last]]),
    )


def _time(step: Step, settings: Any, report: common.Report) -> None:
    contenders = {mode: lambda number, mode=mode: step.once(mode) for mode in ("plain", "cached")}
    seconds = common.interleaved(contenders, settings.rounds)
    report.line(
        "time of a cached step",
        "seconds of a step with the cache / without; the forward pass runs twice",
        **common.ratio(seconds["cached"], seconds["plain"]),
        seconds={mode: round(statistics.median(laps), 2) for mode, laps in seconds.items()},
    )


if __name__ == "__main__":
    main()
