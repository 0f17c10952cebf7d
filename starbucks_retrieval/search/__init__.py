"""Finding the nearest passages: exact search over stores, runs for evaluation, answers to queries as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import as_flag_values, flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.search.engines import ENGINES
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from starbucks_retrieval.search.api import SearchSummary, search
    from starbucks_retrieval.search.arrays import search_vectors
    from starbucks_retrieval.search.engines.exact import exact_search
    from starbucks_retrieval.search.hits import Hit
    from starbucks_retrieval.search.searcher import Searcher

__all__ = [
    "FunnelArguments",
    "Hit",
    "IndexArguments",
    "MilvusArguments",
    "SearchArguments",
    "SearchSummary",
    "Searcher",
    "exact_search",
    "search",
    "search_vectors",
]


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes of an amount of memory. Raises UserError for text that is none.

    Example:
        >>> parse_bytes("4GB"), parse_bytes("512MiB"), parse_bytes(1000)
        (4000000000, 536870912, 1000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(text).upper())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise UserError(f"cannot read {text!r} as an amount of memory", "write a number with a unit, for example 4GB")
    return max(1, int(float(match[1]) * _UNITS[match[2]]))


@dataclass
class SearchArguments:
    """Search"""

    passage_reps: str | None = flag(None, "passages: the output of encode, or a quoted pattern of parts")
    query_reps: str | None = flag(None, "queries: the output of encode --encode_is_query")
    size: str | None = flag(None, "layer:dim, where several sizes are stored")
    layer: int | None = flag(None, "layer of the size, with --dim instead of --size", rare=True)
    dim: int | None = flag(None, "dim of the size, with --layer instead of --size", rare=True)
    query_size: str | None = flag(
        None,
        "layer:dim of the queries, where they have another layer than the passages: for a model that starbucks fit made",
        rare=True,
    )
    sizes: str | None = flag(None, "several sizes, or all: one run for each in the folder --save_ranking_to")
    depth: int | None = flag(None, "passages per query in the run (default: 1000)")
    save_ranking_to: str | None = flag(None, "the run file; .gz compresses it")
    save_format: Literal["trec", "msmarco", "tevatron"] = flag("trec", "columns of the run", rare=True)
    batch_size: int = flag(1024, "queries per pass over the passages; -1: as many as fit in memory", rare=True)
    max_memory: str = flag("2GB", "memory for vectors and result lists; never changes results")
    threads: int | None = flag(None, "CPU threads", rare=True)
    skip_checksum: bool = flag(
        False,
        "do not compare vectors, ids and index with their checksums: damage may go unnoticed; the run's tag says so",
        rare=True,
    )
    override: bool = flag(False, "accept passages as queries and queries as passages: for symmetric tasks", rare=True)

    engine: str = flag(
        "auto",
        "faiss, torch and ray find the same, bit for bit; auto: faiss or torch. " + ENGINES.help_text(),
        choices=lambda: ("auto", *ENGINES),
    )
    device: str | None = flag(
        None, "cpu, cuda … (torch: default a GPU where there is one; faiss: cuda where faiss-gpu is)"
    )
    dtype: Literal["auto", "fp32", "bf16"] = flag("auto", "arithmetic of --engine torch; never changes results")
    ray_workers: int | None = flag(None, "--engine ray: workers for the passages (default: one a machine)", rare=True)
    ray_address: str | None = flag(
        None, "--engine ray: a running cluster (default: that of the environment, or a local one)", rare=True
    )

    def __post_init__(self) -> None:
        as_flag_values(self)
        if self.sizes and (self.size or self.layer is not None or self.dim is not None):
            raise UserError("--sizes and --size, --layer, --dim contradict each other", "give one of them")

    @property
    def memory_bytes(self) -> int:
        """The bytes of --max_memory. Raises UserError for text that is no amount of memory."""
        return parse_bytes(self.max_memory)

    @property
    def named_query_size(self) -> Size | None:
        """The size of --query_size; None if it is not given. Raises UserError for text that is no size."""
        return Size.parse(self.query_size) if self.query_size else None

    @property
    def named_size(self) -> Size | None:
        """The size of --size, or of --layer and --dim; None if none is given. Raises UserError for half a size."""
        if (self.layer is None) != (self.dim is None):
            raise UserError("--layer and --dim go together", "give both, or --size layer:dim")
        size = Size.parse(self.size) if self.size else None
        pair = Size(self.layer, self.dim) if self.layer is not None and self.dim is not None else None
        if size and pair and size != pair:
            raise UserError(f"--size {size} contradicts --layer and --dim {pair}", "give one of the two")
        return size or pair


@dataclass
class FunnelArguments:
    """Funnels: shortlist at one size, rescore at the next"""

    funnel: str | None = flag(
        None,
        "2:32@1000,6:128@100,12:768: how many passages each size keeps; the first may be quantised: 12:128/int4@200 (int8, "
        "int4, int2, int1, binary), or index; auto: the fastest here that keeps --target, by indexes that exist too",
    )
    target: float = flag(0.99, "share of the full size's nDCG@10 that --funnel auto keeps")
    qrels: str | None = flag(
        None, "judgements of the queries, for --funnel auto; without, it keeps that share of the exact ten best"
    )

    def __post_init__(self) -> None:
        as_flag_values(self)
        self.funnel = None if self.funnel is None else str(self.funnel)


@dataclass
class IndexArguments:
    """Approximate search"""

    index: str | None = flag(
        None, "flat: exact; or a FAISS factory (HNSW32; IVF4096,PQ32; SQ8: int8 …), or Binary: one bit a dimension"
    )
    save_index: str | None = flag(None, "folder that keeps the index; built unless the same one exists there")
    load_index: str | None = flag(None, "folder of an index that --save_index wrote")
    index_build: str | None = flag(None, "parameters of building: efConstruction=200,niter=20", rare=True)
    index_search: str | None = flag(None, "parameters of searching: nprobe=16, efSearch=64 (Milvus: ef=64)", rare=True)
    train_sample: int | None = flag(None, "passages to train the index on (default: what the factory needs)", rare=True)
    rescore: int = flag(
        4,
        "depth x this many rows are scored again, exactly, by the stored vectors; 0: the scores of the index. "
        "10 or more suits Binary and short codes",
        rare=True,
    )
    skip_index_checksum: bool = flag(False, "do not read the whole index before searching", rare=True)
    measure_recall: int | None = flag(None, "compare this many queries with exact search and print recall")
    overwrite: bool = flag(False, "replace another index in that folder")

    def __post_init__(self) -> None:
        if self.index and self.load_index:
            raise UserError("--index builds an index and --load_index opens one", "give one of the two")
        if self.rescore < 0:
            raise UserError(
                f"--rescore {self.rescore} is below 0", "give a factor such as 4, or 0 for the scores of FAISS"
            )
        if self.measure_recall is not None and self.measure_recall < 1:
            raise UserError(
                f"--measure_recall {self.measure_recall} is below 1", "give a number of queries, such as 100"
            )

    @property
    def approximate(self) -> bool:
        """Whether an approximate index is used."""
        return bool(self.load_index) or (self.index is not None and self.index.lower() != "flat")


@dataclass
class MilvusArguments:
    """Milvus"""

    uri: str | None = flag(None, "--engine milvus: a file such as milvus.db (Milvus Lite), or http://host:19530")
    collection: str = flag("starbucks", "its collection; loaded from --passage_reps, an interrupted load resumes")
    milvus_index: str = flag("FLAT", "--engine milvus: index of its vector fields: FLAT, HNSW, IVF_FLAT …", rare=True)
    milvus_token: str | None = flag(None, "--engine milvus: user:password (better: in a configuration file)", rare=True)


@dataclass
class QueryArguments:
    """Queries as text"""

    query: str | None = flag(None, "answer this query")
    interactive: bool = flag(False, "answer each line of standard input, until an empty one; :help lists commands")
    model_name_or_path: str | None = flag(None, "the model that encoded the passages")
    corpus_path: str | None = flag(None, "the corpus that was encoded, to show titles and texts")
    hits: int = flag(10, "passages shown")


@dataclass
class PlanArguments:
    """Planning"""

    plan: bool = flag(
        False,
        "search nothing: print bytes and estimated milliseconds per query of exact search and funnels, at --sizes and "
        "--depth; approximate indexes are not estimated",
    )
    passages: float | None = flag(None, "--plan: how many, such as 1e9 (default: those of --passage_reps)")
    plan_batch: int | None = flag(None, "--plan: queries at once (default: shown for 1 and for 64)", rare=True)
    store_dtype: Literal["float16", "float32"] = flag("float16", "--plan: type of the stored vectors", rare=True)

    def __post_init__(self) -> None:
        if self.passages is not None and not 1 <= self.passages < math.inf:
            raise UserError(f"--passages {self.passages:g} is not a number of passages", "give 1 or more, such as 1e9")
        if self.plan_batch is not None and self.plan_batch < 1:
            raise UserError(
                f"--plan_batch {self.plan_batch} is below 1", "give the queries searched at once, such as 64"
            )

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of queries at once that are shown."""
        return (1, 64) if self.plan_batch is None else (self.plan_batch,)


