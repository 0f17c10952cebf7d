"""A saved model is a folder of sentence-transformers, whose vectors are ours at the full size."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from conftest import DECODERS, FAMILIES, TYPICAL, save_model, slow_except
from fitted_models import fitted, load
from head_models import save_with_head

from starbucks_retrieval import NestedEncoder, Size, Sizes
from starbucks_retrieval.models.sentence_modules import module_files, module_size, no_modules, remove_modules

POOLINGS = ("cls", "mean", "last")
SETTINGS = {"query_prefix": "w3 w4 ", "passage_prefix": "w9 ", "query_max_len": 20, "passage_max_len": 20}


def make(folder, family="bert", sizes=None, **settings):
    """A saved model with its own settings."""
    encoder = load(save_model(folder, family), **SETTINGS | settings)
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes.parse(sizes) if sizes else None)
    encoder.save_pretrained(folder)
    return encoder


def texts():
    rng = np.random.default_rng(0)
    return [" ".join(f"w{k}" for k in rng.integers(0, 95, length)) for length in (1, 30, 4, 12, 70)] + ["", " w5  ?"]


def assert_same(folder, encoder, size):
    """Our vectors, with and without a prompt, from each call of sentence-transformers."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    passages = encoder.encode(texts(), [size])[size]
    queries = encoder.encode(texts(), [size], is_query=True)[size]
    for found, expected in (
        (model.encode(texts(), batch_size=3), passages),
        (model.encode_document(texts(), batch_size=3), passages),
        (model.encode_query(texts(), batch_size=3), queries),
        (model.encode(texts(), prompt_name="query"), queries),
    ):
        assert np.abs(found - expected).max() < 1e-6 * max(1, np.abs(expected).max())
    return model


def kinds(folder):
    return [module["type"].rsplit(".", 1)[1] for module in json.loads((folder / "modules.json").read_text())]


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        pytest.param(*case, marks=() if case in zip(TYPICAL, POOLINGS) else pytest.mark.slow)
        for case in itertools.product(FAMILIES, POOLINGS)
    ],
)
def test_every_architecture_and_pooling(tmp_path, family, pooling):
    encoder = make(tmp_path, family, pooling=pooling, normalize=pooling != "cls")
    model = assert_same(tmp_path, encoder, Size(4, 32))
    assert model.max_seq_length == 20 and model.default_prompt_name == "document"
    assert kinds(tmp_path) == ["Transformer", "Pooling", *["Normalize"] * (pooling != "cls")]


@pytest.mark.parametrize("family", slow_except(["bert"], TYPICAL))
def test_a_fitted_model_has_its_rotation(tmp_path, family):
    encoder, _ = fitted(make(tmp_path / "base", family, pooling="last" if family in DECODERS else "mean"))
    encoder.save_pretrained(tmp_path / "m")
    assert_same(tmp_path / "m", encoder, Size(4, 32))
    assert kinds(tmp_path / "m") == ["Transformer", "Pooling", "Dense", "Normalize"]
    back = NestedEncoder.from_pretrained(tmp_path / "m", device="cpu")
    assert back.config == encoder.config and back.fingerprint(4) == encoder.fingerprint(4)


def test_weights_from_several_processes_are_those_of_the_module(tmp_path):
    encoder, _ = fitted(make(tmp_path / "base", pooling="mean"))
    maps = {name: weight.clone() for name, weight in encoder.projections.state_dict().items()}
    weights = {name: weight.clone() for name, weight in encoder.backbone.state_dict().items()}
    with torch.no_grad():
        encoder.projections.map(4).weight.zero_()  # as where another process holds it
    encoder.save_pretrained(tmp_path / "m", weights, maps)
    assert_same(tmp_path / "m", NestedEncoder.from_pretrained(tmp_path / "m", device="cpu"), Size(4, 32))


def test_the_largest_dim_that_was_trained_at_the_last_layer(tmp_path):
    encoder = make(tmp_path, sizes="2:32,4:8,4:16", normalize=True)
    assert module_size(encoder) == Size(4, 16)
    model = assert_same(tmp_path, encoder, Size(4, 16))
    assert kinds(tmp_path) == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert model.get_sentence_embedding_dimension() == 16
    assert json.loads((tmp_path / "config.json").read_text())["matryoshka_dimensions"] == [8, 16]


