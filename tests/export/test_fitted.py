"""export of fitted models: the map is part of what is written, at every layer, or the export is refused."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest
import torch
from conftest import save_model, slow_except
from export.exports import run, run_card, some_texts
from fitted_models import fitted, load
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.export.__main__ import main
from starbucks_retrieval.models.backends.graph import EmbeddingGraph
from starbucks_retrieval.models.batching import pad

SETTINGS = {
    "sizes": Sizes.parse("0:8,2:16,4:32"),
    "passage_max_len": 20,
    "query_max_len": 20,
    "query_prefix": "w3 w4 ",
    "passage_prefix": "w9 ",
}


def fitted_model(folder, family="bert", concat_layers=False, table_input=False, **settings):
    """A saved fitted model of a family; its name is its folder."""
    options = {"concat_layers": concat_layers, "table_input": table_input}
    encoder, _ = fitted(load(save_model(folder, family), **SETTINGS | settings), **options)
    encoder.save_pretrained(folder)
    encoder.name = str(folder)
    return encoder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`fitted_model` in a folder of its own, once for equal arguments."""
    return cache(lambda *family, **settings: fitted_model(tmp_path_factory.mktemp("model"), *family, **settings))


@pytest.fixture(scope="module")
def encoder(made):
    return made()


def assert_same_embeddings(folder, encoder, size):
    """A folder gives our embeddings in sentence-transformers; its modules."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    texts = [*some_texts(), "w1 unknown w2", "w1 [SEP] w5 [PAD]", ""]
    passages = encoder.encode(texts, [size])[size]
    queries = encoder.encode(texts, [size], is_query=True)[size]
    np.testing.assert_allclose(model.encode_document(texts, batch_size=3), passages, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.encode(texts, batch_size=3), passages, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.encode_query(texts, batch_size=3), queries, rtol=1e-6, atol=1e-6)
    scores = model.similarity(model.encode_query(texts), model.encode_document(texts))
    np.testing.assert_allclose(scores, queries @ passages.T, rtol=1e-5, atol=1e-5)
    return [module["type"].rsplit(".", 1)[1] for module in json.loads((folder / "modules.json").read_text())]


FITTED = [("bert", "mean"), ("modernbert", "cls"), ("mpnet", "mean"), ("qwen3", "last")]
EXPORTED = [Size(0, 8), Size(2, 12), Size(4, 12), Size(4, 32)]


@pytest.mark.parametrize(
    ("family", "pooling", "size"),
    slow_except(
        [*(("bert", "mean", size) for size in EXPORTED[:3]), ("qwen3", "last", Size(2, 12))],
        [(*model, size) for model in FITTED for size in EXPORTED],
    ),
    ids=str,
)
def test_sentence_transformers_gives_our_embeddings(made, tmp_path, family, pooling, size):
    encoder = made(family, pooling=pooling)
    run(encoder, tmp_path / "out", "sentence-transformers", str(size))
    modules = assert_same_embeddings(tmp_path / "out", encoder, size)
    maps = {
        0: ["StaticEmbedding", "Normalize"],
        2: ["Transformer", "Pooling", "Normalize", "Dense", "Normalize"],
        4: ["Transformer", "Pooling", "Dense", "Normalize"],  # the map of the last layer is a rotation
    }
    assert modules == maps[size.layer]


@pytest.mark.parametrize("size", slow_except([Size(2, 12)], [Size(2, 12), Size(4, 32)]), ids=str)
def test_dot_products_are_exported_too(made, tmp_path, size):
    encoder = made(normalize=False)
    run(encoder, tmp_path / "out", "sentence-transformers", str(size))
    assert assert_same_embeddings(tmp_path / "out", encoder, size)[-1] == "Dense"


def byte_level_tokenizer(**options):
    """A byte-level BPE tokenizer that adds no special tokens, as those of many decoders."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the café at night"] * 9, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", model_max_length=60, **options
    )


@pytest.mark.parametrize("side", slow_except(["left"], ["right", "left"]))
def test_a_table_with_byte_level_tokens(tmp_path, side):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    save_model(tmp_path / "model", "qwen3", vocab_size=300)
    byte_level_tokenizer(truncation_side=side).save_pretrained(tmp_path / "model")
    encoder, _ = fitted(load(tmp_path / "model", pooling="last", passage_max_len=20))
    encoder.projections.table.rows.data[100:] = torch.randn(200, 32)  # the fit saw the first hundred tokens only
    encoder.projections.table.counted[100:] = True
    encoder.save_pretrained(tmp_path / "model")
    encoder.name = str(tmp_path / "model")
    run(encoder, tmp_path / "out", "sentence-transformers", "0:16")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = ["the café", "東京 <end> at night", "", "the night at the café " * 9 + "once"]
    np.testing.assert_allclose(model.encode(texts), encoder.encode(texts, "0:16")[Size(0, 16)], atol=1e-6)


def test_our_own_tools_read_a_layer_with_its_map(encoder, tmp_path):
    run(encoder, tmp_path / "out", "sentence-transformers", "2:12")
    back = NestedEncoder.from_pretrained(tmp_path / "out", device="cpu")
    assert back.num_layers == 2
    assert str(back.config.sizes) == "2:12,2:16"
    assert back.config.projected_layers == (2,)
    assert back.fingerprint(2) == encoder.fingerprint(2)
    assert back.projections.space == encoder.projections.space  # comparable with what the whole model gives
    for size, vectors in encoder.encode(some_texts(), "2:12,2:16").items():
        np.testing.assert_array_equal(back.encode(some_texts(), [size])[size], vectors)


