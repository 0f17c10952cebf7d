"""Mine hard negatives: passages that BM25, a model or a run ranks high for a query but that are not its positives."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import as_flag_values, check_least, flag
from starbucks_retrieval.data import Group, Passage, Records, open_corpus, open_groups
from starbucks_retrieval.data.sources import beir_folder, find_ir, store_collections
from starbucks_retrieval.devices import BATCH_TOKENS_HELP, default_batch_tokens
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from starbucks_retrieval.mine.api import mine

__all__ = ["MineArguments", "mine"]


@dataclasses.dataclass
class MineArguments:
    """Mining."""

    dataset_path: str | None = flag(None, "training groups: file, BEIR folder, ir: or short name")
    dataset_name: str | None = flag(None, "the same, from the hub")
    dataset_config: str | None = flag(None, "configuration of the hub data set", rare=True)
    dataset_split: str = flag("train", "split of the training groups")
    corpus_path: str | None = flag(None, "passages to take negatives from; a BEIR folder contains its corpus")
    corpus_name: str | None = flag(None, "the same as --corpus_path, from the hub", rare=True)
    output_path: str = flag("", "file for the training rows, .jsonl or .jsonl.gz", required=True)
    overwrite: bool = flag(False, "replace the output file; candidates that still fit are used again")

    bm25: bool = flag(False, "candidates by BM25")
    model_name_or_path: str | None = flag(None, "candidates by this model, with its stored settings")
    run: str | None = flag(None, "candidates from a TREC run")
    depth: int = flag(200, "candidates per query, as in Tevatron's scripts")

    num_negatives: int = flag(30, "negatives per query at most; 30 of 200 is Tevatron's choice for MS MARCO")
    sampling: Literal["random", "top"] = flag(
        "random", "how to choose among the remaining: random (by --seed and query id) or the best"
    )
    range: str | None = flag(None, "ranks to take from, such as 10:200, counted without positives (default: all)")
    margin: float | None = flag(None, "keep scores up to the lowest positive's minus this")
    ratio: float | None = flag(None, "keep scores up to this times the lowest positive's, where that is above 0")
    duplicate_threshold: float = flag(
        0.9, "skip texts that share this much of their words with a positive's (Jaccard)", rare=True
    )
    save_scores: bool = flag(False, "write positive_scores and negative_scores too, for distillation", rare=True)

    teacher_name_or_path: str | None = flag(
        None,
        "save the scores of this cross-encoder (its logit) or bi-encoder (divided by its temperature) instead; "
        "implies --save_scores and does not change which negatives are chosen",
    )
    teacher_size: str | None = flag(None, "of a bi-encoder, layer:dim (default: its full size)", rare=True)
    teacher_max_len: int | None = flag(
        None, "tokens of a cross-encoder's pair (default: 512, or the model's limit if lower)", rare=True
    )

    size: str | None = flag(None, "of the model, layer:dim (default: its full size)")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = flag(
        "auto", "arithmetic; auto: bf16 where it is fast, else fp32", rare=True
    )
    weights_dtype: Literal["float32", "bfloat16", "float16"] = flag(
        "float32",
        "type of the weights of models in memory; 16 bits halve it, and scores are computed in that type",
        rare=True,
    )
    max_tokens_per_batch: int | None = flag(None, BATCH_TOKENS_HELP, rare=True)
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")

    bm25_backend: Literal["auto", "bm25s", "pyserini"] = flag(
        "auto", "pyserini (Lucene, Porter stems, Java 21), bm25s (no stems); both drop English stop words", rare=True
    )
    bm25_k1: float = flag(0.9, "saturation of term counts; Anserini's default", rare=True)
    bm25_b: float = flag(0.4, "weight of passage length; Anserini's default", rare=True)

    def __post_init__(self) -> None:
        as_flag_values(self)
        store_collections(self)
        engines = [name for name in ("bm25", "model_name_or_path", "run") if getattr(self, name)]
        if len(engines) != 1:
            raise UserError(
                f"{len(engines)} sources of candidates, one is needed", "give --bm25, --model_name_or_path or --run"
            )
        if self.size and not self.model_name_or_path:
            raise UserError("--size belongs to a model", "add --model_name_or_path, or leave it out")
        for name in ("teacher_size", "teacher_max_len"):
            if getattr(self, name) is not None and not self.teacher_name_or_path:
                raise UserError(f"--{name} belongs to a teacher", "add --teacher_name_or_path, or leave it out")
        self.save_scores = self.save_scores or bool(self.teacher_name_or_path)
        counts = ("depth", "num_negatives", "teacher_max_len", "max_tokens_per_batch")
        check_least(self, *counts, hint="give a positive number")
        for name in ("margin", "ratio"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UserError(f"--{name} {value} is not a finite number", "leave the flag out for no limit")
        if self.ratio is not None and self.ratio <= 0:
            raise UserError(f"--ratio {self.ratio} is not above 0", "0.95 keeps a little distance from the positives")
        if not 0 < self.duplicate_threshold <= 1:
            raise UserError(
                f"--duplicate_threshold {self.duplicate_threshold} is not between 0 and 1",
                "1 skips only texts with exactly the same words",
            )
        if not (0 <= self.bm25_b <= 1 and 0 <= self.bm25_k1 < math.inf):
            raise UserError(
                f"--bm25_k1 {self.bm25_k1} --bm25_b {self.bm25_b} are not valid parameters of BM25",
                "k1 is 0 or more, b between 0 and 1",
            )
        if not self.output_path.endswith((".jsonl", ".jsonl.gz")):
            raise UserError(f"--output_path {self.output_path} is not a .jsonl file", "end it in .jsonl or .jsonl.gz")
        if self.corpus_path and self.corpus_name:
            raise UserError("--corpus_path and --corpus_name name two corpora", "give one of them")
        _ = self.collection, self.window, self.model_size, self.teacher_embedding_size

    @property
    def collection(self) -> str:
        """The path or hub name of the training groups. Raises UserError unless exactly one is named."""
        named = [c for c in (self.dataset_path, self.dataset_name) if c]
        if len(named) != 1:
            raise UserError(
                f"{len(named)} collections of training groups, one is needed", "name it with --dataset_path"
            )
        return named[0]

    @property
    def output(self) -> Path:
        """The file to write."""
        return Path(self.output_path).expanduser()

    @property
    def window(self) -> tuple[int, int]:
        """First and last rank that negatives may come from, counted from 1 after removing the positives."""
        if self.range is None:
            return 1, self.depth
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", self.range)
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= first <= last:
            raise UserError(f"cannot read --range {self.range}", "write first:last with ranks from 1, such as 10:200")
        if last > self.depth:
            raise UserError(
                f"--range {self.range} goes beyond the {self.depth} candidates of a query", f"add --depth {last}"
            )
        return first, last

    @property
    def model_size(self) -> Size | None:
        """--size, parsed; None for the model's full size."""
        return Size.parse(self.size) if self.size else None

    @property
    def teacher_embedding_size(self) -> Size | None:
        """--teacher_size, parsed; None for the teacher's full size."""
        return Size.parse(self.teacher_size) if self.teacher_size else None

    def token_budget(self, device: str) -> int:
        """Return the most padded tokens of a batch on a device type: cpu, cuda."""
        return self.max_tokens_per_batch or default_batch_tokens(device)

    def open_data(self) -> tuple[Records[Group], Records[Passage]]:
        """Open the training groups and the corpus. Raises UserError where there is no corpus."""
        name, split = self.collection, self.dataset_split
        groups = open_groups(name, config=self.dataset_config, split=split)
        named = [c for c in (self.corpus_path, self.corpus_name) if c]
        # A BEIR folder contains its corpus, and so does a data set of ir_datasets.
        if not named and (beir_folder(name) or find_ir(name, split)):
            named = [name]
        if not named:
            raise UserError("no corpus to take negatives from", "name it with --corpus_path")
        return groups, open_corpus(named[0])


__getattr__, __dir__ = lazy_exports(__name__, {"mine": ".api"})
