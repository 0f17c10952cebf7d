"""Texts laid end to end give the pooled outputs of padded batches, for every architecture that supports it."""

from __future__ import annotations

import inspect
import sys
import types

import numpy as np
import pytest
import torch
from conftest import DECODERS, FAMILIES, TYPICAL, save_model, slow_except

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import encoder as encoder_module
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.models.batching import pad


def encoder_of(folder, family, pooling):
    save_model(folder, family)
    encoder = NestedEncoder.from_pretrained(folder, attn_implementation=unpadded.NAME, device="cpu")
    encoder.config = encoder.config.__class__(pooling=pooling)
    return encoder


@pytest.mark.parametrize("family", slow_except(["bert", "modernbert"], unpadded.FAMILIES))
def test_pooled_layers_equal_those_of_padded_batches(tmp_path, family):
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 100, length).tolist() for length in (1, 30, 30, 7, 30, 2)]
    for pooling in ["last"] if family in DECODERS else ["cls", "mean", "last"]:
        encoder = encoder_of(tmp_path / pooling, family, pooling)
        with torch.no_grad():
            expected = encoder(**pad(rows, 1 if "roberta" in family or family == "camembert" else 0), layers=[1, 2, 4])
            found = encoder.forward_unpadded(rows, [1, 2, 4])
        assert list(found) == [1, 2, 4]
        for layer, pooled in expected.items():
            torch.testing.assert_close(found[layer], pooled, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", slow_except(["bert"], TYPICAL))
def test_gradients_equal_those_of_padded_batches(tmp_path, family):
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 100, length).tolist() for length in (30, 30, 17, 5, 5, 5, 2)]
    for pooling in ["last"] if family in DECODERS else ["cls", "mean"]:
        encoder = encoder_of(tmp_path / pooling, family, pooling).double()

        def gradients(pooled, encoder=encoder):
            encoder.zero_grad()
            sum(states.square().sum() for states in pooled.values()).backward()
            return {name: weight.grad.clone() for name, weight in encoder.named_parameters() if weight.grad is not None}

        expected = gradients(encoder(**pad(rows, 0), layers=[1, 2, 4]))
        found = gradients(encoder.forward_unpadded(rows, [1, 2, 4]))
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-9, atol=1e-9 * float(gradient.abs().max()) + 1e-12
            )


def test_attention_has_dropout_in_training_only(tmp_path):
    save_model(tmp_path, "bert")
    encoder = NestedEncoder.from_pretrained(tmp_path, attn_implementation=unpadded.NAME, device="cpu", dropout=0.5)
    for part in encoder.modules():
        if isinstance(part, torch.nn.Dropout) and part is not encoder.backbone.encoder.layer[0].attention.self.dropout:
            part.p = 0.0
    rows = [[5, 6, 7], [8, 9]]
    with torch.no_grad():
        for training in (True, False):
            encoder.train(training)
            first, second = (encoder.forward_unpadded(rows, [4])[4] for _ in range(2))
            assert torch.equal(first, second) != training


def test_no_text_sees_another(tmp_path):
    encoder = encoder_of(tmp_path, "bert", "mean")
    with torch.no_grad():
        both = encoder.forward_unpadded([[5, 6, 7], [8, 9]], [4])[4]
        alone = encoder.forward_unpadded([[8, 9]], [4])[4]
    torch.testing.assert_close(both[1], alone[0])


def test_other_architectures_are_refused(tmp_path):
    assert set(FAMILIES) - set(unpadded.FAMILIES) == {"distilbert", "mpnet"}
    save_model(tmp_path, "mpnet")
    with pytest.raises(UserError, match="mpnet"):
        NestedEncoder.from_pretrained(tmp_path, attn_implementation=unpadded.NAME)


def test_batches_are_padded_where_the_kernel_cannot_run(tmp_path):
    encoder = encoder_of(tmp_path, "bert", "mean")
    plain = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    plain.config = encoder.config
    rows = [[5, 6, 7], [8, 9]]
    for size, vectors in plain.embed(rows, plain.sizes).items():
        np.testing.assert_allclose(encoder.embed(rows, plain.sizes)[size], vectors, atol=1e-6)


@pytest.mark.parametrize("there", [True, False])
def test_a_torch_without_the_kernel_is_refused(tmp_path, monkeypatch, there):
    module = types.ModuleType("torch.nn.attention.varlen")
    if there:  # as torch 2.10 had it
        module.varlen_attn = lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False: query
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    unpadded.kernel.cache_clear()
    packing = unpadded.Packing.pack([[5, 6], [7]], 0, torch.device("cpu"))
    states = [torch.zeros(3, 2, 4) for _ in range(3)]
    for call in (unpadded.kernel, lambda: unpadded._with_kernel(*states, packing, (-1, -1), None)):
        with pytest.raises(UserError, match=r"unpadded needs torch 2\.12 or newer on a GPU, this is 2"):
            call()
    # On a GPU it is refused before the model is read; a CPU needs no kernel.
    monkeypatch.setattr(encoder_module, "resolve_device", lambda name: torch.device("cuda"))
    with pytest.raises(UserError, match="needs torch 2"):
        NestedEncoder.from_pretrained(tmp_path / "none", attn_implementation=unpadded.NAME)
    monkeypatch.undo()
    unpadded.kernel.cache_clear()
    encoder_of(tmp_path, "bert", "mean")


def test_this_torch_has_the_kernel():
    assert set(inspect.signature(unpadded.kernel()).parameters) >= unpadded._ARGUMENTS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_gives_the_numbers_of_padded_batches(tmp_path):
    encoder = encoder_of(tmp_path, "bert", "mean").to("cuda")
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 100, length).tolist() for length in (1, 30, 7, 30, 2)]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        expected = encoder(**pad(rows, 0, "cuda"), layers=[2, 4])
        found = encoder.forward_unpadded(rows, [2, 4])
    for layer, pooled in expected.items():
        torch.testing.assert_close(found[layer], pooled, rtol=3e-2, atol=3e-2)
