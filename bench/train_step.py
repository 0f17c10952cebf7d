"""Claim: one SRL training step takes less time and less memory than the published computation.

A step is the forward pass, the loss over all sizes, the backward pass and AdamW. Ours: the training module, texts
laid end to end without padding. Rival: queries and passages each padded to a multiple of 16, all hidden states stacked,
one product tensor [layers, queries, passages, hidden]. Both start from the same weights and must give one loss.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import common
import published
import torch

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.losses.srl import SRL, SRLOptions
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.train import TrainArguments
from starbucks_retrieval.train.module import Chunks, TrainingModule

_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}  # relative, of the loss; ten times as much for the gradient's norm


def main() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(TrainArguments)}
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--queries", type=int, default=4, help="queries of a step")
    flags.add_argument("--group", type=int, default=8, help="passages of a query")
    flags.add_argument("--query_max_len", type=int, default=32, help="tokens of a query")
    flags.add_argument("--passage_max_len", type=int, default=196, help="tokens of a passage")
    flags.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="arithmetic of both")
    flags.add_argument(
        "--max_tokens_per_chunk",
        type=int,
        default=defaults["max_tokens_per_chunk"],
        help="ours: as the train command has it",
    )
    flags.add_argument(
        "--gradient_checkpointing", action="store_true", help="both: recompute layers in the backward pass"
    )
    flags.add_argument(
        "--rival",
        choices=["published", "padded"],
        default="published",
        help="compare with the published computation, or with ours in padded chunks",
    )
    flags.add_argument("--layers", type=int, default=12, help="layers of the model")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument("--skip", nargs="*", choices=["time", "memory"], default=[], help="what not to measure")
    flags.add_argument("--child", nargs=2, default=None, help="used by the benchmark itself")
    settings = flags.parse_args()

    if settings.child:
        mode, folder = settings.child
        _child(mode, folder, settings)
        return
    with tempfile.TemporaryDirectory() as folder:
        common.save_bert(Path(folder), settings.layers, settings.width, settings.seed)
        peaks = {}
        # Large blocks straight from the system, so that a peak is memory in use and not holes in the heap.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
        for mode in () if "memory" in settings.skip else ("resident", "rival", "ours"):
            peaks[mode] = common.peak_memory([sys.executable, __file__, *sys.argv[1:], "--child", mode, folder])
            print(f"{mode}: {common.megabytes(peaks[mode])} MB", file=sys.stderr, flush=True)
        os.environ.pop("MALLOC_MMAP_THRESHOLD_")
        contenders = Contenders(folder, settings)
    texts = [text for batch in contenders.batches for text in batch.passages]
    described = common.describe_texts(texts, contenders.source, settings.passage_max_len)
    report = common.Report("train_step", settings, passages=described)
    if "time" not in settings.skip:
        _time(contenders, settings, report)
    if peaks:
        _memory(peaks, report, settings.rival)


@dataclasses.dataclass
class Batch:
    """The texts of one step and what each contender is given: token ids are made before the clock starts."""

    passages: list[str]
    ours: dict[str, torch.Tensor]
    rival: tuple[Any, Any]


class Contenders:
    """Both computations over one set of weights; a learning rate of zero leaves these as they are, at full cost."""

    def __init__(self, folder: str, settings: Any) -> None:
        self.encoder = NestedEncoder.from_pretrained(folder, device="cpu").train()
        self.sizes: Sizes = self.encoder.sizes
        objective = SRL(self.sizes, self.sizes.full, SRLOptions(reduction="sum"))
        self.module = TrainingModule(self.encoder, objective, Chunks(settings.max_tokens_per_chunk))
        self.rival = settings.rival
        if settings.gradient_checkpointing:
            unpadded.enable(self.encoder.backbone)  # before checkpointing, as in training
            self.module.activation_checkpointing_enable()
        # Training takes the fused AdamW, transformers' default from torch 2.8 on.
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=0.0, fused=True)
        self.dtype = settings.dtype
        count, group = settings.queries, settings.group
        queries, _ = common.queries(settings.rounds * count, settings.seed)
        passages, self.source = common.passages(settings.rounds * count * group, settings.seed)
        self.batches = [
            self._batch(
                queries[i * count : (i + 1) * count], passages[i * count * group : (i + 1) * count * group], settings
            )
            for i in range(settings.rounds)
        ]

    def _batch(self, queries: list[str], passages: list[str], settings: Any) -> Batch:
        query_rows = self.encoder.tokenize(queries, settings.query_max_len)
        passage_rows = self.encoder.tokenize(passages, settings.passage_max_len)
        rows = query_rows + passage_rows
        ours = {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "num_queries": torch.tensor(len(queries)),
            "docids": torch.arange(1, 1 + len(passages)),
            "known": torch.zeros(len(queries), 1, dtype=torch.int64),
        }
        pad = partial(self.encoder.tokenizer.pad, pad_to_multiple_of=16, return_tensors="pt")
        rival = pad({"input_ids": query_rows}), pad({"input_ids": passage_rows})
        return Batch(passages, ours, rival)

    def loss(self, mode: str, number: int) -> torch.Tensor:
        """The loss of batch `number` as `mode` (ours or rival) computes it."""
        batch = self.batches[number]
        self.encoder.backbone.set_attn_implementation("sdpa")
        if mode == "ours":  # as in training
            unpadded.enable(self.encoder.backbone)
        with common.autocast(self.dtype):
            if mode == "ours" or self.rival == "padded":
                return self.module(**batch.ours)["loss"]
            return published.srl_loss(self.encoder.backbone, *batch.rival, self.sizes)

    def step(self, mode: str, number: int, keep_gradients: bool = False) -> float:
        """One training step; returns its loss."""
        loss = self.loss(mode, number)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not keep_gradients)
        return float(loss.detach())

    def gradient_norm(self, mode: str, number: int) -> float:
        """Length of the whole gradient of one batch."""
        self.loss(mode, number).backward()
        norms = [weight.grad.norm() for weight in self.encoder.parameters() if weight.grad is not None]
        self.optimizer.zero_grad()
        return float(torch.stack(norms).norm())

    def occupy(self) -> None:
        """Make weights, gradients and both AdamW states resident."""
        for weight in self.encoder.parameters():
            weight.grad = torch.empty_like(weight).zero_()
        self.optimizer.step()


def _child(mode: str, folder: str, settings: Any) -> None:
    """What a measured process does: hold everything that training holds, then take two steps, or none."""
    contenders = Contenders(folder, settings)
    contenders.occupy()
    if mode != "resident":
        for number in range(min(2, settings.rounds)):
            contenders.step(mode, number, keep_gradients=True)


def _time(contenders: Contenders, settings: Any, report: common.Report) -> None:
    tolerance = _TOLERANCE[settings.dtype]
    norms = {mode: contenders.gradient_norm(mode, 0) for mode in ("rival", "ours")}
    _same("gradient norm", norms, 10 * tolerance)
    losses: dict[str, list[float]] = {"rival": [], "ours": []}

    def timed(mode: str, number: int) -> None:
        losses[mode].append(contenders.step(mode, number))

    seconds = common.interleaved({mode: partial(timed, mode) for mode in losses}, settings.rounds, settings.clock)
    for rival, ours in zip(losses["rival"], losses["ours"], strict=True):
        _same("loss", {"rival": rival, "ours": ours}, tolerance)
    report.line(
        f"step time over {contenders.rival}",
        f"seconds of a step of ours / of the {contenders.rival} computation; lower is better",
        **common.ratio(seconds["ours"], seconds["rival"]),
        ours={"steps_per_second": common.per_second(1, seconds["ours"]), "loss": losses["ours"][0]},
        rival={"steps_per_second": common.per_second(1, seconds["rival"]), "loss": losses["rival"][0]},
        gradient_norms=norms,
        tolerance=tolerance,
    )


def _memory(peaks: dict[str, int], report: common.Report, rival: str) -> None:
    base = peaks["resident"]
    for figure, less in ((f"peak memory over {rival}", 0), (f"peak memory above resident over {rival}", base)):
        what = "peak memory of a training process" + (
            " above one that holds weights, gradients and AdamW states but takes no step" if less else ""
        )
        report.line(
            figure,
            f"{what}: ours / {rival}; lower is better",
            **common.ratio([peaks["ours"] - less], [peaks["rival"] - less]),
            peak_mb={mode: common.megabytes(peak - less) for mode, peak in peaks.items() if peak != less},
            resident_mb=common.megabytes(base),
        )


def _same(what: str, values: dict[str, float], tolerance: float) -> None:
    rival, ours = values["rival"], values["ours"]
    if abs(ours - rival) > tolerance * abs(rival):
        sys.exit(f"{what} {ours} of ours against {rival}: the contenders do not compute the same")


if __name__ == "__main__":
    main()
