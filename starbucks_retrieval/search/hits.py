"""The passages that were found for one query."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_SHOWN = 60  # characters of a text in a notebook


@dataclass(frozen=True)
class Hit:
    """A passage that was found, and its inner product with the query. `title` and `text` are empty without a corpus."""

    docid: str
    score: float
    title: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    def __repr__(self) -> str:
        shown = [f"{name}={_shorten(value)!r}" for name in ("title", "text") if (value := getattr(self, name))]
        return f"Hit({', '.join([repr(self.docid), f'{self.score:.4f}', *shown])})"


@dataclass(frozen=True)
class SearchResult:
    """The hits of one query, best first, and the milliseconds of encoding and of searching."""

    hits: list[Hit]
    encode_ms: float
    search_ms: float

    def __repr__(self) -> str:
        best = f", the best is {self.hits[0]}" if self.hits else ""
        times = f"encode {self.encode_ms:.1f} ms, search {self.search_ms:.1f} ms"
        return f"SearchResult(hits: {len(self.hits)}, {times}{best})"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
