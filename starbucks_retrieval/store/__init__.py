"""Embeddings on disk: one folder per size, plain memory-mapped .npy shards, a JSON manifest, checksums."""

from starbucks_retrieval.store.layout import output_folder, size_folder
from starbucks_retrieval.store.locate import open_store, open_stores
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.spec import StoreSpec, check_same, part_rows
from starbucks_retrieval.store.writer import StoreWriter

__all__ = [
    "EmbeddingStore",
    "StoreSpec",
    "StoreWriter",
    "check_same",
    "open_store",
    "open_stores",
    "output_folder",
    "part_rows",
    "size_folder",
]
