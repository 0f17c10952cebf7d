"""A FAISS index of vectors, made from a factory string, with FAISS's errors turned into words for users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.indexes import parameters

_EXAMPLES = "examples: Flat, SQ8, HNSW32, IVF4096,PQ32, OPQ32,IVF4096,PQ32x4fs, Binary"
_MOST_TRAINED = 65536  # what FAISS's product quantizers use at most
# FAISS divides by some of these numbers, or runs off its arrays, before it checks them.
_DEADLY = re.compile(r"(?<![\d.])0+(?!\d)|HNSW1(?!\d)")
# These take no second block of passages.
_WHOLE_ONLY = re.compile(r"NSG|NNDescent")


class VectorIndex:
    """A FAISS index by inner product. `least` passages are needed to train it, `wanted` suffice for a good one.

    `learns`: whether training does anything; `clusters`: the most that one part of it learns.
    """

    def __init__(self, index: Any, factory: str) -> None:
        self.factory = factory
        self.built_with: dict[str, float] = {}
        self.calibration: list[float] = []
        self._index = index

    @classmethod
    def make(cls, factory: str, dim: int, seed: int, values: Mapping[str, float]) -> VectorIndex:
        """An empty index. Raises UserError, in FAISS's words, for a factory string that it refuses."""
        faiss = import_faiss()
        if (found := _DEADLY.search(factory)) is not None:
            raise UserError(f"--index {factory}: {found[0]} is too small a number there", _EXAMPLES)
        if _WHOLE_ONLY.search(factory):
            raise UserError(
                f"--index {factory}: FAISS cannot add passages to such an index block by block", "take HNSW32"
            )
        with faiss_speaks(f"FAISS refuses --index {factory!r} at {dim} dimensions", _EXAMPLES):
            index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(f"--index {factory} does not search by inner product", _EXAMPLES)
        made = cls(index, factory)
        made.built_with = parameters.set_construction(index, values, factory)
        made._demand(seed)
        return made

    @classmethod
    def load(cls, path: Path, factory: str, calibration: list[float]) -> VectorIndex:
        """Map an index from its file where FAISS can, read it where it cannot (fast-scan codes)."""
        faiss = import_faiss()
        with faiss_speaks(f"FAISS cannot read {path}", "build the index again with --overwrite"):
            return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC), factory)

    @property
    def count(self) -> int:
        return self._index.ntotal

    @property
    def dim(self) -> int:
        return self._index.d

    @property
    def search_parameters(self) -> dict[str, float]:
        """What `search` can be tuned by, with the values FAISS starts from."""
        return parameters.search_parameters(self._index)

    def train(self, sample: np.ndarray) -> None:
        """Learn from vectors [passages, dim] float32, then rehearse all that follows with a few of them."""
        hint = "take another factory, or a larger --train_sample"
        with faiss_speaks(f"FAISS cannot train {self.factory} on {len(sample)} passages", hint):
            self._index.train(sample)
        with faiss_speaks(f"FAISS cannot build, keep and search {self.factory}", _EXAMPLES):
            faiss = import_faiss()
            copy = faiss.deserialize_index(faiss.serialize_index(self._index))
            copy.add(sample[:64])
            faiss.deserialize_index(faiss.serialize_index(copy)).search(sample[:1], 1)

    def add(self, block: np.ndarray) -> None:
        """Add vectors [passages, dim] float32: the next rows."""
        with faiss_speaks(f"FAISS cannot add to {self.factory}", "take another factory, or free memory"):
            self._index.add(block)

    def save(self, path: Path) -> None:
        with faiss_speaks(f"{path.parent} cannot be written", "free space there, then run the same command again"):
            import_faiss().write_index(self._index, str(path))

    def search(self, queries: np.ndarray, k: int, values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Rows and FAISS's scores, each [queries, k]; -1 stands for a row that is not there."""
        with faiss_speaks(f"FAISS cannot search {self.factory}", "build the index again with --overwrite"):
            scores, rows = self._index.search(queries, k, params=parameters.search_object(self._index, values))
        return rows, scores

    def _demand(self, seed: int) -> None:
        """Find out what training takes; hand the seed to every clustering, and say what is too few in FAISS's place."""
        faiss = import_faiss()
        lists, codes, outputs, self.learns = 0, 0, 1, False
        for layer in parameters.layers(self._index):
            if isinstance(layer, faiss.IndexPreTransform):
                for place in range(layer.chain.size()):
                    transform = faiss.downcast_VectorTransform(layer.chain.at(place))
                    self.learns |= not transform.is_trained
                    if isinstance(transform, faiss.OPQMatrix):
                        self._opq = faiss.ProductQuantizer(transform.d_out, transform.M, 8)  # it makes the same itself
                        transform.pq = self._opq
                        _tame(self._opq.cp, seed)
                        codes = max(codes, self._opq.ksub)
                    elif isinstance(transform, faiss.PCAMatrix):
                        outputs = max(outputs, transform.d_out)
            elif not isinstance(layer, faiss.IndexHNSW | faiss.IndexRefine):
                self.learns |= not layer.is_trained
            if hasattr(layer, "nlist"):
                lists = max(lists, layer.nlist)
            if hasattr(layer, "pq"):
                codes = max(codes, layer.pq.ksub)
            if hasattr(layer, "aq"):
                bits = faiss.vector_to_array(faiss.downcast_AdditiveQuantizer(layer.aq).nbits)
                codes = max(codes, 1 << int(bits.max()))
            if hasattr(layer, "do_polysemous_training"):
                layer.do_polysemous_training = False  # half a minute for a kind of search that is not offered here
            for holder in (layer, getattr(layer, "pq", None), getattr(layer, "rq", None)):
                clustering = getattr(holder, "cp", None)
                if clustering is not None:
                    _tame(clustering, seed)
        self.clusters = max(lists, codes)
        self.least = max(self.clusters, outputs)
        self.wanted = max(64 * lists, _MOST_TRAINED) if self.learns else 1


def _tame(clustering: Any, seed: int) -> None:
    clustering.seed = seed % 2**31
    clustering.min_points_per_centroid = 1


@contextmanager
def faiss_speaks(what: str, hint: str) -> Iterator[None]:
    """Turn FAISS's errors into UserErrors: `what`, then its own words without the places in its source."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        words = re.sub(r"^Error in .*? at \S+:\d+: ", "", words)
        raise UserError(f"{what}: {words.removeprefix('C++ exception ')}", hint) from error