def test_layer_0_is_a_table_of_the_size(encoder, tmp_path):
    figures = run(encoder, tmp_path / "out", "sentence-transformers", "0:8")
    assert figures["parameters_kept"] == 100 * 8
    assert not (tmp_path / "out/model.safetensors").exists()
    assert sorted(path.name for path in (tmp_path / "out/0_StaticEmbedding").iterdir()) == [
        "model.safetensors",
        "tokenizer.json",
    ]
    assert figures["files"]["0_StaticEmbedding/model.safetensors"] < 100 * 8 * 4 + 200
    card = (tmp_path / "out/README.md").read_text()
    assert "One vector of 8 dimensions per token" in card and "Pooling: mean of the token vectors" in card
    found = run_card(tmp_path / "out")["passages"][:1]
    np.testing.assert_allclose(found, encoder.encode(["a passage"], "0:8")[Size(0, 8)], atol=1e-6)


def test_parameters_of_the_map_are_counted(encoder, tmp_path):
    figures = run(encoder, tmp_path / "out", "sentence-transformers", "2:12")
    part = NestedEncoder.from_pretrained(encoder.name, layers=2, device="cpu")
    assert figures["parameters_kept"] == sum(p.numel() for p in part.backbone.parameters()) + 12 * (32 + 1)
    assert figures["parameters_total"] == sum(p.numel() for p in encoder.backbone.parameters()) + 32 * 32
    assert "the linear map that was fitted for this layer" in (tmp_path / "out/README.md").read_text()


def test_lengths_of_queries_are_explained_for_a_table(tmp_path):
    encoder = fitted_model(tmp_path / "model", query_max_len=10)
    run(encoder, tmp_path / "out", "sentence-transformers", "0:8")
    assert "enable_truncation(8)" in (tmp_path / "out/README.md").read_text()
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    model[0].tokenizer.enable_truncation(8)
    expected = encoder.encode(some_texts(), "0:8", is_query=True)[Size(0, 8)]
    np.testing.assert_allclose(model.encode_query(some_texts()), expected, atol=1e-6)


def test_a_tokenizer_that_needs_its_special_tokens_is_refused(encoder, tmp_path, monkeypatch):
    tokenize = NestedEncoder.tokenize
    monkeypatch.setattr(NestedEncoder, "tokenize", lambda *given: [[*row, 7] for row in tokenize(*given)])
    with pytest.raises(UserError, match="gives other tokens for 'Hens lay eggs"):
        run(encoder, tmp_path / "out", "sentence-transformers", "0:8")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "flags", "message"),
    [
        ({}, ["--size", "2:8", "--to", "transformers"], "AutoModel does not apply.*--to sentence-transformers"),
        ({}, ["--size", "0:64", "--to", "onnx"], "64 dimensions.*0:8,2:16,4:32"),
        ({}, ["--layer", "5", "--to", "onnx"], "layer 5.*0:8,2:16,4:32"),
        ({"concat_layers": True}, ["--size", "2:8"], "of several layers too.*--to onnx.*without --concat_layers"),
        ({"table_input": True}, ["--size", "2:8"], "of the token table too.*--to onnx.*with --table_input false"),
        ({"normalize": False}, ["--size", "0:8"], "compares dot products.*--to onnx"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_refusals_write_nothing(made, tmp_path, capfd, settings, flags, message, dry_run):
    encoder = made(**settings)
    base = ["--model_name_or_path", encoder.name, "--to", "sentence-transformers", "--output_dir"]
    assert run_command(main, [*base, str(tmp_path / "out"), *flags, *(["--dry_run"] if dry_run else [])]) == 2
    error = " ".join(capfd.readouterr().err.split())
    assert re.search(message, error), error
    assert not list(tmp_path.iterdir())


def test_the_first_and_last_layers_of_concatenated_ones_have_maps_of_their_own(made, tmp_path):
    encoder = made(concat_layers=True)
    for size in (Size(1, 8), Size(4, 8)):
        run(encoder, tmp_path / str(size.layer), "sentence-transformers", str(size))
        assert_same_embeddings(tmp_path / str(size.layer), encoder, size)


def test_dry_run_counts_a_table(encoder, tmp_path, capsys):
    argv = ["--model_name_or_path", encoder.name, "--to", "sentence-transformers", "--size", "0:8", "--dry_run"]
    assert run_command(main, [*argv, "--output_dir", str(tmp_path / "out"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["parameters_kept"], figures["bytes"]) == (800, 3200)


@pytest.mark.parametrize("size", [Size(0, 8), Size(2, 8)], ids=str)
def test_the_graph_holds_the_map_and_the_table_that_it_takes(made, size):
    encoder = made(table_input=True)
    rows = encoder.tokenize(some_texts(), 20)
    found = EmbeddingGraph(encoder, size)(**pad(rows, encoder.tokenizer.pad_token_id)).detach()
    np.testing.assert_allclose(found, encoder.embed(rows, Sizes([size]))[size], atol=1e-5)


@pytest.mark.slow  # converting takes seconds
@pytest.mark.parametrize("size", [Size(0, 8), Size(2, 8)], ids=str)
def test_onnx_holds_the_map_and_the_table_that_it_takes(made, tmp_path, size):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    encoder = made(table_input=True)
    run(encoder, tmp_path / "out", "onnx", str(size))
    found = run_card(tmp_path / "out")["passages"]
    np.testing.assert_allclose(found, encoder.encode(["a passage"], [size])[size], atol=1e-5)
    assert "projected_layers" not in json.loads((tmp_path / "out/starbucks.json").read_text())
