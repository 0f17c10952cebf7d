"""The kinds of index: a FAISS index made from a factory string, and one bit per dimension."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import check_parameters
from starbucks_retrieval.search.engines.exact import import_faiss

BINARY = "Binary"
_EXAMPLES = "examples: Flat, SQ8, HNSW32, IVF4096,PQ32, OPQ32,IVF4096,PQ32x4fs, Binary"
_LARGEST_SAMPLE = 65536  # passages that FAISS's product quantizers use at most
_WRITE_BYTES = 1 << 24  # that FAISS collects before it writes
# FAISS divides by these numbers, or reads beyond its arrays, before it checks them.
_TOO_SMALL = re.compile(r"(?<![\d.])0+(?!\d)|HNSW1(?!\d)")
# FAISS cannot add a second block of passages to these.
_NOT_INCREMENTAL = re.compile(r"NSG|NNDescent")


class VectorIndex:
    """A FAISS index by inner product.

    Attributes:
        dim: Dimensions of the vectors.
        factory: FAISS factory string, or "Binary".
        built_with: Parameters of building, by name.
        calibration: The thresholds of "Binary", one per dimension; else empty.
        trainable: Whether training changes it.
        smallest_sample: Passages needed to train it.
        good_sample: Passages that suffice.
        clusters: The most that one part of it learns.
    """

    _read, _write = "read_index", "write_index"  # functions of FAISS

    def __init__(self, index: Any, factory: str, calibration: list[float]) -> None:
        self.factory = factory
        self.dim: int = len(calibration) or index.d
        self.built_with: dict[str, float] = {}
        self.calibration = calibration
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
        made = cls(index, factory, [])
        made.built_with = _set_construction(index, values, factory)
        made._prepare_training(seed)
        return made

    @classmethod
    def load(cls, path: Path, factory: str, calibration: list[float]) -> VectorIndex:
        """Memory-map an index from its file; fast-scan codes are read instead."""
        faiss = import_faiss()
        with faiss_errors(f"FAISS cannot read {path}", "build the index again with --overwrite"):
            return cls(getattr(faiss, cls._read)(str(path), faiss.IO_FLAG_MMAP_IFC), factory, calibration)

    @property
    def count(self) -> int:
        """Number of passages."""
        return self._index.ntotal

    @property
    def search_parameters(self) -> dict[str, float]:
        """The parameters of `search`, with the defaults of FAISS."""
        fitting: dict[str, float] = {}
        quantizer = False
        for layer in _layers(self._index):
            if hasattr(layer, "k_factor"):
                fitting["k_factor"] = layer.k_factor
            if hasattr(layer, "nprobe"):
                fitting |= {"nprobe": layer.nprobe, "max_codes": layer.max_codes}
                quantizer = True
            elif hasattr(layer, "hnsw"):
                fitting["quantizer_efSearch" if quantizer else "efSearch"] = layer.hnsw.efSearch
        return fitting

    def train(self, sample: np.ndarray) -> None:
        """Train on vectors [passages, dim] float32, then try to add, save and search a few of them."""
        hint = "use another factory, or a larger --train_sample"
        with faiss_errors(f"FAISS cannot train {self.factory} on {len(sample)} passages", hint):
            threads = import_faiss().omp_get_max_threads()
            # Many clusterings of 16 centroids: threads wait for each other, on a busy machine thirty times as long.
            if 0 < self.clusters <= 16:
                import_faiss().omp_set_num_threads(1)
            try:
                self._index.train(sample)
            finally:
                import_faiss().omp_set_num_threads(threads)
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
        """Write the index to a file. Raises OSError where it cannot be written."""
        faiss = import_faiss()
        with open(path, "wb") as file:  # FAISS's own writer does not notice when the last bytes find no space
            getattr(faiss, self._write)(self._index, faiss.PyCallbackIOWriter(file.write, _WRITE_BYTES))

    def search(self, queries: np.ndarray, k: int, values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and FAISS's scores, each [queries, k]; a row of -1 stands for none.

        `queries`: [queries, dim] float32; `values`: a number for each of `search_parameters`.
        """
        with faiss_errors(f"FAISS cannot search {self.factory}", "build the index again with --overwrite"):
            scores, rows = self._index.search(queries, k, params=_search_object(self._index, values))
        return rows, scores

    def _prepare_training(self, seed: int) -> None:
        """Find out how many passages training needs, and pass the seed to every clustering."""
        faiss = import_faiss()
        lists, codes, outputs, self.trainable = 0, 0, 1, False
        for layer in _layers(self._index):
            if isinstance(layer, faiss.IndexPreTransform):
                for position in range(layer.chain.size()):
                    transform = faiss.downcast_VectorTransform(layer.chain.at(position))
                    self.trainable |= not transform.is_trained
                    if isinstance(transform, faiss.OPQMatrix):
                        # OPQ would make the same one.
                        self._opq = faiss.ProductQuantizer(transform.d_out, transform.M, 8)
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
                # It takes half a minute, for a kind of search that this package does not offer.
                layer.do_polysemous_training = False
            for holder in (layer, getattr(layer, "pq", None), getattr(layer, "rq", None)):
                clustering = getattr(holder, "cp", None)
                if clustering is not None:
                    _seed_clustering(clustering, seed)
        self.clusters = max(lists, codes)
        self.smallest_sample = max(self.clusters, outputs)
        self.good_sample = max(64 * lists, _LARGEST_SAMPLE) if self.trainable else 1


