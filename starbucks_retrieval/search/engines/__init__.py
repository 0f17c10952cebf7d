"""Search engines by name: the registry behind `--engine`. Reading names and help imports neither FAISS nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.registry import Registry

if TYPE_CHECKING:
    from starbucks_retrieval.search.engines.base import CandidateEngine, RetrieverEngine

# The class behind a name is a CandidateEngine or a RetrieverEngine.
ENGINES: Registry[type[CandidateEngine] | type[RetrieverEngine]] = Registry(
    "engines",
    "search engine",
    {
        "faiss": ("starbucks_retrieval.search.engines.faiss:FaissEngine", "exact, on CPUs or, with faiss-gpu, a GPU"),
        "torch": ("starbucks_retrieval.search.engines.torch:TorchEngine", "exact, matrix products on a CPU or a GPU"),
        "ray": ("starbucks_retrieval.search.engines.ray:RayEngine", "exact, by workers on one or more machines"),
        "milvus": ("starbucks_retrieval.search.engines.milvus:MilvusEngine", "in a Milvus collection"),
    },
)
