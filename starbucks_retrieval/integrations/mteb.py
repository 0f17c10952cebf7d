"""The model that mteb.evaluate takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.integrations.model import SizedModel


class MtebModel(SizedModel):
    """A model at one size, for `mteb.evaluate`: mteb 2's encoder protocol.

    Queries get the model's prefix and length of queries, all other texts those of passages. mteb's results go by the
    model's name, its weights' fingerprint as revision, and the size.
    """

    @cached_property
    def mteb_model_meta(self) -> Any:
        """What mteb writes about the model. Raises UserError without mteb."""
        try:
            from mteb.models import ModelMeta
            from mteb.models.model_meta import ScoringFunction
        except ImportError:
            raise UserError("the package mteb 2 is not installed", "pip install 'mteb>=2'") from None
        normalize = self.encoder.config.normalize
        return ModelMeta(
            loader=None,
            name=f"starbucks/{Path(self.encoder.name).name or 'model'}",
            revision=self.encoder.fingerprint(self.size.layer),
            release_date=None,
            languages=None,
            n_parameters=sum(parameter.numel() for parameter in self.encoder.parameters()),
            memory_usage_mb=None,
            max_tokens=self.encoder.max_length(False),
            embed_dim=self.size.dim,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.COSINE if normalize else ScoringFunction.DOT_PRODUCT,
            use_instructions=bool(self.encoder.config.query_prefix or self.encoder.config.passage_prefix),
            training_datasets=None,
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
        """Embeddings float32 [texts, dim] of all batches of a loader, in its order.

        Only `prompt_type` matters: "query" or anything else. A batch's columns `title` and `body`, which mteb gives for
        corpora, are joined by the model's own separator.
        """
        texts: list[str] = []
        titles: list[str] = []
        for batch in inputs:
            titled = "title" in batch and "body" in batch
            found = list(batch["body"] if titled else batch["text"])
            texts += found
            titles += [title or "" for title in batch["title"]] if titled else [""] * len(found)
        if getattr(prompt_type, "value", prompt_type) == "query":
            return self.embed_queries(texts)
        return self.embed_passages(texts, titles)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Dot products [first, second], which are cosines where the model normalises."""
        return _matrix(embeddings1) @ _matrix(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Dot products [pairs] of corresponding rows."""
        return (_matrix(embeddings1) * _matrix(embeddings2)).sum(dim=1)


def _matrix(embeddings: Any) -> torch.Tensor:
    return torch.atleast_2d(torch.as_tensor(embeddings))
