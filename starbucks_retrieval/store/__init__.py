"""Embeddings on disk: one folder for each size, with memory-mapped .npy shards, checksums and a JSON manifest."""

from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.store.agreement import check_same
from starbucks_retrieval.store.locate import open_store, open_stores, output_folder, size_folder
from starbucks_retrieval.store.memory import MemoryStore
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.spec import StoreSpec, part_rows
from starbucks_retrieval.store.writer import StoreWriter

__all__ = [
    "EmbeddingStore",
    "MemoryStore",
    "StoreSpec",
    "StoreWriter",
    "check_same",
    "open_store",
    "open_stores",
    "output_folder",
    "part_rows",
    "size_folder",
]
__dir__ = public_names(__name__)
