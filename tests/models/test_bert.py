"""BERT without transformers' model code: the same bits, the same fingerprints, and only where it computes the same."""

import json
import shutil

import numpy as np
import pytest
from conftest import save_model
from safetensors.torch import load_file, save_file

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.models.bert import BertBackbone

TEXTS = ["w1", "w2 w3 w4 w5 w6 w7 w8", "w9 w10 w11", " ".join(f"w{i}" for i in range(80))]


def load(folder, **options):
    return NestedEncoder.from_pretrained(folder, device="cpu", **options)


@pytest.mark.parametrize("layers", [None, 2])
def test_embeddings_and_fingerprints_are_those_of_transformers(tiny_bert, layers):
    usual, plain = load(tiny_bert, layers=layers), load(tiny_bert, layers=layers, encode_only=True)
    assert isinstance(plain.backbone, BertBackbone) and not isinstance(usual.backbone, BertBackbone)
    sizes = "1:8,2:32" if layers else "1:8,2:32,4:16,4:32"
    for options in ({}, {"max_tokens": 20}, {"is_query": True}):  # one batch with padding, and several
        for texts in (TEXTS, TEXTS[1:2]):
            expected, found = (encoder.encode(texts, sizes, **options) for encoder in (usual, plain))
            assert all(np.array_equal(expected[size], found[size]) for size in expected)
    assert [usual.fingerprint(n) for n in range(layers or 4)] == [plain.fingerprint(n) for n in range(layers or 4)]


def test_the_weights_of_a_masked_language_model_have_a_prefix(tiny_bert, tmp_path):
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    half = len(weights) // 2
    renamed = {f"bert.{name}": tensor for name, tensor in weights.items()}
    index = {name: f"part-{i >= half}.safetensors" for i, name in enumerate(renamed)}
    for part in sorted(set(index.values())):
        own = {name: tensor for name, tensor in renamed.items() if index[name] == part}
        save_file(own, model / part, {"format": "pt"})
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    plain = load(model, encode_only=True)
    assert isinstance(plain.backbone, BertBackbone)
    [expected], [found] = (encoder.encode(TEXTS, "4:32").values() for encoder in (load(tiny_bert), plain))
    assert np.array_equal(expected, found)


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"is_decoder": True}])
def test_other_settings_are_left_to_transformers(tiny_bert, tmp_path, change):
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    (model / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | change))
    assert not isinstance(load(model, encode_only=True).backbone, BertBackbone)


def test_other_architectures_and_names_are_left_to_transformers(tiny_bert, tmp_path):
    assert not isinstance(load(save_model(tmp_path / "r", "roberta"), encode_only=True).backbone, BertBackbone)
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in weights.items()}
    save_file(
        {name.replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in older.items()},
        model / "model.safetensors",
        {"format": "pt"},
    )
    encoder = load(model, encode_only=True)
    assert not isinstance(encoder.backbone, BertBackbone)
    [expected], [found] = (encoder.encode(TEXTS, "4:32").values() for encoder in (load(tiny_bert), encoder))
    assert np.array_equal(expected, found)
