"""A model folder or an open encoder at one size, for the evaluators of other projects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.precision import Precision, autocast_dtype
from starbucks_retrieval.models.sized import SizedEncoder
from starbucks_retrieval.models.sized_options import join_titles
from starbucks_retrieval.sizes import Size, parse_pair


class SizedModel(SizedEncoder):
    """What `NestedEncoder.at` returns, opened from a model folder or hub name.

    Args:
        model: A folder, a hub name, or an encoder that is open already.
        size: The size, such as `6:128`, or `2:64/4:64` for queries at 2:64 and passages at 4:64; by default the model's
            full size.
        device: `cpu`, `cuda`, `cuda:1` …; by default a GPU where there is one. Not for an open encoder.
        dtype: The precision of the computation.
        max_tokens: The largest rows x longest row of a batch.

    Raises:
        UserError: The model cannot be read, or does not have that size.
    """

    def __init__(
        self,
        model: str | Path | NestedEncoder,
        size: Size | str | None = None,
        *,
        device: str | None = None,
        dtype: Precision = "fp32",
        max_tokens: int = 8192,
    ) -> None:
        named = parse_pair(size) if size is not None else ()
        if isinstance(model, NestedEncoder):
            encoder = model
        else:
            layers = max((one.layer for one in named if one), default=None)
            encoder = NestedEncoder.from_pretrained(model, layers=layers, passage_layers=True, device=device)
        super().__init__(
            encoder, size or encoder.sizes.full, max_tokens=max_tokens, dtype=autocast_dtype(dtype, encoder.device)
        )

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of queries, float32 [texts, dim]."""
        return self.encode_query(texts)

    def embed_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> np.ndarray:
        """Return the embeddings of passages, float32 [texts, dim].

        Args:
            texts: The texts of the passages.
            titles: Their titles, empty where a passage has none. The model's own separator joins title and text.
        """
        return self.encode_document(join_titles(texts, titles, self.encoder.config.passage_field_separator))


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
