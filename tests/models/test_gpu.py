"""The same embeddings on a GPU; skipped without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.models import precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]


def test_float32_on_the_gpu_equals_the_cpu(tiny_bert):
    here = NestedEncoder.from_pretrained(tiny_bert, device="cpu").encode(TEXTS, "2:8,4:32")
    there = NestedEncoder.from_pretrained(tiny_bert, device="cuda").encode(TEXTS, "2:8,4:32")
    for size, vectors in here.items():
        np.testing.assert_allclose(there[size], vectors, atol=1e-3)


def test_bf16_on_the_gpu_points_the_same_way(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cuda")
    exact = encoder.encode(TEXTS)[Size(4, 32)]
    fast = encoder.encode(TEXTS, dtype=precision.autocast_dtype("bf16", encoder.device))[Size(4, 32)]
    cosines = (exact * fast).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(fast, axis=1)
    assert cosines.min() > 0.99
