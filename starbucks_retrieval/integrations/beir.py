"""Models for beir's DenseRetrievalExactSearch."""

from __future__ import annotations

from starbucks_retrieval.integrations.base import SizedModel


class BeirModel(SizedModel):
    """A model at one size for `beir.retrieval.search.dense.DenseRetrievalExactSearch` and similar classes.

    `NestedEncoder.at` returns an object with the same methods. Evaluate with score_function "dot": models are scored by
    the dot product, whether they normalise or not. The arguments are those of `SizedModel`.

    Example:
        >>> from beir.retrieval.search.dense import DenseRetrievalExactSearch  # doctest: +SKIP
        >>> search = DenseRetrievalExactSearch(BeirModel("my-model", "6:128"), batch_size=64)  # doctest: +SKIP
    """
