"""Weights of 16 bits: in Python, in encode and in mine. The fingerprint is that of the stored model."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from conftest import save_model, slow_except
from fitted_models import fitted, load, texts
from transformers import AutoModel, BertForMaskedLM

from starbucks_retrieval import NestedEncoder, Size, UserError
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode.__main__ import main as encode_main
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.dense import BiEncoder
from starbucks_retrieval.models.backends.selection import open_backend
from starbucks_retrieval.store import open_store
from starbucks_retrieval.store.layout import read_manifest

SIZE = Size(4, 32)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(texts(20))))
    return path


def encode(model, corpus, output, flags, code=0):
    argv = f"--model_name_or_path {model} --dataset_path {corpus} --encode_output_path {output} --quiet {flags}"
    assert run_command(encode_main, [*argv.split(), "--device", "cpu"]) == code
    return output


@pytest.mark.parametrize("family", slow_except(["modernbert"], ["bert", "modernbert", "qwen3", "nomic_bert"]))
def test_embeddings_are_those_of_transformers_in_the_same_type(tmp_path, family):
    save_model(tmp_path, family)
    encoder = NestedEncoder.from_pretrained(tmp_path, weights_dtype=torch.bfloat16, device="cpu")
    encoder.config = dataclasses.replace(encoder.config, pooling="mean")
    assert {weight.dtype for weight in encoder.backbone.parameters()} == {torch.bfloat16}
    rows = encoder.tokenize(texts(1), 40)
    model = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(torch.tensor(rows)).last_hidden_state.float().mean(dim=1).numpy()
    np.testing.assert_allclose(encoder.embed(rows, encoder.sizes)[SIZE], expected, rtol=0, atol=1e-5)
    whole = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    half = NestedEncoder.from_pretrained(tmp_path, device="cpu", weights_dtype=torch.float16, layers=2)
    assert half.fingerprint(2) == whole.fingerprint(2)
    assert [encoder.fingerprint(layer) for layer in range(5)] == [whole.fingerprint(layer) for layer in range(5)]


def test_a_model_with_maps_and_one_with_a_prefix_have_the_fingerprint_of_the_stored_weights(tmp_path):
    encoder, _ = fitted(load(save_model(tmp_path / "fitted")))
    encoder.save_pretrained(tmp_path / "fitted")
    half = NestedEncoder.from_pretrained(tmp_path / "fitted", weights_dtype=torch.bfloat16, layers=2)
    assert half.fingerprint(2) == encoder.fingerprint(2)
    exact = encoder.encode(texts(5), "0:8,2:8")
    close = half.encode(texts(5), "0:8,2:8")
    np.testing.assert_array_equal(close[Size(0, 8)], exact[Size(0, 8)])
    np.testing.assert_allclose(close[Size(2, 8)], exact[Size(2, 8)], rtol=0, atol=0.05)
    save_model(tmp_path / "head")
    BertForMaskedLM.from_pretrained(tmp_path / "head").save_pretrained(tmp_path / "head")  # names begin with "bert."
    whole = NestedEncoder.from_pretrained(tmp_path / "head").fingerprint(4)
    assert NestedEncoder.from_pretrained(tmp_path / "head", weights_dtype=torch.float16).fingerprint(4) == whole


def test_encode_records_it_and_does_not_mix_it_with_other_precisions(tiny_bert, corpus, tmp_path, capfd):
    out = encode(tiny_bert, corpus, tmp_path / "half", "--weights_dtype bfloat16 --sizes 4:32")
    assert read_manifest(out / "L4-D32").spec.compute_dtype == "bfloat16"
    plain = encode(tiny_bert, corpus, tmp_path / "plain", "--dtype bf16 --sizes 4:32")
    ours, other = (open_store(str(folder), SIZE).vectors(np.arange(20)) for folder in (out, plain))
    assert not np.array_equal(ours, other)
    np.testing.assert_allclose(ours, other, rtol=0, atol=0.05 * np.abs(other).max())
    encode(tiny_bert, corpus, out, "--weights_dtype bfloat16 --sizes 4:32")  # complete: kept
    encode(tiny_bert, corpus, out, "--sizes 4:32", code=2)
    assert "add --weights_dtype bfloat16" in capfd.readouterr().err
    encode(tiny_bert, corpus, plain, "--weights_dtype bfloat16 --sizes 4:32", code=2)
    assert "bfloat16" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--weights_dtype bfloat16 --dtype fp32", "weights in bfloat16 are not computed in fp32"),
        ("--weights_dtype bfloat16 --dtype int8 --backend auto", "not computed in int8"),
        ("--weights_dtype bfloat16 --backend onnx", "needs --backend torch"),
        ("--weights_dtype float16", "CPUs do not support fp16"),
        ("--weights_dtype float64", "float64"),
    ],
)
@pytest.mark.parametrize("dry_run", ["", "--dry_run"])
def test_bad_combinations_are_refused_before_the_model_is_read(corpus, tmp_path, flags, message, dry_run, capfd):
    model = save_model(tmp_path / "model")
    (model / "model.safetensors").unlink()
    encode(model, corpus, tmp_path / "out", f"{flags} {dry_run}", code=2)
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_back_ends_need_float32(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert, weights_dtype=torch.bfloat16, device="cpu")
    for name in ("onnx", "openvino"):
        with pytest.raises(UserError, match="needs weights in float32"):
            open_backend(name, encoder, encoder.sizes)
    assert open_backend("torch", encoder, encoder.sizes, "bf16").name == "bfloat16"


def test_mine_uses_it(tiny_bert, tmp_path):
    def engine(**flags):
        arguments = MineArguments(
            model_name_or_path=str(tiny_bert),
            dataset_path="g",
            output_path=str(tmp_path / "o.jsonl"),
            device="cpu",
            **flags,
        )
        return BiEncoder(arguments.model_name_or_path, arguments.model_size, arguments)

    half, whole = engine(weights_dtype="bfloat16"), engine(dtype="bf16")
    assert (half.identity["dtype"], whole.identity["dtype"]) == ("bfloat16", "bf16")
    assert half.identity["fingerprint"] == whole.identity["fingerprint"]
    found, expected = (one.queries(["w1 w2", "w5"], "queries") for one in (half, whole))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * np.abs(expected).max())
    with pytest.raises(UserError, match="not computed in fp32"):
        engine(weights_dtype="bfloat16", dtype="fp32")
