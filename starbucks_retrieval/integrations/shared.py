"""Embeddings of the same texts at several sizes, from one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from starbucks_retrieval.sizes import Size


class SharedEmbeddings:
    """Embeddings at several sizes, which are computed together when the first of them is needed.

    They are kept on disk, in float32: those of a corpus at many sizes may not fit in memory.

    Args:
        folder: An existing folder, which the caller deletes.

    Example:
        >>> import tempfile
        >>> calls = []
        >>> def embed():
        ...     calls.append("texts are encoded")
        ...     return {size: np.ones((1, size.dim), np.float32) for size in (Size(2, 8), Size(4, 32))}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shared = SharedEmbeddings(Path(folder))
        ...     vectors = [shared.get(["hens lay eggs"], "", Size(*size), embed) for size in [(2, 8), (4, 32)]]
        >>> [found.shape for found in vectors], calls
        ([(1, 8), (1, 32)], ['texts are encoded'])
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(
        self, texts: list[str], settings: str, size: Size, embed: Callable[[], Mapping[Size, np.ndarray]]
    ) -> np.ndarray:
        """Return the embeddings of texts at one size, float32 [texts, dim].

        Args:
            texts: The texts.
            settings: Everything else that the embeddings depend on.
            size: The size.
            embed: Computes the embeddings of these texts at all sizes that will be needed, this one among them.
        """
        digest = hashlib.blake2b(digest_size=16)
        for text in (settings, *texts):
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        path = self._path(digest.hexdigest(), size)
        if not path.exists():
            for one, vectors in embed().items():
                np.save(self._path(digest.hexdigest(), one), vectors)
        return np.load(path, allow_pickle=False)

    def _path(self, digest: str, size: Size) -> Path:
        return self._folder / f"{digest}-L{size.layer}-D{size.dim}.npy"
