"""The kinds of index: a FAISS index made from a factory string, and one bit per dimension."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.faiss import import_faiss
from starbucks_retrieval.search.indexes import parameters

BINARY = "Binary"
_EXAMPLES = "examples: Flat, SQ8, HNSW32, IVF4096,PQ32, OPQ32,IVF4096,PQ32x4fs, Binary"
_LARGEST_SAMPLE = 65536  # passages that FAISS's product quantizers use at most
# FAISS divides by these numbers, or reads beyond its arrays, before it checks them.
_TOO_SMALL = re.compile(r"(?<![\d.])0+(?!\d)|HNSW1(?!\d)")
# FAISS cannot add a second block of passages to these.
_NOT_INCREMENTAL = re.compile(r"NSG|NNDescent")


class VectorIndex:
    """A FAISS index by inner product.

    `trainable`: whether training changes it; `smallest_sample`: passages needed to train it; `good_sample`: passages that
    suffice; `clusters`: the most that one part of it learns.
    """

    def __init__(self, index: Any, factory: str) -> None:
        self.factory = factory
        self.built_with: dict[str, float] = {}
        self.calibration: list[float] = []
        self._index = index

    @classmethod
    def make(cls, factory: str, dim: int, seed: int, values: Mapping[str, float]) -> VectorIndex:
        """Return an empty index. Raises UserError with FAISS's message for a factory string that it refuses."""
        faiss = import_faiss()
        if (found := _TOO_SMALL.search(factory)) is not None:
            raise UserError(f"--index {factory}: {found[0]} is too small", _EXAMPLES)
        if _NOT_INCREMENTAL.search(factory):
            raise UserError(
                f"--index {factory}: FAISS cannot add passages to such an index block by block", "use HNSW32"
            )
        with faiss_errors(f"FAISS refuses --index {factory!r} at {dim} dimensions", _EXAMPLES):
            index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(f"--index {factory} does not search by inner product", _EXAMPLES)
        made = cls(index, factory)
        made.built_with = parameters.set_construction(index, values, factory)
        made._prepare_training(seed)
        return made

    @classmethod
    def load(cls, path: Path, factory: str, calibration: list[float]) -> VectorIndex:
        """Memory-map an index from its file; fast-scan codes are read instead."""
        faiss = import_faiss()
        with faiss_errors(f"FAISS cannot read {path}", "build the index again with --overwrite"):
            return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC), factory)

    @property
    def count(self) -> int:
        return self._index.ntotal

    @property
    def dim(self) -> int:
        return self._index.d

    @property
    def search_parameters(self) -> dict[str, float]:
        """The parameters of `search`, with the defaults of FAISS."""
        return parameters.search_parameters(self._index)

    def train(self, sample: np.ndarray) -> None:
        """Train on vectors [passages, dim] float32, then try to add, save and search a few of them."""
        hint = "use another factory, or a larger --train_sample"
        with faiss_errors(f"FAISS cannot train {self.factory} on {len(sample)} passages", hint):
            self._index.train(sample)
        with faiss_errors(f"FAISS cannot build, keep and search {self.factory}", _EXAMPLES):
            faiss = import_faiss()
            copy = faiss.deserialize_index(faiss.serialize_index(self._index))
            copy.add(sample[:64])
            faiss.deserialize_index(faiss.serialize_index(copy)).search(sample[:1], 1)

    def add(self, block: np.ndarray) -> None:
        """Add vectors [passages, dim] float32: the next rows."""
        with faiss_errors(f"FAISS cannot add to {self.factory}", "use another factory, or free memory"):
            self._index.add(block)

    def save(self, path: Path) -> None:
        with faiss_errors(f"{path.parent} cannot be written", "free space there, then run the same command again"):
            import_faiss().write_index(self._index, str(path))

    def search(self, queries: np.ndarray, k: int, values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and FAISS's scores, each [queries, k]; a row of -1 stands for none."""
        with faiss_errors(f"FAISS cannot search {self.factory}", "build the index again with --overwrite"):
            scores, rows = self._index.search(queries, k, params=parameters.search_object(self._index, values))
        return rows, scores

    def _prepare_training(self, seed: int) -> None:
        """Find out how many passages training needs, and pass the seed to every clustering."""
        faiss = import_faiss()
        lists, codes, outputs, self.trainable = 0, 0, 1, False
        for layer in parameters.layers(self._index):
            if isinstance(layer, faiss.IndexPreTransform):
                for position in range(layer.chain.size()):
                    transform = faiss.downcast_VectorTransform(layer.chain.at(position))
                    self.trainable |= not transform.is_trained
                    if isinstance(transform, faiss.OPQMatrix):
                        self._opq = faiss.ProductQuantizer(
                            transform.d_out, transform.M, 8
                        )  # OPQ would make the same one
                        transform.pq = self._opq
                        _seed_clustering(self._opq.cp, seed)
                        codes = max(codes, self._opq.ksub)
                    elif isinstance(transform, faiss.PCAMatrix):
                        outputs = max(outputs, transform.d_out)
            elif not isinstance(layer, faiss.IndexHNSW | faiss.IndexRefine):
                self.trainable |= not layer.is_trained
            if hasattr(layer, "nlist"):
                lists = max(lists, layer.nlist)
            if hasattr(layer, "pq"):
                codes = max(codes, layer.pq.ksub)
            if hasattr(layer, "aq"):
                bits = faiss.vector_to_array(faiss.downcast_AdditiveQuantizer(layer.aq).nbits)
                codes = max(codes, 1 << int(bits.max()))
            if hasattr(layer, "do_polysemous_training"):
                layer.do_polysemous_training = (
                    False  # half a minute for a kind of search that this package does not offer
                )
            for holder in (layer, getattr(layer, "pq", None), getattr(layer, "rq", None)):
                clustering = getattr(holder, "cp", None)
                if clustering is not None:
                    _seed_clustering(clustering, seed)
        self.clusters = max(lists, codes)
        self.smallest_sample = max(self.clusters, outputs)
        self.good_sample = max(64 * lists, _LARGEST_SAMPLE) if self.trainable else 1


class BitIndex:
    """One bit for each dimension of a vector: whether it is above the median of the passages it was trained on.

    Queries are compared with the same medians: among vectors of one length inner products order as distances do, and
    distances do not change when all vectors are shifted. With thresholds of zero, embeddings that share a direction
    would share most of their bits. A score is the inner product of the signs: dim - 2 × Hamming distance.
    """

    factory = BINARY
    trainable, clusters, smallest_sample, good_sample = True, 0, 1, 65536

    def __init__(self, index: Any, dim: int, calibration: list[float]) -> None:
        self.dim = dim
        self.calibration = calibration
        self.built_with: dict[str, float] = {}
        self._index = index

    @classmethod
    def make(cls, dim: int, values: Mapping[str, float]) -> BitIndex:
        """Return an empty index. Raises UserError for any parameter: it takes none."""
        parameters.check_parameters(values, {}, BINARY, "building")
        return cls(import_faiss().IndexBinaryFlat(-(-dim // 8) * 8), dim, [])

    @classmethod
    def load(cls, path: Path, factory: str, calibration: list[float]) -> BitIndex:
        """Memory-map an index from its file."""
        faiss = import_faiss()
        with faiss_errors(f"FAISS cannot read {path}", "build the index again with --overwrite"):
            return cls(faiss.read_index_binary(str(path), faiss.IO_FLAG_MMAP_IFC), len(calibration), calibration)

    @property
    def count(self) -> int:
        return self._index.ntotal

    @property
    def search_parameters(self) -> dict[str, float]:
        return {}

    def train(self, sample: np.ndarray) -> None:
        """Store the medians of vectors [passages, dim]."""
        self.calibration = np.median(sample, axis=0).astype(np.float32).tolist()

    def add(self, block: np.ndarray) -> None:
        """Add vectors [passages, dim]: the next rows."""
        self._index.add(self._packed(block))

    def save(self, path: Path) -> None:
        with faiss_errors(f"{path.parent} cannot be written", "free space there, then run the same command again"):
            import_faiss().write_index_binary(self._index, str(path))

    def search(self, queries: np.ndarray, k: int, values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and scores, each [queries, k]; a row of -1 stands for none."""
        distances, rows = self._index.search(self._packed(queries), k)
        return rows, (self.dim - 2 * distances).astype(np.float32)

    def _packed(self, vectors: np.ndarray) -> np.ndarray:
        return np.packbits(vectors > np.array(self.calibration, np.float32), axis=1)


def make_index(factory: str, dim: int, seed: int, values: Mapping[str, float]) -> VectorIndex | BitIndex:
    """Return an empty, untrained index of the kind that a factory string names.

    Args:
        factory: A FAISS factory string such as `IVF4096,PQ32`, or "Binary".
        dim: Dimensions of the vectors.
        seed: Seeds clustering; not used by "Binary".
        values: Parameters of building, such as efConstruction, by name; those not given keep FAISS's defaults.
            "Binary" takes none.

    Returns:
        A `BitIndex` for "Binary", else a `VectorIndex`.

    Raises:
        UserError: FAISS is not installed or refuses the factory string; the index does not search by inner product, or
            passages cannot be added block by block; it does not take a parameter or its value.
    """
    return BitIndex.make(dim, values) if factory == BINARY else VectorIndex.make(factory, dim, seed, values)


def _seed_clustering(clustering: Any, seed: int) -> None:
    clustering.seed = seed % 2**31
    clustering.min_points_per_centroid = 1


@contextmanager
def faiss_errors(what: str, hint: str) -> Iterator[None]:
    """Turn FAISS's errors into UserErrors: `what`, then FAISS's message without the position in its source."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        message = re.sub(r"^Error in .*? at \S+:\d+: ", "", message)
        raise UserError(f"{what}: {message.removeprefix('C++ exception ')}", hint) from error
