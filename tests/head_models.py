"""Tiny models of sentence-transformers with modules after pooling."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import save_model
from fitted_models import texts

HEADS = {
    "dense": [("Dense", 32, 48, "Identity", False), ("Dense", 48, 32, "Identity", False)],  # as EmbeddingGemma's
    "layer-norm": [("LayerNorm", 32)],
    "narrow": [("LayerNorm", 32), ("Dense", 32, 12, "Tanh", True)],
    "wide": [("Dense", 32, 40, "GELU", True)],
}


def save_with_head(folder, head="dense", include_prompt=True, pooling="mean", family="bert"):
    """A model of sentence-transformers with random modules after pooling; the model itself."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    for path, content in _files(head, include_prompt, pooling, family).items():
        if content is None:
            (folder / path).mkdir(parents=True)
        else:
            (folder / path).write_bytes(content)
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


@cache
def _files(head, include_prompt, pooling, family):
    """The files of such a model by path, parents first, and None for each folder: making one takes far longer than writing it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        _save_with_head(folder, head, include_prompt, pooling, family)
        paths = [folder, *sorted(folder.rglob("*"))]
        return {path.relative_to(folder): None if path.is_dir() else path.read_bytes() for path in paths}


def _save_with_head(folder, head, include_prompt, pooling, family):
    import sentence_transformers
    from sentence_transformers import models

    backbone = save_model(folder.with_name(f"{folder.name}-backbone"), family)
    modules = [models.Transformer(str(backbone)), models.Pooling(32, pooling, include_prompt=include_prompt)]
    torch.manual_seed(1)
    for kind, *settings in HEADS.get(head, []):
        if kind == "Dense":
            width, out, activation, bias = settings
            modules.append(models.Dense(width, out, bias=bias, activation_function=getattr(torch.nn, activation)()))
        else:
            modules.append(models.LayerNorm(*settings))
        with torch.no_grad():
            for weight in modules[-1].parameters():
                weight.add_(torch.randn_like(weight) * 0.3)
    model = sentence_transformers.SentenceTransformer(
        modules=[*modules, models.Normalize()], device="cpu", prompts={"query": "w3 w4 ", "document": "w9 "}
    )
    model.save(str(folder))


def assert_same(encoder, theirs, some=None):
    """An encoder gives the embeddings of a model of sentence-transformers."""
    some = some or texts(12)
    full = encoder.sizes.full
    for is_query, encode in ((True, theirs.encode_query), (False, theirs.encode_document)):
        ours = encoder.encode(some, [full], is_query=is_query)[full]
        np.testing.assert_allclose(ours, encode(some, batch_size=4), rtol=0, atol=1e-6)
