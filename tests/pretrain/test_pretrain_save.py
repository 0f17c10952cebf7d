"""Folders that other programs load, and that training goes on from."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.attention import share_bias
from starbucks_retrieval.pretrain import PretrainOptions
from starbucks_retrieval.pretrain.module import PretrainingModule
from starbucks_retrieval.pretrain.trainer import DECODER_FILE, load_backbone_and_decoder, save_backbone
from starbucks_retrieval.sizes import Sizes

from ..conftest import save_model as save_tiny_model
from ..conftest import slow_except
from .conftest import MASKED, OPTIONS, masked_batch, save_masked_lm

SIZES = Sizes.parse("2:8,4:32")


def trained(folder, options=None, seed=0, sizes=SIZES) -> PretrainingModule:
    """A module one step away from what was loaded."""
    module = PretrainingModule.from_pretrained(str(folder), sizes, options, dropout=0.0, seed=seed)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    module(**masked_batch(enhanced=module.options.decoder == "enhanced"))["loss"].backward()
    optimizer.step()
    return module.eval()


@pytest.mark.parametrize("family", slow_except(["roberta"], MASKED))
def test_the_folder_is_a_masked_lm_and_an_encoder(family, tmp_path):
    module = trained(save_masked_lm(tmp_path / "start", family))
    batch = masked_batch()
    save_backbone(module, tmp_path / "saved")

    model, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    inputs = {"input_ids": batch["encoder_ids"], "attention_mask": batch["attention_mask"]}
    if family == "mpnet":
        share_bias(model.mpnet)
    assert torch.equal(model.eval()(**inputs).logits, module.model(**inputs).logits)

    encoder = NestedEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert encoder.sizes == SIZES and encoder.config.pooling == "cls"
    pooled_layers = encoder(**inputs, layers=(4,))
    assert torch.equal(pooled_layers[4], module.backbone(**inputs).last_hidden_state[:, 0])
    # One more than the decoder's output, which would be None where tying is lost
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("family", slow_except(["bert"], MASKED))
def test_no_weight_is_written_twice(family, tmp_path):
    module = trained(save_masked_lm(tmp_path / "start", family))
    save_backbone(module, tmp_path / "saved")
    written = load_file(tmp_path / "saved" / "model.safetensors")
    assert len(written) == len(list(module.model.parameters()))
    assert sum(weight.numel() for weight in written.values()) == module.model.num_parameters()
    # also where the weights were gathered from several processes, and no two share their memory
    state = {name: weight.clone() for name, weight in module.state_dict().items()}
    save_backbone(module, tmp_path / "gathered", state)
    assert load_file(tmp_path / "gathered" / "model.safetensors").keys() == written.keys()
    assert (tmp_path / "gathered" / DECODER_FILE).read_bytes() == (tmp_path / "saved" / DECODER_FILE).read_bytes()


@pytest.mark.parametrize("preset", slow_except(["retromae", "mlm"], ["smae", "retromae", "mlm"]))
@pytest.mark.parametrize("family", slow_except(["electra"], ["bert", "electra"]))
def test_loading_restores_every_bit(family, preset, tmp_path):
    start = save_masked_lm(tmp_path / "start", family)
    module = trained(start, OPTIONS[preset])
    save_backbone(module, tmp_path / "saved")
    other = PretrainingModule.from_pretrained(str(start), SIZES, OPTIONS[preset], dropout=0.0, seed=9)
    load_backbone_and_decoder(other, tmp_path / "saved")
    state = other.state_dict()
    assert state.keys() == module.state_dict().keys()
    for name, weight in module.state_dict().items():
        assert torch.equal(weight, state[name]), name
    assert (tmp_path / "saved" / DECODER_FILE).exists() == (preset != "mlm")
    batch = masked_batch(enhanced=preset == "retromae")
    assert torch.equal(other.eval()(**batch)["loss"], module(**batch)["loss"])


def test_a_backbone_without_head_is_saved_with_its_new_one(tmp_path):
    module = trained(save_tiny_model(tmp_path / "start"), seed=3)
    save_backbone(module, tmp_path / "saved")
    again = PretrainingModule.from_pretrained(str(tmp_path / "saved"))
    assert again.sizes == SIZES
    assert torch.equal(again.head.dense.weight, module.head.dense.weight)


def test_a_checkpoint_without_decoder_is_refused(tmp_path):
    start = save_masked_lm(tmp_path / "start")
    save_backbone(trained(start, PretrainOptions(mae=False)), tmp_path / "saved")
    with pytest.raises(UserError, match="decoder"):
        load_backbone_and_decoder(trained(start), tmp_path / "saved")


def test_saving_over_an_older_checkpoint_removes_it(tmp_path):
    start = save_masked_lm(tmp_path / "start")
    first, second = trained(start), trained(start, PretrainOptions(decoder_init="random"))
    save_backbone(first, tmp_path / "saved")
    save_backbone(second, tmp_path / "saved")
    save_backbone(second, tmp_path / "alone")
    for path in ("model.safetensors", DECODER_FILE, "starbucks.json", "config.json"):
        assert (tmp_path / "saved" / path).read_bytes() == (tmp_path / "alone" / path).read_bytes()
