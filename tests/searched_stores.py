"""Stores of queries and passages at two sizes, an index, and searches of them that must notice damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from small_stores import write_store

from starbucks_retrieval.search import FunnelArguments, IndexArguments, SearchArguments, search
from starbucks_retrieval.search.indexes import build_index
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, size_folder

SMALL, LARGE = Size(2, 8), Size(6, 32)
_OPTIONS: dict[str, tuple[dict, dict, dict]] = {
    "exact": ({"size": str(LARGE)}, {}, {}),
    "torch": ({"size": str(LARGE), "engine": "torch", "device": "cpu"}, {}, {}),
    "cut": ({"size": "6:16"}, {}, {}),
    "funnel": ({}, {"funnel": f"{SMALL}@40,{LARGE}"}, {}),
    "codes": ({}, {"funnel": f"{LARGE}/int8@40,{LARGE}"}, {}),
    "index": ({"size": str(LARGE)}, {}, {"load_index": "index"}),
}
SEARCHES = tuple(_OPTIONS)


def write_searched(folder: Path, passages: int, store_dtype: str = "float16") -> list[Path]:
    """Write passages, nine queries and an index into a folder. Returns all files of vectors, ids and the index."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((passages, LARGE.dim)).astype(np.float32)
    queries = vectors[:9] + 0.1 * rng.standard_normal((9, LARGE.dim)).astype(np.float32)
    for size in (SMALL, LARGE):
        spec: dict = {"size": size, "fingerprint": f"layer {size.layer}", "store_dtype": store_dtype}
        ids = [f"d{row}" for row in range(passages)]
        write_store(folder / "p" / size_folder(size), ids, vectors[:, : size.dim], shard_size=500, **spec)
        ids, spec = [f"q{row}" for row in range(9)], spec | {"kind": "queries", "data_digest": "q"}
        write_store(folder / "q" / size_folder(size), ids, queries[:, : size.dim], **spec)
    build_index(EmbeddingStore.open(folder / "p" / size_folder(LARGE)), "HNSW8", folder / "index")
    return sorted((*folder.rglob("*.npy"), folder / "index" / "index.faiss"))


def searching(folder: Path, name: str, **more: object) -> Callable[[], bytes]:
    """Return a function that runs one of SEARCHES in such a folder and returns the bytes of its run."""
    flags, funnel, index = _OPTIONS[name]
    index = index and {"load_index": str(folder / "index")}
    arguments = SearchArguments(
        **{"passage_reps": str(folder / "p"), "query_reps": str(folder / "q"), "depth": 10, **flags, **more},
        save_ranking_to=str(folder / "run.trec"),
    )

    def run() -> bytes:
        search(arguments, FunnelArguments(**funnel), IndexArguments(**index))
        return (folder / "run.trec").read_bytes()

    return run
