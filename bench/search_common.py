"""What the benchmarks of search share: synthetic stores with the spectrum of real embeddings, and plain FAISS.

Run by itself it shows how like real embeddings the synthetic ones are: variances, neighbours, and what a cut keeps.

A passage is its topic's centre plus a part of its own, and a query is a passage plus a part of its own, so that
neighbours exist; all parts have the variances of all-MiniLM-L6-v2's embeddings. A smaller size is what training nested
embeddings makes of it: the first d numbers, which vary most, and, below the last layer, noise that grows towards the
first. Speed and memory do not depend on these choices; recall and overlap do: they are figures of synthetic data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np

from starbucks_retrieval.search.engine_choice import choose_engine
from starbucks_retrieval.search.engines import (
    CandidateGenerator,
    EngineOptions,
    make_candidate_generator,
)
from starbucks_retrieval.search.engines.exact import BLAS_THRESHOLD, import_faiss
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, StoreWriter, size_folder

DEFAULT_SIZES = Sizes.default(12, 768)
ENGINES = {
    "faiss": ("faiss", "auto"),
    "torch-fp32": ("torch", "fp32"),
    "torch-bf16": ("torch", "bf16"),
    "auto": ("auto", "auto"),
}

# The variances of all-MiniLM-L6-v2's embeddings of 2,000 MS MARCO passages, by falling rank k of D, are about
# exp(-5 sqrt(k / D)): within 17 % over the first 300 of 384; the last are smaller still.
_FALL = 5.0
_TOPIC = 64  # passages of a topic, on average
_SHARED = (0.5, 0.9)  # a passage's share of variance that is its topic's, drawn evenly
_CLOSENESS = 0.8  # mean cosine of a query and its passage
_NOISE = 0.5  # of a small size's spread, if there were a layer 0
_SHARD = 16384

Vectors = dict[Size, np.ndarray]
Results = tuple[np.ndarray, np.ndarray]


class Corpus:
    """`count` synthetic passages and their queries at any size of `model_sizes`. Shards are drawn one by one, by seed."""

    def __init__(self, count: int, seed: int, model_sizes: Sizes = DEFAULT_SIZES) -> None:
        self.count, self.model_sizes, self._seed = count, model_sizes, seed
        rng = np.random.default_rng((seed, 0))
        self._basis = _basis(sorted({size.dim for size in model_sizes}), rng)
        self._centres = _draw(max(1, count // _TOPIC), self._basis, rng)

    def write(self, folder: Path, sizes: Iterable[Size], store_dtype: str = "float16") -> dict[Size, EmbeddingStore]:
        """Stores of the passages at `sizes`, written shard by shard."""
        return self._write(folder, "passages", sizes, store_dtype, self.count, self._passages())

    def write_queries(
        self, folder: Path, sizes: Iterable[Size], count: int, store_dtype: str = "float16"
    ) -> dict[Size, EmbeddingStore]:
        """Stores of `count` queries, in one shard."""
        return self._write(folder, "queries", sizes, store_dtype, count, iter([self._queries(count)]))

    def queries(self, count: int, sizes: Iterable[Size]) -> Vectors:
        """`count` queries, at each size [count, dim] float32."""
        vectors, rng = self._queries(count)
        return {size: self._cut(vectors, size, rng) for size in sizes}

    def vectors(self, size: Size) -> np.ndarray:
        """All passages at one size in memory, float32 [count, dim]."""
        return np.concatenate([self._cut(vectors, size, rng) for vectors, rng in self._passages()])

    def describe(self) -> dict[str, Any]:
        """For the report."""
        return {
            "source": "synthetic, spectrum of all-MiniLM-L6-v2",
            "variance": f"exp(-{_FALL} sqrt(rank / {self.model_sizes.full.dim}))",
            "passages_per_topic": _TOPIC,
            "topic_share": _SHARED,
            "query_to_passage_cosine": _CLOSENESS,
            "noise_below_last_layer": _NOISE,
        }

    def _passages(self) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
        """Shards of passages at full width, each with the generator that their cuts go on drawing from."""
        for shard in range(-(-self.count // _SHARD)):
            rng = np.random.default_rng((self._seed, 1, shard))
            rows = min(_SHARD, self.count - shard * _SHARD)
            topics = rng.integers(len(self._centres), size=rows)
            shared = rng.uniform(*_SHARED, (rows, 1)).astype(np.float32)
            own = _draw(rows, self._basis, rng)
            yield _unit(np.sqrt(shared) * self._centres[topics] + np.sqrt(1 - shared) * own), rng

    def _queries(self, count: int) -> tuple[np.ndarray, np.random.Generator]:
        passages, _ = next(self._passages())  # topics are drawn row by row: the first shard's are like all others
        rng = np.random.default_rng((self._seed, 2))
        own = _draw(count, self._basis, rng)
        chosen = passages[rng.integers(len(passages), size=count)]
        return _unit(_CLOSENESS * chosen + (1 - _CLOSENESS**2) ** 0.5 * own), rng

    def _cut(self, vectors: np.ndarray, size: Size, rng: np.random.Generator) -> np.ndarray:
        """The embeddings at `size` of what `vectors` [rows, full dim] are at the full size."""
        part = vectors[:, : size.dim]
        noise = _NOISE * (1 - size.layer / self.model_sizes.full.layer)
        if noise > 0:
            spread = np.float32(noise * np.sqrt(np.square(part).mean()))
            part = part + spread * rng.standard_normal(part.shape, np.float32)
        return _unit(part)

    def _write(
        self,
        folder: Path,
        kind: str,
        sizes: Iterable[Size],
        store_dtype: str,
        count: int,
        shards: Iterator[tuple[np.ndarray, np.random.Generator]],
    ) -> dict[Size, EmbeddingStore]:
        sizes = sorted(sizes)
        writers = {}
        for size in sizes:
            spec = StoreSpec(
                kind=kind,
                size=size,
                pooling="cls",
                normalize=True,
                prefix="",
                separator=" ",
                max_length=196,
                fingerprint=f"synthetic-{size.layer}",
                compute_dtype="fp32",
                store_dtype=store_dtype,
                data_digest=f"{kind}-{count}-{self._seed}",
                data_count=count,
                shard_size=_SHARD if kind == "passages" else count,
                model_name="synthetic",
            )
            writers[size] = StoreWriter.open(folder / size_folder(size), spec)
        for shard, (vectors, rng) in enumerate(shards):
            ids = [f"{kind[0]}{shard * _SHARD + row}" for row in range(len(vectors))]
            for size in sizes:
                writers[size].write_shard(shard, ids, self._cut(vectors, size, rng))
        for writer in writers.values():
            writer.finish()
            writer.close()
        return {size: EmbeddingStore.open(writer.folder) for size, writer in writers.items()}


def _basis(dims: list[int], rng: np.random.Generator) -> np.ndarray:
    """What standard normal numbers are multiplied by: [dim, dim].

    Variances fall from block to block of the default sizes' dims and are even inside each block, as after training:
    a product quantizer would have it too easy with a few numbers that vary and many that do not.
    """
    width = dims[-1]
    variances = np.exp(-_FALL * np.sqrt(np.arange(1, width + 1) / width))
    basis = np.zeros((width, width), np.float32)
    for low, high in zip([0, *dims], dims):
        turned, _ = np.linalg.qr(rng.standard_normal((high - low, high - low)))
        basis[low:high, low:high] = np.sqrt(variances[low:high] / variances.sum())[:, None] * turned
    return basis


def _draw(rows: int, basis: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((rows, len(basis)), np.float32) @ basis


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# ---------------------------------------------------------------- the published way, and comparing


def plain_flat(store: EmbeddingStore) -> Any:
    """An IndexFlatIP that holds a whole store in single precision, as the published search has it.

    That adds one array of all vectors, which it keeps besides; added in pieces they take less memory at most.
    """
    index = import_faiss().IndexFlatIP(store.spec.size.dim)
    for _, block in store.blocks(_SHARD, np.float32):
        index.add(block)
    return index


def plain_search(index: Any, queries: np.ndarray, depth: int, batch_size: int = 64) -> Results:
    """Rows and scores [queries, depth], `batch_size` queries at a time, as the published search asks for them."""
    found = [index.search(queries[start : start + batch_size], depth) for start in range(0, len(queries), batch_size)]
    return np.concatenate([rows for _, rows in found]), np.concatenate([scores for scores, _ in found])


def as_faiss_is_set(search: Callable[[], Results]) -> Results:
    """Search with the threshold for matrix products that FAISS has when it is imported."""
    settings = import_faiss().cvar
    ours = settings.distance_compute_blas_threshold
    settings.distance_compute_blas_threshold = BLAS_THRESHOLD
    try:
        return search()
    finally:
        settings.distance_compute_blas_threshold = ours


def generator(name: str, queries: int, store: EmbeddingStore) -> CandidateGenerator:
    """An engine of ENGINES, on the CPU; auto is what `search` takes for so many queries at once."""
    engine, dtype = ENGINES[name]
    engine = choose_engine(engine, "cpu", dtype, queries, store)
    return make_candidate_generator(engine, EngineOptions("cpu", dtype), store.spec.size.dim)


def together(found: Iterable[Results]) -> Results:
    """Batches of results as one: rows and scores [queries, depth]."""
    rows, scores = zip(*found)
    return np.concatenate(rows), np.concatenate(scores)


def overlap(exact: np.ndarray, found: Iterable[np.ndarray], k: int) -> float:
    """The share of the exact best k that are among the best k found, a mean over queries."""
    return round(float(np.mean([np.isin(right[:k], own[:k]).mean() for right, own in zip(exact, found)])), 4)


def largest_difference(exact: np.ndarray, found: np.ndarray) -> float:
    """The largest difference of scores of equal rank; of rows with nearly equal scores either may have been found."""
    return float(f"{np.abs(exact - found).max():.2g}")


# ---------------------------------------------------------------- how like real ones


def main() -> None:
    flags = common.parser("How like real embeddings the synthetic ones are.")
    flags.add_argument("--texts", type=int, default=2000, help="passages that all-MiniLM-L6-v2 encodes")
    flags.add_argument("--queries", type=int, default=200, help="queries of each kind")
    flags.add_argument("--collection", type=int, default=32_000, help="passages that the synthetic ones are some of")
    settings = flags.parse_args()

    from starbucks_retrieval import NestedEncoder
    from starbucks_retrieval.demo.api import minilm
    from starbucks_retrieval.demo.pipeline import Backbone

    base = Backbone.open(minilm())
    encoder = NestedEncoder.from_pretrained(base.path, device="cpu")
    texts, source = common.passages(settings.texts, settings.seed)
    asked, _ = common.queries(settings.queries, settings.seed)
    full = base.sizes.full
    real = [_unit(encoder.encode(some, full, max_length=64)[full]) for some in (texts, asked)]
    corpus = Corpus(settings.collection, settings.seed, base.sizes)
    drawn = [next(corpus._passages())[0][: settings.texts], corpus._queries(settings.queries)[0]]
    report = common.Report("search_common", settings, texts={"source": source, "count": len(texts)})
    for name, (passages, queries) in (("real", real), ("synthetic", drawn)):
        report.line(
            f"{name} embeddings",
            "variance by rank, of all; cosines of two passages (standard deviation), with the nearest passage and of a "
            "query with its nearest (10 %, 50 %, 90 %); share of a query's ten nearest among the 100 nearest of the "
            "first 32 principal components",
            **_portrait(passages, queries),
        )


def _portrait(passages: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    mean = passages.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(passages.T))
    variances, first = variances[::-1] / variances.sum(), directions[:, ::-1][:, :32]
    cosines = passages @ passages.T
    apart = ~np.eye(len(passages), dtype=bool)
    nearest = np.where(apart, cosines, -1).max(axis=1)
    scores = queries @ passages.T
    small = _unit((queries - mean) @ first) @ _unit((passages - mean) @ first).T
    best, shortlist = (np.argsort(-found, axis=1)[:, :k] for found, k in ((scores, 10), (small, 100)))
    return {
        "variance": {str(rank): round(float(variances[rank - 1]), 5) for rank in (1, 4, 16, 64, 256)},
        "cosine_deviation": round(float(cosines[apart].std()), 3),
        "nearest_cosine": np.percentile(nearest, [10, 50, 90]).round(2).tolist(),
        "query_nearest_cosine": np.percentile(scores.max(axis=1), [10, 50, 90]).round(2).tolist(),
        "ten_best_in_shortlist": round(float(np.mean([np.isin(b, s).mean() for b, s in zip(best, shortlist)])), 3),
    }


if __name__ == "__main__":
    main()
