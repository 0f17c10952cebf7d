"""From a typed query to passages with their text: the one place of this package that meets an encoder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.exact import exact_search, import_faiss
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, open_store
from starbucks_retrieval.texts import Passage, open_corpus


class Encoder(Protocol):
    """What a Searcher needs of a model; `NestedEncoder` is one."""

    config: Any

    def encode(self, texts: list[str], sizes: Sizes, *, is_query: bool) -> dict[Size, np.ndarray]: ...

    def fingerprint(self, layer: int) -> str: ...


@dataclass(frozen=True)
class Hit:
    """One passage found. `title` and `text` are empty without a corpus."""

    docid: str
    score: float
    title: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


class Searcher:
    """Answers typed queries from a store of passages, exactly.

    `model` is a folder, a hub name or an open encoder; `passage_reps` and `size` are as for `search`; `corpus` is the
    collection that was encoded, held in memory for its titles and texts. Raises UserError when the model or the corpus
    is not the one behind the store.
    """

    def __init__(
        self,
        model: str | Path | Encoder,
        passage_reps: str | Path | EmbeddingStore,
        corpus: str | None = None,
        *,
        size: Size | None = None,
        max_memory: str | int = "2GB",
    ) -> None:
        import_faiss()
        self.store = passage_reps if isinstance(passage_reps, EmbeddingStore) else open_store(passage_reps, size)
        self.size = self.store.spec.size
        self.max_memory = max_memory
        self.encoder: Encoder = _load(model, self.size.layer) if isinstance(model, str | Path) else model
        self._check_model()
        self._passages = self._read(corpus) if corpus is not None else None

    def search(self, text: str, k: int = 10) -> list[Hit]:
        """The `k` best passages for one query, best first; fewer when the store has fewer."""
        encoded = self.encoder.encode([text], Sizes([self.size]), is_query=True)
        [(rows, scores)] = exact_search(encoded[self.size], self.store, k, max_memory=self.max_memory)
        docids = self.store.ids(rows[0])
        return [
            Hit(docid, float(score), *self._text(row, docid))
            for row, docid, score in zip(rows[0].tolist(), docids, scores[0])
        ]

    def _check_model(self) -> None:
        spec, config = self.store.spec, self.encoder.config
        if spec.kind != "passages":
            raise UserError("this store holds queries, not passages", "name the passages with --passage_reps")
        here = self.encoder.fingerprint(self.size.layer)
        if here != spec.fingerprint:
            raise UserError(
                f"the passages were encoded by another model: {spec.model_name or 'unnamed'} ({spec.fingerprint}), "
                f"this one is {here}",
                "give the model that encoded them, or encode them again",
            )
        for name in ("pooling", "normalize"):
            stored, own = getattr(spec, name), getattr(config, name)
            if stored != own:
                raise UserError(
                    f"the passages were encoded with {name} {stored!r}, this model has {own!r}",
                    "give the model that encoded them, or encode them again",
                )

    def _read(self, corpus: str) -> list[Passage]:
        first = self.store.first_row
        passages = list(open_corpus(corpus).rows(first, first + self.store.count))
        if len(passages) != self.store.count:
            raise UserError(
                f"{corpus} has {first + len(passages)} passages, the store has {first + self.store.count}",
                "give the corpus that was encoded",
            )
        return passages

    def _text(self, row: int, docid: str) -> tuple[str, str]:
        if self._passages is None:
            return "", ""
        passage = self._passages[row]
        if passage.docid != docid:
            raise UserError(
                f"passage {row} of the corpus is {passage.docid!r}, in the store it is {docid!r}",
                "give the corpus that was encoded",
            )
        return passage.title, passage.text


def _load(model: str | Path, layer: int) -> Encoder:
    from starbucks_retrieval.models import NestedEncoder

    return NestedEncoder.from_pretrained(model, layers=layer)
