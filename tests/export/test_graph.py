"""export to ONNX and OpenVINO: the files run alone and give our own embeddings."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import slow_except
from export.exports import SIZE, model_of, run, run_card, some_texts
from transformers import AutoTokenizer

from starbucks_retrieval import Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.export.__main__ import main
from starbucks_retrieval.models import EncoderConfig


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rng = np.random.default_rng(1)
    rows = [
        {"_id": str(i), "title": "w7", "text": " ".join(f"w{k}" for k in rng.integers(0, 95, 12))} for i in range(310)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def batch_of(folder: Path, texts: list[str]) -> dict[str, np.ndarray]:
    batch = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, truncation=True, max_length=20, return_tensors="np"
    )
    return {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize(
    ("family", "pooling", "size"),  # the time of a conversion grows with the layers
    slow_except(
        [("bert", "mean", Size(1, 12))],
        [("bert", "mean", Size(1, 12)), ("bert", "mean", SIZE), ("llama", "last", SIZE)],
    ),
    ids=str,
)
def test_onnx_runtime_gives_our_embeddings(tmp_path, family, pooling, size):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder = model_of(tmp_path / "model", family, pooling=pooling, normalize=True, passage_prefix="w5 ")
    run(encoder, tmp_path / "out", "onnx", str(size))
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["embedding"], batch_of(tmp_path / "out", [f"w5 {text}" for text in some_texts()]))
    np.testing.assert_allclose(found, encoder.encode(some_texts(), size)[size], atol=1e-5)
    config = EncoderConfig.load(tmp_path / "out/starbucks.json")
    assert (str(config.sizes), config.passage_prefix, config.passage_max_len) == (str(size), "w5 ", 20)
    assert json.loads((tmp_path / "out/export.json").read_text())["packages"]["onnx"]
    card = run_card(tmp_path / "out")["passages"]
    np.testing.assert_allclose(card, encoder.encode(["a passage"], size)[size], atol=1e-5)


@pytest.mark.slow
def test_openvino_gives_our_embeddings(tmp_path):
    openvino = pytest.importorskip("openvino")
    encoder = model_of(tmp_path / "model", pooling="mean", normalize=True, passage_prefix="w5 ")
    run(encoder, tmp_path / "out", "openvino")
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(str(tmp_path / "out/openvino_model.xml"), "CPU", exact)
    found = model(batch_of(tmp_path / "out", [f"w5 {text}" for text in some_texts()]))["embedding"]
    np.testing.assert_allclose(found, encoder.encode(some_texts(), SIZE)[SIZE], atol=1e-5)
    card = run_card(tmp_path / "out")["passages"]
    np.testing.assert_allclose(card, encoder.encode(["a passage"], SIZE)[SIZE], atol=0.02)  # perhaps in bfloat16


@pytest.mark.slow
def test_int8_is_near_and_smaller_and_says_what_it_was_scaled_on(tmp_path, corpus, monkeypatch):
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    encoder = model_of(tmp_path / "model", pooling="mean", normalize=True)
    run(encoder, tmp_path / "plain", "openvino")
    monkeypatch.setattr("starbucks_retrieval.export.api.CALIBRATION_TEXTS", 20)  # NNCF takes its time a text
    figures = run(encoder, tmp_path / "out", "openvino", int8=True, calibration_path=str(corpus))
    assert figures["calibration_texts"] == 20
    assert "set on 20 texts" in (tmp_path / "out/README.md").read_text()
    weights = [(tmp_path / folder / "openvino_model.bin").stat().st_size for folder in ("out", "plain")]
    assert weights[0] < 0.6 * weights[1]
    model = openvino.Core().compile_model(str(tmp_path / "out/openvino_model.xml"), "CPU")
    found = model(batch_of(tmp_path / "out", some_texts()))["embedding"]
    assert (found * encoder.encode(some_texts(), SIZE)[SIZE]).sum(axis=1).mean() > 0.95
    assert json.loads((tmp_path / "out/export.json").read_text())["configuration"]["calibration_path"] == "corpus.jsonl"


def test_calibration_reads_passages_as_encode_does(tmp_path, corpus, monkeypatch):
    pytest.importorskip("nncf")
    encoder = model_of(tmp_path / "model", passage_prefix="w5 ", passage_field_separator=" w6 ", passage_max_len=9)
    seen = []

    def write_openvino(encoder, size, folder, calibration=None):
        seen.extend(calibration)

    monkeypatch.setattr("starbucks_retrieval.models.backends.openvino.write_openvino", write_openvino)
    run(encoder, tmp_path / "out", "openvino", int8=True, calibration_path=str(corpus))
    first = json.loads(corpus.read_text().splitlines()[0])["text"]
    assert seen[0] == encoder.tokenize([f"w5 w7 w6 {first}"], 9)[0]
    assert len(seen) == 300
    # The tokenizer is saved before that: a truncation to 9 tokens is not part of it.
    assert json.loads((tmp_path / "out/tokenizer.json").read_text())["truncation"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("", "holds no passages"),
        ('{"_id": "1", "text": "w1"}\n{oops\n', r"corpus\.jsonl:2"),
    ],
)
def test_bad_calibration_texts_write_nothing(tmp_path, capfd, content, message):
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    encoder = model_of(tmp_path / "model")
    texts = tmp_path / "corpus.jsonl"
    if content is not None:
        texts.write_text(content)
    base = ["--model_name_or_path", encoder.name, "--to", "openvino", "--output_dir", str(tmp_path / "out")]
    assert run_command(main, [*base, "--size", "2:8", "--int8", "--calibration_path", str(texts)]) == 2
    assert re.search(message, capfd.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "absent", "extra"),
    [
        (["--to", "onnx"], "onnxscript", "[onnx]"),
        (["--to", "openvino"], "openvino", "[openvino]"),
        (["--to", "openvino", "--int8", "--calibration_path", "corpus.jsonl"], "nncf", "[openvino]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, capfd, flags, absent, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").touch()
    base = ["--model_name_or_path", "anything", "--size", "2:8", "--output_dir", str(tmp_path / "out")]
    assert run_command(main, [*base, *flags]) == 2
    error = capfd.readouterr().err
    assert f"the package {absent}" in error and extra in error
    assert not (tmp_path / "out").exists()
