"""Write the embeddings of a corpus or of queries to disk, all sizes in one pass."""

from typing import Any

__all__ = ["EncodeArguments", "encode"]


def __getattr__(name: str) -> Any:
    if name == "encode":
        from starbucks_retrieval.encode.api import encode

        return encode
    if name == "EncodeArguments":
        from starbucks_retrieval.encode.arguments import EncodeArguments

        return EncodeArguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
