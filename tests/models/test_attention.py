"""Plain attention computes what torch's fused attention computes, padded texts and gradients included."""

from __future__ import annotations

import pytest
import torch
from conftest import save_model
from torch.nn import functional

from starbucks_retrieval.models.attention import attend, use_plain_attention
from starbucks_retrieval.models.loading import load_backbone


@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert"])
def test_a_model_in_bf16_computes_what_it_did(tmp_path, family):
    save_model(tmp_path, family)
    mask = torch.ones(3, 20, dtype=torch.int64)
    mask[1, 12:] = 0
    ids = torch.randint(5, 90, mask.shape, generator=torch.Generator().manual_seed(0))

    def states(plain):
        model, _, _ = load_backbone(str(tmp_path), dropout=0.0)
        if plain:
            use_plain_attention(torch.nn.ModuleList([model]))
            assert model.config._attn_implementation != "sdpa"
        with torch.autocast("cpu", torch.bfloat16):
            found = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()].float()
        found.square().sum().backward()
        return found.detach(), next(
            w.grad for n, w in model.named_parameters() if "embeddings" in n and w.grad is not None
        )

    for ours, theirs in zip(states(plain=True), states(plain=False), strict=True):
        assert functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.9999
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02 * float(theirs.abs().max()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_rows_see_what_the_bias_lets_them_see(dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, 3, 5, 8, generator=generator).to(dtype) for _ in range(3))
    seen = torch.rand(2, 1, 5, 5, generator=generator) < 0.5
    seen |= torch.eye(5, dtype=torch.bool)
    bias = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    found = attend(queries, keys, values, bias, 0.0, scaling=0.5)
    scores = (queries.double() @ keys.double().transpose(-1, -2) * 0.5).masked_fill(~seen, float("-inf"))
    torch.testing.assert_close(found.double(), scores.softmax(-1) @ values.double(), rtol=tolerance, atol=tolerance)
    everything = attend(queries, keys, values, None, 0.0)
    scores = queries.double() @ keys.double().transpose(-1, -2) * 8**-0.5
    torch.testing.assert_close(
        everything.double(), scores.softmax(-1) @ values.double(), rtol=tolerance, atol=tolerance
    )
