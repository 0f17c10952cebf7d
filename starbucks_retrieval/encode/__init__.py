"""Write the embeddings of a corpus or of queries to disk, all sizes in one pass."""

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.encode.api import encode
    from starbucks_retrieval.encode.arguments import EncodeArguments

__all__ = ["EncodeArguments", "encode"]
__getattr__, __dir__ = lazy_exports(__name__, {"EncodeArguments": ".arguments", "encode": ".api"})
