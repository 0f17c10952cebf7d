"""Linear layers on packed weights compute what autocast computes, and cast an input once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from starbucks_retrieval.models import precision as module
from starbucks_retrieval.models.precision import packed_weights

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def kernels(monkeypatch) -> None:
    """Compute what oneDNN's kernels compute, on processors that they do not support."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight, rows: weight)
        monkeypatch.setattr(
            torch.ops.mkldnn,
            "_linear_pointwise",
            lambda states, weight, bias, *rest: nn.functional.linear(states, weight, bias),
        )


@pytest.fixture
def layers() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(32, 64), nn.Linear(32, 64, bias=False)])


def test_the_numbers_are_those_of_autocast(layers):
    states = torch.randn(3, 7, 32)
    with torch.no_grad(), torch.autocast("cpu", BF16):
        expected = [layer(states) for layer in layers]
        with packed_weights(layers, BF16, 5000):
            found = [layer(states) for layer in layers]
            states *= 2  # a cast of the old states would be wrong
            doubled = layers[1](states)
    for one, other in zip(found, expected):
        assert one.dtype is BF16
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(doubled, 2 * expected[1])


def test_layers_without_autocast_stay_in_float32(layers):
    states = torch.randn(3, 32)
    expected = layers[0](states)
    with torch.no_grad(), torch.autocast("cpu", BF16), packed_weights(layers, BF16, 5000):
        within = layers[0](states)
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(layers[0](states), expected)
    assert within.dtype is BF16


def test_only_where_it_pays(layers, monkeypatch):
    def packs(dtype: torch.dtype | None = BF16, tokens: int = 5000) -> bool:
        return isinstance(packed_weights(layers, dtype, tokens), module._Packed)

    assert packs()
    assert not packs(dtype=None) and not packs(dtype=torch.float16) and not packs(tokens=100)
    layers[0].forward = layers[0].forward  # as torch.compile leaves it
    assert not packs()
    del layers[0].forward
    with monkeypatch.context() as other:
        other.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
        assert not packs()
    monkeypatch.setattr(module, "_OPERATIONS", ("gone",))
    assert not packs()


def test_encoding_packs_the_weights(tiny_bert, monkeypatch):
    from starbucks_retrieval import NestedEncoder

    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    rows = [[5, 6, 7, 8]] * 10
    expected = encoder.embed(rows, encoder.sizes, dtype=BF16)
    calls = []
    packs = module._packs
    monkeypatch.setattr(module, "_packs", lambda *args: calls.append(packs(*args)) or packs(*args))
    assert not calls
    monkeypatch.setattr(module, "_MIN_TOKENS", 40)
    found = encoder.embed(rows, encoder.sizes, dtype=BF16)
    assert calls and all(calls)
    for size, vectors in expected.items():
        np.testing.assert_allclose(found[size], vectors, atol=0.02)
