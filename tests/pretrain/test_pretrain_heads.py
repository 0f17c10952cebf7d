"""Heads and states of every family, and models whose checkpoint has no head."""

from __future__ import annotations

import logging

import pytest
import torch
import transformers

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig, NestedEncoder
from starbucks_retrieval.models.architectures import layout_of
from starbucks_retrieval.pretrain.heads import (
    HEADS,
    embedded,
    head_of,
    hidden_states,
    load_masked_lm,
    position_embeddings,
)
from starbucks_retrieval.pretrain.module import PretrainingModule
from starbucks_retrieval.sizes import Sizes

from ..conftest import FAMILIES, save_model, slow_except
from .conftest import MASKED, TWO_STREAM, masked_batch, masked_lm, save_masked_lm
from .published import cut


def test_every_head_layout_is_tested():
    assert set(MASKED) == set(HEADS) <= set(FAMILIES)


@pytest.mark.parametrize("family", MASKED)
def test_the_whole_head_gives_the_model_s_own_logits(family):
    model, batch = masked_lm(family), masked_batch()
    inputs = {"input_ids": batch["encoder_ids"], "attention_mask": batch["attention_mask"]}
    backbone = getattr(model, model.base_model_prefix)
    states = backbone(**inputs).last_hidden_state
    head = head_of(model)
    torch.testing.assert_close(head.vocabulary(head.transform(states)), model(**inputs).logits)
    torch.testing.assert_close(head.transform(states[..., :7]), head.transform(cut(states, 7)))
    torch.testing.assert_close(head.linear(states[..., :7]), cut(states, 7) @ head.dense.weight.T)


@pytest.mark.parametrize("family", slow_except(["bert"], MASKED))
def test_states_are_those_of_models_with_fewer_layers(family, tmp_path):
    folder, batch = save_masked_lm(tmp_path, family), masked_batch()
    model, _, _ = load_masked_lm(str(folder))
    backbone = getattr(model.eval(), model.base_model_prefix)
    states = hidden_states(backbone, layout_of(model.config), (1, 3), batch["ids"], batch["attention_mask"])
    assert set(states) == {1, 3}
    for layer, state in states.items():
        encoder = NestedEncoder.from_pretrained(folder, layers=layer)
        own = encoder.backbone(input_ids=batch["ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        assert torch.equal(state, own)
    assert not any(module._forward_hooks for module in backbone.modules())


@pytest.mark.parametrize("family", TWO_STREAM)
def test_positions_are_what_embeddings_add(family):
    model = masked_lm(family)
    backbone = getattr(model, model.base_model_prefix)
    backbone.embeddings.LayerNorm = torch.nn.Identity()
    ids = torch.tensor([[7, 7, 7, 7, 7]])
    tokens, positions = embedded(backbone, ids)[0], position_embeddings(backbone, 5)
    torch.testing.assert_close(tokens - tokens[:1], positions - positions[:1])


@pytest.mark.parametrize("family", slow_except(["bert"], MASKED))
def test_a_backbone_without_a_head_gets_a_new_one(family, tmp_path, caplog):
    save_model(tmp_path, family)
    with caplog.at_level(logging.INFO, logger="starbucks_retrieval"):
        model, tokenizer, _ = load_masked_lm(str(tmp_path), seed=1)
    assert "initialised from seed 1" in caplog.text and tokenizer.mask_token == "[MASK]"
    backbone = getattr(model, model.base_model_prefix)
    for name, weight in transformers.AutoModel.from_pretrained(tmp_path).state_dict().items():
        if not name.startswith("pooler"):
            assert torch.equal(weight, backbone.state_dict()[name]), name
    head = head_of(model)
    assert head.vocabulary.weight is backbone.get_input_embeddings().weight
    assert head.dense.weight.std() > 0
    same, other = (load_masked_lm(str(tmp_path), seed=seed)[0] for seed in (1, 2))
    assert torch.equal(head_of(same).dense.weight, head.dense.weight)
    assert not torch.equal(head_of(other).dense.weight, head.dense.weight)
    found = PretrainingModule(model, tokenizer, EncoderConfig(), Sizes.parse("2:8,4:32"))(**masked_batch())
    assert found["loss"].isfinite()


def test_a_complete_checkpoint_is_loaded_without_a_message(tmp_path, caplog):
    save_masked_lm(tmp_path)
    with caplog.at_level(logging.INFO, logger="starbucks_retrieval"):
        model, _, config = load_masked_lm(str(tmp_path), dropout=0.0)
    assert "head" not in caplog.text
    assert config == EncoderConfig()
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.0
    for name, weight in masked_lm().state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name


def test_loading_leaves_the_random_state_alone(tmp_path):
    save_model(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    PretrainingModule.from_pretrained(str(tmp_path), Sizes.parse("4:32"))
    assert torch.equal(torch.rand(1), expected)


def test_architectures_without_such_a_head_are_refused(tmp_path):
    save_model(tmp_path, "qwen3")
    with pytest.raises(UserError, match="qwen3"):
        load_masked_lm(str(tmp_path))
