"""MPNet's shared bias of attention computes what transformers computes."""

from __future__ import annotations

import pytest
import torch
from conftest import save_model
from transformers import MPNetModel

from starbucks_retrieval.models.attention import share_bias
from starbucks_retrieval.models.loading import load_backbone


@pytest.fixture
def models(tmp_path):
    save_model(tmp_path, "mpnet")
    ours, _, _ = load_backbone(str(tmp_path), dropout=0.0)
    theirs = MPNetModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    with torch.no_grad():  # as large as in a trained model, so that leaving it out is seen
        for model in (ours, theirs):
            model.encoder.relative_attention_bias.weight.copy_(torch.linspace(-3, 3, 32)[:, None].expand(-1, 4))
    return ours, theirs


@pytest.fixture
def batch():
    ids = torch.randint(5, 90, (3, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def states(model, batch):
    return model(**batch).last_hidden_state[batch["attention_mask"].bool()]


@pytest.mark.parametrize("training", [False, True])
def test_states_and_gradients_are_those_of_transformers(models, batch, training):
    ours, theirs = (model.train(training) for model in models)
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    first, second = states(ours, batch), states(theirs, batch)
    assert torch.allclose(first, second, atol=1e-5)
    first.square().sum().backward()
    second.square().sum().backward()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, atol=1e-3), name


def test_scores_stay_in_bf16(models, batch, monkeypatch):
    ours, theirs = models
    seen = []
    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, k, v, attn_mask: seen.append((q.dtype, attn_mask.dtype)) or plain(q, k, v, attn_mask=attn_mask),
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        near = torch.allclose(states(ours, batch).float(), states(theirs, batch).float(), atol=0.1)
    assert near and set(seen) == {(torch.bfloat16, torch.bfloat16)}


def test_states_of_all_layers_are_still_returned(models, batch):
    ours, theirs = models
    found = ours(**batch, output_hidden_states=True, output_attentions=True)
    expected = theirs(**batch, output_hidden_states=True, output_attentions=True)
    assert len(found.hidden_states) == len(expected.hidden_states) and len(found.attentions) == len(expected.attentions)
    assert torch.allclose(found.hidden_states[1], expected.hidden_states[1], atol=1e-5)


def test_a_backbone_that_is_saved_is_an_mpnet_as_before(models, tmp_path):
    ours, _ = models
    share_bias(ours)  # again: nothing changes
    ours.save_pretrained(tmp_path / "saved")
    again = MPNetModel.from_pretrained(tmp_path / "saved", add_pooling_layer=False)
    assert again.state_dict().keys() == ours.state_dict().keys()
