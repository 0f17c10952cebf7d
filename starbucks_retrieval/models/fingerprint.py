"""A name for the weights behind an embedding, equal for a whole model and for the same model cut to fewer layers."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

from starbucks_retrieval.models.stack import Layout


def layer_digests(backbone: nn.Module, layout: Layout, tokenizer: Any) -> list[str]:
    """Digests of the model cut to depth 1, 2, …: tokenizer, weights outside the layers, and the layers so far."""
    stack = layout.layers + "."
    shared = _hasher(_vocabulary(tokenizer))
    layers: dict[int, Any] = {}
    for name, tensor in sorted(backbone.state_dict().items()):
        if name.startswith("pooler."):
            continue
        hasher = shared
        if name.startswith(stack):
            index, name = name[len(stack) :].split(".", 1)
            hasher = layers.setdefault(int(index), _hasher(b""))
        hasher.update(f"{name}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    digests = []
    chain = shared
    for index in sorted(layers):
        chain.update(layers[index].digest())
        digests.append(chain.copy().hexdigest())
    return digests


def _hasher(start: bytes) -> Any:
    return hashlib.blake2b(start, digest_size=16)


def _vocabulary(tokenizer: Any) -> bytes:
    """What the tokenizer does to a text, without the padding and truncation that callers set as they go."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("padding", None)
    content.pop("truncation", None)
    return json.dumps(content, sort_keys=True).encode()