class BitIndex(VectorIndex):
    """One bit for each dimension of a vector: whether it is above the median of the passages it was trained on.

    Queries are compared with the same medians: among vectors of one length inner products order as distances do, and
    distances do not change when all vectors are shifted. With thresholds of zero, embeddings that share a direction
    would share most of their bits. A score is the inner product of the signs: dim - 2 × Hamming distance.
    """

    _read, _write = "read_index_binary", "write_index_binary"
    trainable, clusters, smallest_sample, good_sample = True, 0, 1, _LARGEST_SAMPLE

    @classmethod
    def make(cls, factory: str, dim: int, seed: int, values: Mapping[str, float]) -> BitIndex:
        """Return an empty index. Raises UserError for any parameter: it takes none."""
        check_parameters(values, {}, BINARY, "building")
        made = cls(import_faiss().IndexBinaryFlat(-(-dim // 8) * 8), factory, [])
        made.dim = dim
        return made

    @property
    def search_parameters(self) -> dict[str, float]:
        return {}

    def train(self, sample: np.ndarray) -> None:
        """Store the medians of vectors [passages, dim]."""
        self.calibration = np.median(sample, axis=0).astype(np.float32).tolist()

    def add(self, block: np.ndarray) -> None:
        """Add vectors [passages, dim]: the next rows."""
        self._index.add(self._packed(block))

    def search(self, queries: np.ndarray, k: int, values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and scores, each [queries, k]; a row of -1 stands for none."""
        distances, rows = self._index.search(self._packed(queries), k)
        return rows, (self.dim - 2 * distances).astype(np.float32)

    def _packed(self, vectors: np.ndarray) -> np.ndarray:
        return np.packbits(vectors > np.array(self.calibration, np.float32), axis=1)


def make_index(factory: str, dim: int, seed: int, values: Mapping[str, float]) -> VectorIndex:
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
    return kind_of(factory).make(factory, dim, seed, values)


def kind_of(factory: str) -> type[VectorIndex]:
    """Return the class of the index that a factory string names."""
    return BitIndex if factory == BINARY else VectorIndex


def _seed_clustering(clustering: Any, seed: int) -> None:
    clustering.seed = seed % 2**31
    clustering.min_points_per_centroid = 1


@contextmanager
def faiss_errors(what: str, hint: str) -> Iterator[None]:
    """Turn FAISS's errors inside the context into UserErrors.

    Args:
        what: The problem; FAISS's message follows, without the position in its source.
        hint: What to do.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        message = re.sub(r"^Error in .*? at \S+:\d+: ", "", message)
        raise UserError(f"{what}: {message.removeprefix('C++ exception ')}", hint) from error


def _layers(index: Any) -> Iterator[Any]:
    """Iterate over a FAISS index and the indexes inside it, each downcast to its class. The outermost must outlive them."""
    index = import_faiss().downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if inner is not None:
            yield from _layers(inner)


def _set_construction(index: Any, values: Mapping[str, float], factory: str) -> dict[str, float]:
    """Set parameters of building and return all of them. Raises UserError for one that the index does not take."""
    holders: list[tuple[Any, str]] = []
    for layer in _layers(index):
        holders += [(layer.hnsw, "efConstruction")] if hasattr(layer, "hnsw") else []
        holders += [(layer.cp, "niter")] if hasattr(layer, "nlist") else []
    checked = check_parameters(values, {name: getattr(holder, name) for holder, name in holders}, factory, "building")
    for holder, name in holders:
        setattr(holder, name, checked[name])
    return checked


def _search_object(index: Any, values: Mapping[str, float]) -> Any:
    """Return FAISS's search parameters for `values`, nested as the index is; None for an index that takes none.

    They are passed with each search, not set in the index, so that concurrent searches do not affect each other.
    """
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = _search_object(index.index, values)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _search_object(index.base_index, values)
        return faiss.IndexRefineSearchParameters(k_factor=values["k_factor"], base_index_params=inner)
    if hasattr(index, "nprobe"):
        options = {"nprobe": int(values["nprobe"]), "max_codes": int(values["max_codes"])}
        if "quantizer_efSearch" in values:
            options["quantizer_params"] = faiss.SearchParametersHNSW(efSearch=int(values["quantizer_efSearch"]))
        return faiss.SearchParametersIVF(**options)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(efSearch=int(values["efSearch"]))
    return None