def parse_parameters(text: str | None) -> dict[str, float]:
    """Read `nprobe=16,efSearch=64`; whole numbers become ints. Raises UserError for anything else.

    Example:
        >>> parse_parameters("nprobe=16, k_factor=1.5")
        {'nprobe': 16, 'k_factor': 1.5}
    """
    values: dict[str, float] = {}
    for part in (text or "").split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not (name and equals and abs(value) < 2**31) or name in values:
            raise UserError(f"cannot read {part.strip()!r} as a parameter of an index", "write nprobe=16,efSearch=64")
        values[name] = int(value) if value == int(value) else value
    return values


def check_parameters(
    values: Mapping[str, float] | None, fitting: Mapping[str, float], factory: str, what: str
) -> dict[str, float]:
    """Return `fitting` updated by `values`, as a new dict.

    Args:
        values: What the user gives, by name; None: nothing.
        fitting: The parameters that the index takes, with their defaults. Where the default is an int, only whole
            numbers are accepted.
        factory: The factory string, for the message.
        what: What they are for, for the message: `building` or `search`.

    Raises:
        UserError: A name is not in `fitting`, or a number is below 1 (`max_codes`: below 0), at least 2^31, or not
            whole where it must be.

    Example:
        >>> check_parameters({"nprobe": 16}, {"nprobe": 1, "max_codes": 0}, "IVF4096,Flat", "search")
        {'nprobe': 16, 'max_codes': 0}
    """
    for name, value in (values or {}).items():
        if name not in fitting:
            listed = ", ".join(f"{known} ({now:g})" for known, now in fitting.items())
            raise UserError(
                f"{factory} takes no parameter {name} for {what}",
                f"it takes {listed}" if listed else "it takes none: omit them",
            )
        least = 0 if name == "max_codes" else 1  # 0 there: no limit
        whole = isinstance(fitting[name], int)
        if not least <= value < 2**31 or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise UserError(f"{name}={value:g} is out of range", f"give {kind} of {least} or more")
    return {**fitting, **(values or {})}


__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Hit": ".hits",
        "SearchSummary": ".api",
        "Searcher": ".searcher",
        "exact_search": ".engines.exact",
        "search": ".api",
        "search_vectors": ".arrays",
    },
)
