"""Search in Milvus: a file on a laptop (Milvus Lite), a server, a cluster; the same calls for each.

What the kinds of Milvus allow, as seen with pymilvus 3.0.2:

- Milvus Lite 3.2.2: any number of vector fields in a collection, partitions, FLAT, HNSW, HNSW_SQ, IVF_FLAT and IVF_SQ8,
  float32 vectors only. It builds indexes with parameters of its own whatever it is told, forgets descriptions of
  collections (so the card is a property), and is open to one process at a time. It takes any depth, but the limit of
  servers is kept so that what works here works there.
- Server 2.3.5: one vector field a collection, so every size gets a collection of its own, named after it. Later servers
  take four by default (proxy.maxVectorFieldNum); a ladder of more is spread in the same way. Rows are counted once they
  are flushed, and a partition can be dropped only while the collection is released.
"""

from starbucks_retrieval.search.engines.milvus.loading import LoadSummary, load
from starbucks_retrieval.search.engines.milvus.search import MilvusCollection, MilvusField, milvus_funnel, milvus_search

__all__ = ["LoadSummary", "MilvusCollection", "MilvusField", "load", "milvus_funnel", "milvus_search"]
