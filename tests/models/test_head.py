"""Dense and LayerNorm modules after pooling, and prompts left out of the mean, against sentence-transformers itself."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from conftest import slow_except
from fitted_models import fitted, texts, token_rows
from head_models import HEADS, assert_same, save_with_head

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.models.info import model_info
from starbucks_retrieval.models.modules_json import HeadModule, read_head
from starbucks_retrieval.models.prompts import Prompt, prompt_of, without_prompts


@pytest.fixture
def folder(tmp_path):
    save_with_head(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("head", slow_except(["narrow"], HEADS))
def test_the_full_size_is_that_of_sentence_transformers(tmp_path, head):
    theirs = save_with_head(tmp_path / "model", head)
    encoder = NestedEncoder.from_pretrained(tmp_path / "model", device="cpu")
    assert encoder.hidden_size == theirs.get_sentence_embedding_dimension()
    assert_same(encoder, theirs)
    info = model_info(str(tmp_path / "model"))
    assert info.hidden_size == encoder.hidden_size
    assert info.parameters(4) == sum(weight.numel() for weight in encoder.parameters())


def test_a_lower_layer_is_the_truncated_model_of_sentence_transformers(folder):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu")
    theirs[0].auto_model.encoder.layer = theirs[0].auto_model.encoder.layer[:2]
    expected = theirs.encode_document(texts(12), normalize_embeddings=False)
    for encoder in (NestedEncoder.from_pretrained(folder), NestedEncoder.from_pretrained(folder, layers=2)):
        ours = encoder.encode(texts(12), "2:16,2:32")
        np.testing.assert_allclose(ours[Size(2, 32)], expected, rtol=0, atol=1e-6)
        cut = expected[:, :16] / np.linalg.norm(expected[:, :16], axis=1, keepdims=True)
        np.testing.assert_allclose(ours[Size(2, 16)], cut, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", slow_except(["dense"], HEADS))
def test_a_saved_model_is_the_same_model(tmp_path, head):
    theirs = save_with_head(tmp_path / "model", head, include_prompt=False)
    encoder = NestedEncoder.from_pretrained(tmp_path / "model", device="cpu")
    encoder.save_pretrained(tmp_path / "saved")
    saved = NestedEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert saved.config == encoder.config and saved.fingerprint(4) == encoder.fingerprint(4)
    assert_same(saved, theirs)


def test_the_head_is_part_of_the_fingerprint(folder):
    encoder = NestedEncoder.from_pretrained(folder)
    layers = [encoder.fingerprint(layer) for layer in range(5)]
    assert NestedEncoder.from_pretrained(folder, layers=2).fingerprint(2) == layers[2]
    with torch.no_grad():
        encoder.head[1].linear.weight[0, 0] += 1
    del encoder.__dict__["_backbone_digests"]
    assert all(a != encoder.fingerprint(layer) for layer, a in enumerate(layers))
    path = folder / "2_Dense" / "config.json"
    path.write_text(path.read_text().replace("linear.Identity", "activation.ReLU"))
    assert NestedEncoder.from_pretrained(folder).fingerprint(4) not in (layers[4], encoder.fingerprint(4))


@pytest.mark.parametrize("head", slow_except(["wide"], ["narrow", "wide"]))
def test_fit_aims_at_the_output_of_the_head(tmp_path, head):
    save_with_head(tmp_path / "model", head)
    plain = NestedEncoder.from_pretrained(tmp_path / "model")
    full = plain.sizes.full
    before = plain.embed(token_rows(20, seed=1), Sizes([full]))[full]
    encoder, report = fitted(plain)
    after = encoder.embed(token_rows(20, seed=1), Sizes.parse(f"0:8,2:8,{full}"))
    np.testing.assert_allclose(after[full] @ after[full].T, before @ before.T, rtol=0, atol=1e-5)
    assert {size.layer for size in report.after} == {0, 1, 2, 3, 4}
    encoder.save_pretrained(tmp_path / "saved")
    again = NestedEncoder.from_pretrained(tmp_path / "saved").embed(token_rows(20, seed=1), Sizes.parse("2:8"))
    np.testing.assert_allclose(again[Size(2, 8)], after[Size(2, 8)], rtol=0, atol=1e-6)


def test_autocast_leaves_the_head_in_float32(folder):
    encoder = NestedEncoder.from_pretrained(folder)
    seen = []
    encoder.head[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        encoder(**encoder.tokenizer(["w1 w2"], return_tensors="pt"), layers=[2, 4])
    assert seen == [torch.float32] * 2


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_refuses_other_modules(folder):
    dense = folder / "2_Dense" / "config.json"
    rewrite(dense, activation_function="my_code.Square")
    with pytest.raises(UserError, match=r"2_Dense.config.json: the activation 'my_code.Square'"):
        NestedEncoder.from_pretrained(folder)
    rewrite(dense, activation_function="torch.nn.modules.activation.Softmax2d")
    with pytest.raises(UserError, match="Softmax2d"):
        model_info(str(folder))
    rewrite(dense, activation_function="torch.nn.modules.linear.Identity", module_input_name="token_embeddings")
    with pytest.raises(UserError, match="module_input_name"):
        NestedEncoder.from_pretrained(folder)
    rewrite(dense, module_input_name="sentence_embedding", in_features=33)
    with pytest.raises(UserError, match="for 33 numbers, and the module before it gives 32"):
        NestedEncoder.from_pretrained(folder)
    dense.write_text("{}")
    with pytest.raises(UserError, match="neither a Dense nor a LayerNorm"):
        NestedEncoder.from_pretrained(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.CNN"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=r"modules.json names a module of type sentence_transformers.models.CNN"):
        NestedEncoder.from_pretrained(folder)
    modules[2], modules[4] = modules[4], modules[2] | {"type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="after Normalize"):
        NestedEncoder.from_pretrained(folder)


def test_refuses_weights_that_are_missing_or_others(folder):
    weights = folder / "3_Dense" / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    with pytest.raises(UserError, match=r"lacks 3_Dense/model.safetensors; pickled"):
        NestedEncoder.from_pretrained(folder)
    weights.write_bytes(content[:100])
    with pytest.raises(UserError, match="damaged"):
        NestedEncoder.from_pretrained(folder)
    shutil.copy(folder / "2_Dense" / "model.safetensors", weights)
    with pytest.raises(UserError, match=r"3_Dense.model.safetensors does not hold the weights"):
        NestedEncoder.from_pretrained(folder)
    with pytest.raises(UserError, match="not the name of a module folder"):
        read_head(str(folder), ["../2_Dense"], 32)


def test_a_dense_module_can_add_its_input():
    from starbucks_retrieval.models.head import Head

    same = HeadModule("2_Dense", {"in_features": 4, "out_features": 4, "use_residual": True})
    other = HeadModule("3_Dense", {"in_features": 4, "out_features": 6, "use_residual": True, "bias": False})
    head, pooled = Head([same, other]), torch.randn(2, 4)
    assert sum(weight.numel() for weight in head.parameters()) == same.parameters + other.parameters
    middle = torch.tanh(head[0].linear(pooled)) + pooled
    torch.testing.assert_close(head(pooled), torch.tanh(head[1].linear(middle)) + head[1].residual(middle))


@pytest.mark.parametrize("family", slow_except(["bert"], ["bert", "qwen3"]))
def test_prompts_are_left_out_of_the_mean(tmp_path, family):
    theirs = save_with_head(tmp_path / "model", "none", include_prompt=False, family=family)
    encoder = NestedEncoder.from_pretrained(tmp_path / "model", device="cpu")
    assert not encoder.config.include_prompt
    some = [*texts(6), "", "w4", "w3 w4 w5"]
    assert_same(encoder, theirs, some)
    np.testing.assert_allclose(
        encoder.at("4:32").encode(some, prompt="w7 w8 w9 "), theirs.encode(some, prompt="w7 w8 w9 "), rtol=0, atol=1e-6
    )
    query = Size(4, 32)
    alone = dataclasses.replace(encoder.config, include_prompt=True)
    ours = encoder.encode(some, is_query=True)[query]
    encoder.config = alone
    assert np.abs(ours - encoder.encode(some, is_query=True)[query]).max() > 1e-3


def test_packed_texts_leave_out_the_same_tokens(tmp_path):
    save_with_head(tmp_path / "model", "dense", include_prompt=False)
    encoder = NestedEncoder.from_pretrained(tmp_path / "model", device="cpu", attn_implementation="unpadded")
    rows = encoder.tokenize(["w3 w4 w5 w6", "w9 w5", "w1", "w3 w5 w3 w4"], 20)
    padded = encoder.tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    expected = encoder(padded["input_ids"], padded["attention_mask"], [2, 4])
    for layer, pooled in encoder.forward_unpadded(rows, [2, 4]).items():
        torch.testing.assert_close(pooled, expected[layer], rtol=0, atol=1e-5)


def test_padding_may_be_on_the_left():
    ids = torch.tensor([[0, 0, 2, 7, 8], [2, 7, 8, 9, 3], [0, 0, 0, 0, 2]])
    mask = (ids > 0).long()
    found = without_prompts(ids, mask, [Prompt((2, 7), 2), Prompt((2, 7, 8, 1), 4)])
    assert found.tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]]


class Letters:
    """A tokenizer of pairs of letters, so that the last letter of a prompt can be merged with the text."""

    all_special_ids = (0, 1)

    def __call__(self, text):
        return {
            "input_ids": [
                0,
                *(ord(text[i]) * 1000 + ord(text[i + 1 : i + 2] or " ") for i in range(0, len(text), 2)),
                1,
            ]
        }


def test_the_end_of_a_prompt_may_depend_on_the_text():
    assert prompt_of(Letters(), "abcd") == Prompt((0, 97098, 99100), 3)
    assert prompt_of(Letters(), "abc") == Prompt((0, 97098), 3)
    with pytest.raises(UserError, match="depend on the text"):
        prompt_of(Letters(), "a")


def test_cls_pooling_cannot_leave_out_prompts(tmp_path):
    save_with_head(tmp_path / "model", "none", include_prompt=False, pooling="cls")
    with pytest.raises(UserError, match="include_prompt"):
        NestedEncoder.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("nomic_bert", "layer-norm"),
        pytest.param("gemma3_text", "dense", marks=pytest.mark.slow),
        pytest.param("eurobert", "none", marks=pytest.mark.slow),
    ],
)
def test_architectures_with_the_modules_that_they_are_published_with(tmp_path, family, head):
    theirs = save_with_head(tmp_path / "model", head, family=family)
    encoder = NestedEncoder.from_pretrained(tmp_path / "model", device="cpu")
    assert not encoder.layout.causal
    assert_same(encoder, theirs)
    for layer in (1, 2, 3):
        cut = NestedEncoder.from_pretrained(tmp_path / "model", layers=layer, device="cpu")
        size = Size(layer, 32)
        np.testing.assert_allclose(
            cut.encode(texts(5), [size])[size], encoder.encode(texts(5), [size])[size], atol=1e-6
        )
