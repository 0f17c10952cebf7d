"""Measure every (layer, dim) of a model from one encoding pass, and compare two such grids."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.devices import BATCH_TOKENS_HELP
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.metrics.measures import parse_measures
from starbucks_retrieval.models.config import SettingFlags

if TYPE_CHECKING:
    from starbucks_retrieval.grid.all_dims import search_all_dims
    from starbucks_retrieval.grid.api import GridMeasurement, grid
    from starbucks_retrieval.grid.tables import deltas

__all__ = ["EncodingArguments", "GridArguments", "GridMeasurement", "deltas", "grid", "search_all_dims"]
__getattr__, __dir__ = lazy_exports(
    __name__,
    {"GridMeasurement": ".api", "deltas": ".tables", "grid": ".api", "search_all_dims": ".all_dims"},
)

# Depth of measures without a cutoff, such as AP, and the smallest default depth.
_WHOLE, _LEAST = 1000, 100


@dataclasses.dataclass
class GridArguments:
    """What is measured, and where the results go."""

    model_name_or_path: str = flag("", "model folder or hub name")
    task: Literal["retrieval", "sts"] = flag("retrieval", "sts: correlations on --data, as the stage sts has them")
    data: list[str] = flag(help="sets of scored pairs for --task sts (default: all seven)", factory=list)
    dataset_path: list[str] = flag(
        help="BEIR folder, ir: or short name with corpus, queries and judgements; several are measured one by one",
        factory=list,
    )
    split: str = flag("test", "which judgements of a BEIR folder or short name, and which queries")
    queries: str | None = flag(None, "queries, where they lie elsewhere", rare=True)
    qrels: str | None = flag(
        None, "judgements, where they lie elsewhere; queries they do not judge count for nothing", rare=True
    )
    layers: str | None = flag(None, "layers such as 2,4,6 (default: N·{1..6}/6 of the model's N)")
    dims: str | None = flag(None, "dims such as 32,128 (default: 8, 16, 32 … and the model's width)")
    measures: list[str] = flag(
        help="ir-measures' names, as for evaluate (default: nDCG@10); for sts spearman (its default) or pearson",
        factory=list,
    )
    depth: int | None = flag(
        None, "passages per query (default: the deepest cutoff of the measures, 100 at least; 1000 for those without)"
    )
    asymmetric: bool = flag(False, "queries at every layer against passages at every layer, at equal dims")
    remove_identical_ids: bool = flag(False, "drop results that bear their query's own id (ArguAna, Quora)")
    measure_cost: bool = flag(
        False, "time encoding at each layer and exact search at each dim on some of the texts, for choose and report"
    )
    keep_values: bool = flag(True, "keep the figure of each query, which tests of significance need", rare=True)
    output: str | None = flag(None, "result file to write (default: grid.json; deltas are written only if it is given)")
    label: str | None = flag(None, "how tables call the model (default: the last part of its name)")
    work_dir: str | None = flag(None, "where the embeddings go (default: a folder beside --output)", rare=True)
    keep_work_dir: bool | None = flag(
        None, "keep the embeddings, of which another grid can be made (default: only in a --work_dir)", rare=True
    )
    overwrite: bool = flag(False, "replace embeddings of another job in the work folder")
    max_memory: str = flag("2GB", "memory for vectors and result lists; never changes results", rare=True)

    @property
    def target(self) -> Path:
        """The result file."""
        return Path(self.output or "grid.json").expanduser()

    @property
    def work_folder(self) -> Path:
        """Where the embeddings are kept while they are needed."""
        if self.work_dir:
            return Path(self.work_dir).expanduser()
        return self.target.with_name(self.target.name.removesuffix(".json") + ".work")

    @property
    def keeps_work(self) -> bool:
        """Whether the embeddings stay."""
        return bool(self.work_dir) if self.keep_work_dir is None else self.keep_work_dir

    @property
    def query_split(self) -> str | None:
        """The split that queries are read from: none where they, or judgements to choose among them, lie elsewhere."""
        return None if self.queries or self.qrels else self.split

    @property
    def measure_text(self) -> str:
        """The measures in one line."""
        return " ".join(self.measures) or ("nDCG@10" if self.task == "retrieval" else "spearman")

    def kept(self) -> int:
        """Passages per query. Raises UserError for a depth that a measure looks beyond, or below 1."""
        cutoffs = [measure.params.get("cutoff", _WHOLE) for measure in parse_measures(self.measure_text)]
        deepest = max(cutoffs)
        if self.depth is None:
            return max(_LEAST, deepest)
        if self.depth < 1:
            raise UserError(f"--depth {self.depth} is below 1", "ask for at least one passage per query")
        named = [
            measure for measure in parse_measures(self.measure_text) if measure.params.get("cutoff", 1) > self.depth
        ]
        if named:
            raise UserError(f"{named[0]} looks beyond --depth {self.depth}", f"raise it to {deepest}, or leave it out")
        return self.depth


@dataclasses.dataclass
class EncodingArguments(SettingFlags):
    """Encoding, as the flags of encode."""

    dtype: Literal["fp32", "auto", "bf16", "fp16"] = flag(
        "fp32", "arithmetic; auto: bf16 where this device is fast in it, else fp32"
    )
    store_dtype: Literal["float32", "float16"] = flag(
        "float32", "numbers on disk; float16 takes half the space and rounds before cutting", rare=True
    )
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    attn_implementation: str | None = flag(None, "transformers' attention, or unpadded", rare=True)
    max_tokens_per_batch: int | None = flag(None, BATCH_TOKENS_HELP, rare=True)
    num_processes: int = flag(1, "processes of this machine that share the encoding, one a GPU")
    shard_size: int = flag(16384, "rows of a shard, the unit of resuming", rare=True)