def test_dims_of_the_model_before_are_forgotten(tmp_path):
    encoder = make(tmp_path, sizes="2:32,4:8,4:32")
    before = encoder.fingerprint(4)
    encoder = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    assert encoder.backbone.config.matryoshka_dimensions == [8, 32] and encoder.fingerprint(4) == before
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes.parse("4:32"))
    encoder.save_pretrained(tmp_path)
    assert "matryoshka_dimensions" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize(
    ("settings", "fit", "reason"),
    [
        ({"sizes": "1:8,2:16", "passage_layers": ((1, 4), (2, 4))}, None, "different layers"),
        ({"sizes": "0:16"}, [0], "token table only"),
        ({}, [1, 2], "layer 4, its last, has no map"),
    ],
)
def test_what_modules_cannot_say_has_none(tmp_path, settings, fit, reason):
    make(tmp_path / "m")  # an earlier model in the same folder
    assert module_files(tmp_path / "m")
    sizes = settings.pop("sizes", None)
    encoder = load(save_model(tmp_path / "base"), **SETTINGS | settings)
    if fit is not None:
        encoder, _ = fitted(encoder)
        encoder.projections = encoder.projections.subset(fit)
        encoder.config = dataclasses.replace(encoder.config, projected_layers=tuple(fit))
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes.parse(sizes) if sizes else None)
    encoder.save_pretrained(tmp_path / "m")
    assert reason in no_modules(encoder) and module_size(encoder) is None
    assert not module_files(tmp_path / "m") and not [p for p in (tmp_path / "m").iterdir() if p.name[0].isdigit()]


def test_concatenated_layers_have_none(tmp_path):
    encoder, _ = fitted(make(tmp_path / "base", pooling="mean"), concat_layers=True)
    encoder.save_pretrained(tmp_path / "m")
    assert kinds(tmp_path / "m") == ["Transformer", "Pooling", "Dense", "Normalize"]  # the last map takes one layer
    part = NestedEncoder.from_pretrained(tmp_path / "m", layers=3, device="cpu")
    part.save_pretrained(tmp_path / "part")
    assert "--concat_layers" in no_modules(part) and not module_files(tmp_path / "part")


def test_half_precision_weights_are_read_in_float32(tmp_path):
    from starbucks_retrieval.models.sentence_modules import save_modules

    encoder = make(tmp_path, pooling="mean")
    encoder.backbone.bfloat16().save_pretrained(tmp_path)  # as fit, which copies the weights of its model
    encoder = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    save_modules(tmp_path, encoder, 20)
    assert_same(tmp_path, encoder, Size(4, 32))


def test_the_folder_without_its_empty_folders(tmp_path):
    encoder = make(tmp_path, pooling="mean", normalize=True)
    (tmp_path / "2_Normalize").rmdir()  # git and the hub keep no empty folders
    assert_same(tmp_path, encoder, Size(4, 32))


def test_a_tokenizer_without_padding_that_cut_a_text_last(tmp_path):
    encoder = load(save_model(tmp_path / "base", "llama"), pooling="last", query_max_len=20, passage_max_len=20)
    encoder.tokenizer.pad_token, encoder.tokenizer.padding_side = None, "left"
    encoder.encode(texts())
    encoder.save_pretrained(tmp_path / "m")
    assert encoder.tokenizer.pad_token is None  # the encoder in use does not change
    assert json.loads((tmp_path / "m/tokenizer.json").read_text())["truncation"] is None
    assert_same(tmp_path / "m", encoder, Size(4, 32))


def test_transformers_4_knows_the_class_of_the_tokenizer(tmp_path):
    make(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_weights_are_written_once_and_every_one_is_found(tmp_path):
    from transformers import AutoModel

    make(tmp_path, normalize=True)
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["model.safetensors"]
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]


def test_only_files_of_modules_are_removed(tmp_path):
    make(tmp_path / "m", sizes="4:16", normalize=True)
    (tmp_path / "m/1_Pooling/notes.txt").write_text("mine")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/config.json").write_text("{}")
    modules = json.loads((tmp_path / "m/modules.json").read_text())
    (tmp_path / "m/modules.json").write_text(json.dumps([*modules, {"path": "../victim"}, {"path": "."}]))
    remove_modules(tmp_path / "m")
    assert (tmp_path / "victim/config.json").exists() and (tmp_path / "m/config.json").exists()
    assert not (tmp_path / "m/2_Dense").exists() and not (tmp_path / "m/modules.json").exists()
    shutil.copytree(tmp_path / "victim", tmp_path / "damaged")
    (tmp_path / "damaged/modules.json").write_text("[")
    remove_modules(tmp_path / "damaged")
    assert [path.name for path in (tmp_path / "damaged").iterdir()] == ["config.json"]


@pytest.mark.parametrize("fit", slow_except([True], [False, True]))
def test_modules_after_pooling_are_kept(tmp_path, fit):
    save_with_head(tmp_path / "base", "dense", include_prompt=False)
    encoder = NestedEncoder.from_pretrained(tmp_path / "base", device="cpu")
    encoder.config = dataclasses.replace(encoder.config, query_max_len=20, passage_max_len=20)
    if fit:
        encoder, _ = fitted(encoder)
    make(tmp_path / "m", sizes="4:16")  # an earlier model, whose 2_Dense is another one
    encoder.save_pretrained(tmp_path / "m")
    assert_same(tmp_path / "m", NestedEncoder.from_pretrained(tmp_path / "m", device="cpu"), Size(4, 32))
    assert kinds(tmp_path / "m") == ["Transformer", "Pooling", "Dense", "Dense", *["Dense"] * fit, "Normalize"]
