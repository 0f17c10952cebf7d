"""Claim: a step of masked auto-encoding (SMAE) takes less time and memory than the published computation.

A step is the forward pass, encoder and decoder losses at every size, the backward pass and AdamW. Ours: the
pre-training module, whose vocabulary meets masked tokens only. Rival: full-vocabulary logits of every token at every
size, decoder embeddings computed again for each. Both start from the same weights and must give one loss. Ours is
measured with --gradient_checkpointing too, and the loader alone in tokens a second.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import common
import published
import torch

from starbucks_retrieval.data.documents import open_documents
from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES
from starbucks_retrieval.pretrain.data import PretrainingData
from starbucks_retrieval.pretrain.module import PretrainingModule

MODES = ("rival", "ours", "ours recomputing")


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--batch", type=int, default=4, help="sequences of a step")
    flags.add_argument("--max_length", type=int, default=128, help="tokens of a sequence")
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument(
        "--skip", nargs="*", choices=["time", "memory", "loader"], default=[], help="what not to measure"
    )
    flags.add_argument("--child", nargs=2, default=None, help="used by the benchmark itself")
    settings = flags.parse_args()
    if settings.child:
        mode, folder = settings.child
        _child(mode, Path(folder), settings)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common.save_bert(folder / "model", settings.layers, settings.width, settings.seed)
        # Passages three at a time, so that most documents fill a sequence.
        texts, source = common.passages(3000, settings.seed)
        lines = [" ".join(texts[i : i + 3]) for i in range(0, len(texts), 3)]
        (folder / "text.txt").write_text("\n".join(" ".join(line.split()) for line in lines), encoding="utf-8")
        report = common.Report("pretrain_step", settings, texts=source)
        if "loader" not in settings.skip:
            _loader(folder, settings, report)
        # Large blocks straight from the system, so that a peak is memory in use and not holes in the heap.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
        peaks = {}
        for mode in () if "memory" in settings.skip else ("resident", *MODES):
            peaks[mode] = common.peak_memory([sys.executable, __file__, *sys.argv[1:], "--child", mode, name])
            print(f"{mode}: {common.megabytes(peaks[mode])} MB", file=sys.stderr, flush=True)
        if peaks:
            _memory(peaks, report)
        os.environ.pop("MALLOC_MMAP_THRESHOLD_")
        if "time" not in settings.skip:
            _time(Contenders(folder, settings), settings, report)


class Contenders:
    """Both computations over one set of weights; a learning rate of zero leaves these as they are, at full cost."""

    def __init__(self, folder: Path, settings: Any) -> None:
        options = dataclasses.replace(PRETRAIN_OBJECTIVES["smae"].variants["starbucks-released"])
        self.module = PretrainingModule.from_pretrained(str(folder / "model"), options=options, dropout=0.0).train()
        # The same weights, recomputed.
        recomputing = copy.deepcopy(self.module, {id(weight): weight for weight in self.module.parameters()})
        recomputing.activation_checkpointing_enable()
        self.modules = {"ours": self.module, "ours recomputing": recomputing}
        self.decoder = copy.deepcopy(self.module.model.bert.encoder.layer[0])
        weights = [*self.module.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.AdamW(weights, lr=0.0)
        stream = iter(_data(folder, settings, self.module.tokenizer, settings.batch))
        self.batches = [next(stream) for _ in range(settings.rounds)]
        for batch in self.batches:
            del batch["state"]

    def loss(self, mode: str, number: int) -> torch.Tensor:
        """The loss of batch `number` as `mode` (one of MODES) computes it."""
        batch = self.batches[number]
        if mode != "rival":
            return self.modules[mode](**batch)["loss"]
        return published.smae_loss(self.module.model, self.decoder, batch, self.module.sizes)

    def step(self, mode: str, number: int, keep_gradients: bool = False) -> float:
        """One training step; returns its loss."""
        loss = self.loss(mode, number)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not keep_gradients)
        return float(loss.detach())


def _data(folder: Path, settings: Any, tokenizer: Any, batch: int) -> PretrainingData:
    sources = [open_documents(str(folder / "text.txt"))]
    return PretrainingData(
        sources, tokenizer, max_length=settings.max_length, batch_size=batch, seed=settings.seed, shuffle=1000
    )


def _child(mode: str, folder: Path, settings: Any) -> None:
    contenders = Contenders(folder, settings)
    for group in contenders.optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.empty_like(weight).zero_()
    contenders.optimizer.step()
    if mode != "resident":
        for number in range(min(2, settings.rounds)):
            contenders.step(mode, number, keep_gradients=True)


def _loader(folder: Path, settings: Any, report: common.Report) -> None:
    tokenizer = common.tokenizer()
    stream = iter(_data(folder, settings, tokenizer, 32))
    next(stream)
    rates = []
    for _ in range(settings.rounds):
        start, tokens = time.perf_counter(), 0
        for _ in range(20):
            tokens += int(next(stream)["attention_mask"].sum())
        rates.append(tokens / (time.perf_counter() - start))
    report.line(
        "loader",
        "tokens a second of reading, tokenising, cutting, masking and padding, in the training process, no model",
        tokens_per_second=round(statistics.median(rates)),
        rounds=len(rates),
    )


def _time(contenders: Contenders, settings: Any, report: common.Report) -> None:
    losses: dict[str, list[float]] = {mode: [] for mode in MODES}

    def timed(mode: str, number: int) -> None:
        losses[mode].append(contenders.step(mode, number))

    seconds = common.interleaved({mode: partial(timed, mode) for mode in MODES}, settings.rounds)
    for rival, *ours in zip(*losses.values(), strict=True):
        if any(abs(loss - rival) > 1e-4 * abs(rival) for loss in ours):
            sys.exit(f"losses {ours} of ours against {rival}: the contenders do not compute the same")
    tokens = [int(batch["attention_mask"].sum()) for batch in contenders.batches]
    for mode in MODES[1:]:
        report.line(
            f"step time over published, {mode}",
            "seconds of a step of ours / of the published computation; lower is better",
            **common.ratio(seconds[mode], seconds["rival"]),
            seconds={name: round(statistics.median(seconds[name]), 2) for name in ("rival", mode)},
            mean_tokens=round(statistics.mean(tokens)),
        )


def _memory(peaks: dict[str, int], report: common.Report) -> None:
    base = peaks["resident"]
    for mode in MODES[1:]:
        report.line(
            f"peak memory above resident over published, {mode}",
            "peak memory of a training process above one that holds weights, gradients and AdamW states but takes no "
            "step: ours / published; lower is better",
            **common.ratio([peaks[mode] - base], [peaks["rival"] - base]),
            peak_mb={name: common.megabytes(peaks[name] - base) for name in ("rival", mode)},
            resident_mb=common.megabytes(base),
        )


if __name__ == "__main__":
    main()
