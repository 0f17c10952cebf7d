"""Models for mteb.evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.integrations.base import SizedModel
from starbucks_retrieval.models.cutting import count_parameters


class MtebModel(SizedModel):
    """A model at one size for `mteb.evaluate`: the encoder protocol of mteb 2.

    Queries get the model's query prefix and length, all other texts those of passages. mteb files its results under
    the model's name, the fingerprint of its weights as revision, and the size. The arguments are those of `SizedModel`.

    Example:
        >>> import mteb  # doctest: +SKIP
        >>> mteb.evaluate(MtebModel("my-model", "6:128"), mteb.get_tasks(tasks=["NFCorpus"]))  # doctest: +SKIP
    """

    @cached_property
    def mteb_model_meta(self) -> Any:
        """The model's metadata in mteb's form. Raises UserError if mteb is not installed."""
        try:
            from mteb.models import ModelMeta
            from mteb.models.model_meta import ScoringFunction
        except ImportError:
            raise UserError("the package mteb 2 is not installed", "pip install 'mteb>=2'") from None
        normalize = self.encoder.config.normalize
        names = ("release_date", "languages", "memory_usage_mb", "license", "open_weights", "public_training_code")
        unknown: dict[str, Any] = dict.fromkeys((*names, "public_training_data", "training_datasets", "loader"))
        return ModelMeta(
            **unknown,
            name=f"starbucks/{Path(self.encoder.name).name or 'model'}",
            revision=self.encoder.fingerprint(self.size.layer),
            n_parameters=count_parameters(self.encoder, self.size),
            max_tokens=self.encoder.max_length(False),
            embed_dim=self.size.dim,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.COSINE if normalize else ScoringFunction.DOT_PRODUCT,
            use_instructions=bool(self.encoder.config.query_prefix or self.encoder.config.passage_prefix),
            experiment_kwargs={"size": str(self.size)},
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the embeddings, float32 [texts, dim], of all batches of a loader, in its order.

        Args:
            inputs: Batches with a column `text`, or, as mteb gives for corpora, `title` and `body`.
            prompt_type: "query", or anything else for passages. The other arguments are ignored.
        """
        texts: list[str] = []
        titles: list[str] = []
        for batch in inputs:
            titled = "title" in batch and "body" in batch
            batch_texts = list(batch["body"] if titled else batch["text"])
            texts += batch_texts
            titles += [title or "" for title in batch["title"]] if titled else [""] * len(batch_texts)
        if getattr(prompt_type, "value", prompt_type) == "query":
            return self.embed_queries(texts)
        return self.embed_passages(texts, titles)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return dot products [first, second], which are cosines where the model normalises."""
        return _matrix(embeddings1) @ _matrix(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return dot products [pairs] of corresponding rows."""
        return (_matrix(embeddings1) * _matrix(embeddings2)).sum(dim=1)


def _matrix(embeddings: Any) -> torch.Tensor:
    return torch.atleast_2d(torch.as_tensor(embeddings))
