"""The flags of `search`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError


@dataclass
class SearchArguments:
    """Search"""

    passage_reps: str | None = flag(None, "passages: what encode wrote, or a quoted pattern of parts")
    query_reps: str | None = flag(None, "queries: what encode --encode_is_query wrote")
    size: str | None = flag(None, "layer:dim, where several sizes are stored")
    layer: int | None = flag(None, "the same in two flags")
    dim: int | None = flag(None, "the same in two flags")
    sizes: str | None = flag(None, "several sizes, or all: a run for each in the folder --save_ranking_to")
    depth: int | None = flag(None, "passages per query in the run (default: 1000)")
    save_ranking_to: str | None = flag(None, "the run file; .gz compresses it")
    save_format: Literal["trec", "msmarco", "tevatron"] = flag("trec", "columns of the run")
    batch_size: int = flag(1024, "queries per pass over the passages; -1: as many as fit in memory")
    max_memory: str = flag("2GB", "memory for vectors and result lists; never changes results")
    threads: int | None = flag(None, "CPU threads")
    override: bool = flag(False, "let passages stand for queries, or queries for passages: for symmetric tasks")

    engine: Literal["auto", "faiss", "torch", "ray", "milvus"] = flag(
        "auto", "what looks at the passages; faiss, torch and ray find the same, bit for bit; auto: faiss or torch"
    )
    device: str | None = flag(
        None, "cpu, cuda … (torch: default a GPU where there is one; faiss: cuda where faiss-gpu is)"
    )
    dtype: Literal["auto", "fp32", "bf16"] = flag("auto", "arithmetic of --engine torch; never changes results")
    ray_workers: int | None = flag(None, "--engine ray: workers that share the passages (default: one a machine)")
    ray_address: str | None = flag(
        None, "--engine ray: a running cluster (default: that of the environment, or a local one)"
    )

    def __post_init__(self) -> None:
        if self.sizes and (self.size or self.layer is not None or self.dim is not None):
            raise UserError("--sizes and --size, --layer, --dim contradict each other", "give one of them")


@dataclass
class FunnelArguments:
    """Funnels: shortlist at one size, look again at the next"""

    funnel: str | None = flag(
        None, "2:32@1000,6:128@100,12:768: how many passages each size keeps; auto: the cheapest that keeps --target"
    )
    target: float = flag(0.99, "share of the full size's nDCG@10 that --funnel auto keeps")
    qrels: str | None = flag(None, "judgements of the queries, for --funnel auto")


@dataclass
class IndexArguments:
    """Approximate search"""

    index: str | None = flag(
        None, "flat: exact; or a FAISS factory (HNSW32; IVF4096,PQ32; SQ8: int8 …), or Binary: one bit a dimension"
    )
    save_index: str | None = flag(None, "folder that keeps the index; built there unless the same one is there already")
    load_index: str | None = flag(None, "folder of an index that --save_index wrote")
    index_build: str | None = flag(None, "numbers for building: efConstruction=200,niter=20")
    index_search: str | None = flag(None, "numbers for searching: nprobe=16, efSearch=64 (Milvus: ef=64)")
    train_sample: int | None = flag(None, "passages the index is trained on (default: what the factory needs)")
    rescore: int = flag(
        4,
        "best rows x depth that are scored again, exactly, by the stored vectors; 0: the index's own scores. "
        "10 or more suits Binary and short codes",
    )
    skip_index_checksum: bool = flag(False, "do not read the whole index before searching")
    measure_recall: int | None = flag(None, "compare with exact search on so many queries and print recall")
    overwrite: bool = flag(False, "replace another index in that folder")

    def __post_init__(self) -> None:
        if self.index and self.load_index:
            raise UserError("--index builds an index and --load_index opens one", "give one of the two")

    @property
    def approximate(self) -> bool:
        """Whether an index is asked for."""
        return bool(self.load_index) or (self.index is not None and self.index.lower() != "flat")


@dataclass
class MilvusArguments:
    """Milvus"""

    uri: str | None = flag(None, "--engine milvus: a file such as milvus.db (Milvus Lite), or http://host:19530")
    collection: str = flag("starbucks", "its collection; loaded from --passage_reps, going on where a load stopped")
    milvus_index: str = flag("FLAT", "index of its vector fields, where the server has it: FLAT, HNSW, IVF_FLAT …")
    milvus_token: str | None = flag(None, "user:password (better: in a configuration file)")


@dataclass
class TypedQueryArguments:
    """Typed queries"""

    query: str | None = flag(None, "answer this query")
    interactive: bool = flag(False, "answer each line typed, until an empty one; :help lists commands")
    model_name_or_path: str | None = flag(None, "the model that encoded the passages")
    corpus_path: str | None = flag(None, "the corpus that was encoded, to show titles and texts")
    hits: int = flag(10, "passages shown")
