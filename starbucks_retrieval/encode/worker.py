"""Encode shards in one process: read and tokenise, compute, and write, each in its own thread."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from starbucks_retrieval.data import Passage, Query, Records, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import StoreWriter

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder


@dataclasses.dataclass
class EncodeStats:
    """Counts of texts and tokens, and seconds by part. The parts overlap; during `wait` nothing was computed.

    Attributes:
        tokens: Tokens of all texts, special ones included, without padding.
        seconds: {part: seconds} of read, tokenize, compute, write and wait.
    """

    texts: int = 0
    tokens: int = 0
    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("read", "tokenize", "compute", "write", "wait"), 0.0)
    )

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the statistics of another process, as a mapping."""
        self.texts += other["texts"]
        self.tokens += other["tokens"]
        for part, seconds in other["seconds"].items():
            self.seconds[part] += seconds


class _Tokenised(NamedTuple):
    shard: int
    ids: list[str]
    rows: list[list[int]]


@dataclasses.dataclass
class Worker:
    """Encode shards of a collection into the stores of all sizes.

    Texts are sorted by length within a shard, so a shard has the same bytes whichever process encodes it.

    Attributes:
        encoder: The model; its tokenizer and its settings are used.
        records: The whole collection.
        backend: Computes the embeddings.
        writers: The stores by size; all have the same shards.
        max_tokens: Rows times longest row of a batch.
        stats: Counts and seconds of the last call of `run`.
    """

    encoder: NestedEncoder
    records: Records[Any]
    backend: Backend
    writers: Mapping[Size, StoreWriter]
    max_tokens: int

    def __post_init__(self) -> None:
        self.stats = EncodeStats()
        self.sizes = Sizes(sorted(self.writers))
        self.spec = next(iter(self.writers.values())).spec

    def run(self, shards: Iterable[int]) -> EncodeStats:
        """Encode shards in order; while one is computed, the next is tokenised and the last one written."""
        self.stats = EncodeStats()
        seconds = self.stats.seconds
        texts = self._tokenised(shards)
        writing: Future[None] | None = None
        with ThreadPoolExecutor(1, "tokenise") as reader, ThreadPoolExecutor(1, "write") as writer:
            upcoming = reader.submit(next, texts, None)
            while True:
                lap = time.perf_counter()
                tokenised = upcoming.result()
                seconds["wait"] += time.perf_counter() - lap
                if tokenised is None:
                    break
                upcoming = reader.submit(next, texts, None)
                lap = time.perf_counter()
                label = f"shard {tokenised.shard + 1} of {self.spec.shards}"
                vectors = self.backend.embed(tokenised.rows, self.sizes, max_tokens=self.max_tokens, label=label)
                seconds["compute"] += -lap + (lap := time.perf_counter())
                self.stats.texts += len(tokenised.ids)
                self.stats.tokens += sum(map(len, tokenised.rows))
                if writing is not None:
                    writing.result()
                seconds["wait"] += time.perf_counter() - lap
                writing = writer.submit(self._write, tokenised.shard, tokenised.ids, vectors)
                del tokenised, vectors
            if writing is not None:
                lap = time.perf_counter()
                writing.result()
                seconds["wait"] += time.perf_counter() - lap
        return self.stats

    def _write(self, shard: int, ids: list[str], vectors: Mapping[Size, np.ndarray]) -> None:
        lap = time.perf_counter()
        for size, writer in self.writers.items():
            if shard not in writer.done_shards():
                writer.write_shard(shard, ids, vectors[size])
        self.stats.seconds["write"] += time.perf_counter() - lap

    def _tokenised(self, shards: Iterable[int]) -> Iterator[_Tokenised]:
        seconds = self.stats.seconds
        lap = time.perf_counter()
        for shard, records in self._read(shards):
            ids, texts = texts_of(records, self.encoder.config)
            seconds["read"] += -lap + (lap := time.perf_counter())
            rows = self.encoder.tokenize(texts, self.spec.max_length)
            seconds["tokenize"] += time.perf_counter() - lap
            del records, texts
            yield _Tokenised(shard, ids, rows)
            lap = time.perf_counter()

    def _read(self, shards: Iterable[int]) -> Iterator[tuple[int, list[Any]]]:
        """Yield the records of each shard. Ascending shards take one pass over the data."""
        position, stream = 0, iter(())
        for shard in shards:
            start, stop = (self.spec.first_row + row for row in self.spec.shard_rows(shard))
            if not 0 < position <= start:
                position, stream = start, self.records.rows(start)
            batch = list(itertools.islice(stream, start - position, stop - position))
            if len(batch) != stop - start:
                raise UserError(f"{self.spec.data_name} became shorter while it was read", "run the command again")
            yield shard, batch
            position = stop


def texts_of(records: list[Passage] | list[Query], config: Any) -> tuple[list[str], list[str]]:
    """Return the ids of passages or queries, and their texts as the model gets them, with title and prefix.

    Args:
        records: At least one record; all are queries or all are passages.
        config: The EncoderConfig of the model, which has the prefixes and the separator between title and text.

    Returns:
        Ids and texts, both in the order of the records. Texts are stripped.

    Example:
        >>> from types import SimpleNamespace
        >>> texts_of([Query("q1", "Do hens fly?")], SimpleNamespace(query_prefix="query: "))
        (['q1'], ['query: Do hens fly?'])
    """
    if isinstance(records[0], Query):
        return [q.query_id for q in records], [(config.query_prefix + q.text).strip() for q in records]
    separator, prefix = config.passage_field_separator, config.passage_prefix
    return [p.docid for p in records], [join_text(p, separator, prefix) for p in records]
