"""encode(): order, truncation before normalisation, prefixes, lengths, and refusals."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.batching import pad, token_batches


@pytest.fixture
def encoder(tiny_bert):
    return NestedEncoder.from_pretrained(tiny_bert)


def texts(count=30):
    rng = np.random.default_rng(0)
    return [" ".join(f"w{i}" for i in rng.integers(0, 95, rng.integers(0, 40))) for _ in range(count)]


def test_results_keep_the_order_of_the_texts(encoder):
    together = encoder.encode(texts(), "2:8,4:32", max_tokens=100)
    for i, text in enumerate(texts()):
        for size, vectors in encoder.encode([text], "2:8,4:32").items():
            np.testing.assert_allclose(together[size][i], vectors[0], atol=2e-5)


def test_truncates_then_normalises(encoder):
    encoder.config = EncoderConfig(pooling="mean")
    raw = encoder.encode(texts(), Size(3, 32))[Size(3, 32)]
    encoder.config = EncoderConfig(pooling="mean", normalize=True)
    cut = encoder.encode(texts(), Size(3, 8))[Size(3, 8)]
    np.testing.assert_allclose(cut, raw[:, :8] / np.linalg.norm(raw[:, :8], axis=1, keepdims=True), atol=1e-5)


def test_prefix_and_length_come_from_the_config(encoder):
    encoder.config = EncoderConfig(query_prefix="w1 w2 ", query_max_len=6)
    vectors = encoder.encode(["w3 w4 w5 w6"], is_query=True)
    encoder.config = EncoderConfig()
    assert np.array_equal(vectors[Size(4, 32)], encoder.encode(["w1 w2 w3 w4"])[Size(4, 32)])


def test_no_texts_give_empty_arrays(encoder):
    assert encoder.encode([], "2:8")[Size(2, 8)].shape == (0, 8)


def test_a_tokenizer_without_special_tokens_never_yields_an_empty_row(encoder):
    class Bare:
        eos_token_id, unk_token_id = None, 1

        def __call__(self, texts, **_):
            return {"input_ids": [[5] if text else [] for text in texts]}

    encoder.tokenizer = Bare()
    assert encoder.tokenize(["a", ""], 8) == [[5], [1]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("5:8", "layer 5"),
        ("2:33", "33 dimensions"),
        ("0:8", "needs a token table"),
        ("2:0", "dims at 1"),
        ("tall", "this one has 1"),
    ],
)
def test_refuses_sizes_the_model_lacks(encoder, sizes, message):
    with pytest.raises(UserError, match=message):
        encoder.encode(["w1"], sizes)


def test_refuses_a_length_beyond_the_model(encoder):
    with pytest.raises(UserError, match="beyond this model's 60"):
        encoder.encode(["w1"], max_length=61)


def test_refuses_missing_folders_pickles_and_unknown_architectures(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="no such model folder"):
        NestedEncoder.from_pretrained(tmp_path / "absent")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for file in tiny_bert.iterdir():
        if file.suffix != ".safetensors":
            (pickled / file.name).write_bytes(file.read_bytes())
    torch.save({}, pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        NestedEncoder.from_pretrained(pickled)
    (pickled / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(UserError, match="not supported"):
        NestedEncoder.from_pretrained(pickled)
    (pickled / "config.json").write_text('{"model_type": "bert", "hidden_size": "wide"}')
    with pytest.raises(UserError, match="hidden_size"):
        NestedEncoder.from_pretrained(pickled)
    with pytest.raises(UserError, match="layer 9"):
        NestedEncoder.from_pretrained(tiny_bert, layers=9)


def test_refuses_a_folder_without_a_vocabulary(tiny_bert, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_bert / name, tmp_path / name)
    with pytest.raises(UserError, match="vocabulary"):
        NestedEncoder.from_pretrained(tmp_path)


def test_the_sizes_of_a_truncated_model_are_those_it_can_reach(tiny_bert, tmp_path):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = EncoderConfig(sizes=Sizes.parse("1:4,2:8,4:32"))
    encoder.save_pretrained(tmp_path)
    assert str(NestedEncoder.from_pretrained(tmp_path, layers=3).sizes) == "1:4,2:8"


def test_starbucks_json_of_a_newer_format_is_refused(tiny_bert, tmp_path):
    NestedEncoder.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    path = tmp_path / "starbucks.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UserError, match="another format"):
        NestedEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("new_style", [True, False])
def test_reads_sentence_transformers_folders(tiny_bert, tmp_path, new_style):
    for file in tiny_bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [{"idx": i, "path": f"{i}_{k}" if i else "", "type": f"some.module.{k}"} for i, k in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    pooling = (
        {"pooling_mode": "mean"} if new_style else {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    )
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"truncate_dim": 8, "prompts": {"query": "q: ", "document": "d: "}})
    )
    config = NestedEncoder.from_pretrained(tmp_path).config
    assert config == EncoderConfig(Sizes.parse("4:8"), "mean", True, 0.05, "q: ", "d: ", " ", 40, 40)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    with pytest.raises(UserError, match="pools by max"):
        NestedEncoder.from_pretrained(tmp_path)
    modules.append({"idx": 3, "path": "3_Dense", "type": "some.Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(UserError, match="Dense"):
        NestedEncoder.from_pretrained(tmp_path)


def test_equals_sentence_transformers_itself(tiny_bert, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import Normalize, Pooling, Transformer

    pooling = Pooling(32, pooling_mode="mean")
    model = st.SentenceTransformer(modules=[Transformer(str(tiny_bert)), pooling, Normalize()])
    model.save(str(tmp_path))
    ours = NestedEncoder.from_pretrained(tmp_path).encode(texts())[Size(4, 32)]
    np.testing.assert_allclose(ours, model.encode(texts(), convert_to_numpy=True), atol=1e-6)


def test_batches_hold_the_budget_and_every_row_once():
    lengths = [3, 50, 7, 7, 1, 20, 90, 2]
    batches = token_batches(lengths, 64)
    assert sorted(i for batch in batches for i in batch) == list(range(8))
    assert all(len(b) * max(lengths[i] for i in b) <= 64 or len(b) == 1 for b in batches)
    assert list(batches[0]) == [6]
    padded = pad([[5, 6], [7]], 0)
    assert padded["input_ids"].tolist() == [[5, 6], [7, 0]]
    assert padded["attention_mask"].tolist() == [[1, 1], [1, 0]]


def test_error_texts_are_one_line_each(encoder):
    with pytest.raises(UserError) as caught:
        encoder.encode(["w1"], "9:9")
    assert caught.value.hint and not re.search(r"\n", caught.value.what + caught.value.hint)


def test_normalisation_of_sentence_transformers_folders_without_a_normalize_module(tiny_bert, tmp_path):
    for file in tiny_bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "modules.json").write_text('[{"idx": 0, "path": "", "type": "some.Transformer"}]')
    assert not NestedEncoder.from_pretrained(tmp_path).config.normalize
    (tmp_path / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "cosine"}')
    assert NestedEncoder.from_pretrained(tmp_path).config.normalize


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "qwen3"])
def test_dropout_can_be_switched_off_for_training(tmp_path, family):
    from conftest import save_model

    folder = save_model(tmp_path, family)
    encoder = NestedEncoder.from_pretrained(folder, dropout=0.0).train()
    batch = {"input_ids": torch.arange(5, 15)[None], "attention_mask": torch.ones(1, 10, dtype=torch.long)}
    first, again = encoder(**batch, layers=[4])[4], encoder(**batch, layers=[4])[4]
    assert torch.equal(first, again)


def test_transformers_verbosity_is_put_back():
    from transformers.utils import logging as transformers_logging

    from starbucks_retrieval.models.loading import quiet_transformers

    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    with quiet_transformers():
        assert not transformers_logging.is_progress_bar_enabled()
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before
