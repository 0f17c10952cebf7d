"""Configurations that are refused, because transformers would compute something else, and those of causal models."""

from __future__ import annotations

import json

import pytest
from conftest import save_model

from starbucks_retrieval import NestedEncoder, UserError
from starbucks_retrieval.models.info import model_info


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


def test_a_gemma_with_causal_attention_pools_the_last_token(tmp_path):
    causal = save_model(tmp_path / "causal", "gemma3_text", use_bidirectional_attention=False)
    assert NestedEncoder.from_pretrained(causal).config.pooling == model_info(str(causal)).config.pooling == "last"
    both = save_model(tmp_path / "both", "gemma3_text")
    assert NestedEncoder.from_pretrained(both).config.pooling == "cls"


def test_settings_of_nomic_that_transformers_does_not_read(tmp_path):
    model = save_model(tmp_path, "nomic_bert")
    same = {"n_embd": 32, "n_layer": 4, "n_inner": 48, "rotary_emb_base": 1000, "activation_function": "swiglu"}
    assert NestedEncoder.from_pretrained(edit(model, **same), layers=2).num_layers == 2
    edit(model, rotary_emb_base=10000)
    for read in (NestedEncoder.from_pretrained, model_info):
        with pytest.raises(UserError, match=r"config.json has rotary_emb_base=10000, which transformers does not read"):
            read(str(model))


def test_an_architecture_that_transformers_lacks_is_refused_with_the_remedy(tmp_path):
    model = save_model(tmp_path)
    edit(model, model_type="no_such_model")
    for read in (NestedEncoder.from_pretrained, model_info):
        with pytest.raises(UserError, match=r"no_such_model[\s\S]*newer version of transformers"):
            read(str(model))
    edit(model, auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    with pytest.raises(UserError, match=r"code from its own repository, which is not run[\s\S]*newer version"):
        NestedEncoder.from_pretrained(str(model))
