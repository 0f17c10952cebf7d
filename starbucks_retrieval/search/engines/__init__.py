"""Search engines: FAISS, torch, Ray and Milvus."""
