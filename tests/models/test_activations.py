"""Less is kept for the backward pass, and gradients are the same to the bit."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from conftest import DECODERS, TYPICAL, save_model, slow_except
from torch.autograd.graph import saved_tensors_hooks

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.models import activations, unpadded
from starbucks_retrieval.models.activations import keep_fewer_activations


def gradients(encoder, rows, monkeypatch, fewer):
    """Return the gradients of a step in bf16, and the bytes that were kept for it."""
    encoder.zero_grad()
    torch.manual_seed(5)
    kept = {}

    def counted(pack):
        def count(*arguments):
            packed = pack(*arguments)
            storage = getattr(packed, "input", packed).untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return packed

        return count

    with monkeypatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        patch.setattr(activations._Kept, "pack", counted(activations._Kept.pack))
        same = saved_tensors_hooks(counted(lambda tensor: tensor), lambda tensor: tensor)
        with keep_fewer_activations(encoder.backbone) if fewer else same:
            pooled = encoder.forward_unpadded(rows, [2, 4])
    sum(states.float().square().sum() for states in pooled.values()).backward()
    found = {name: weight.grad.clone() for name, weight in encoder.named_parameters() if weight.grad is not None}
    return found, sum(kept.values())


@pytest.mark.parametrize("family", slow_except(["bert"], TYPICAL))
def test_less_is_kept_for_the_same_gradients(tmp_path, monkeypatch, family):
    save_model(tmp_path, family)
    encoder = NestedEncoder.from_pretrained(tmp_path, attn_implementation=unpadded.NAME, device="cpu", dropout=0.2)
    encoder.config = encoder.config.__class__(pooling="last" if family in DECODERS else "mean")
    encoder.train()
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 100, length).tolist() for length in (30, 30, 17, 5, 5, 2)]
    expected, all_bytes = gradients(encoder, rows, monkeypatch, fewer=False)
    found, fewer_bytes = gradients(encoder, rows, monkeypatch, fewer=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # In each layer the output of the activation function, and two of three casts where queries, keys and values are apart.
    config = encoder.backbone.config
    numbers = config.intermediate_size + (0 if family == "modernbert" else 2 * config.hidden_size)
    assert all_bytes - fewer_bytes >= 4 * sum(map(len, rows)) * numbers * 2


def test_hooks_are_removed_and_float32_needs_none(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    activation = encoder.backbone.encoder.layer[0].intermediate.intermediate_act_fn
    for enabled in (True, False):
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=enabled)
        with contextlib.suppress(ZeroDivisionError), autocast, keep_fewer_activations(encoder.backbone):
            assert bool(activation._forward_hooks) == enabled
            raise ZeroDivisionError
        assert not activation._forward_hooks
