"""export, fit and train of models with modules after pooling, and of models that leave prompts out of the mean."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest
from conftest import slow_except
from export.exports import run
from fitted_models import fitted, texts
from head_models import save_with_head

from starbucks_retrieval import NestedEncoder, Size, UserError
from starbucks_retrieval.models.backends.graph import EmbeddingGraph
from starbucks_retrieval.models.batching import pad

KINDS = {"dense": ["Dense", "Dense"], "layer-norm": ["LayerNorm"], "narrow": ["LayerNorm", "Dense"], "none": []}


def model_of(folder, head, fit=False):
    """A model with a head, saved as our own folder; its name is its folder."""
    save_with_head(folder, head, include_prompt=False)
    encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    if fit:
        encoder, _ = fitted(encoder, table_input=False)
    shutil.rmtree(folder)
    encoder.save_pretrained(folder)
    encoder.name = str(folder)
    return encoder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`model_of` in a folder of its own, once for equal arguments."""
    return cache(lambda *kind: model_of(tmp_path_factory.mktemp("models") / "model", *kind))


@pytest.mark.parametrize(
    ("head", "size", "fit"),
    slow_except(
        [("narrow", Size(2, 8), True), ("dense", Size(4, 12), False)],
        [(head, size, fit) for head in KINDS for size in (Size(2, 8), Size(4, 12)) for fit in (True, False)],
    ),
    ids=str,
)
def test_sentence_transformers_gives_our_embeddings(made, tmp_path, head, size, fit):
    from sentence_transformers import SentenceTransformer

    encoder = made(head, fit)
    run(encoder, tmp_path / "out", "sentence-transformers", str(size))
    modules = [entry["type"].rsplit(".", 1)[1] for entry in json.loads((tmp_path / "out/modules.json").read_text())]
    assert modules[2 : 2 + len(KINDS[head])] == KINDS[head]
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    for is_query, encode in ((True, theirs.encode_query), (False, theirs.encode_document)):
        ours = encoder.encode(texts(8), [size], is_query=is_query)[size]
        np.testing.assert_allclose(encode(texts(8), batch_size=3), ours, rtol=0, atol=1e-6)


def test_transformers_is_refused(made, tmp_path):
    encoder = made("dense", False)
    with pytest.raises(UserError, match=r"modules after pooling \(2_Dense, 3_Dense\)"):
        run(encoder, tmp_path / "out", "transformers", "4:32")


@pytest.mark.parametrize("to", ["torch", *(pytest.param(to, marks=pytest.mark.slow) for to in ("onnx", "openvino"))])
def test_graphs_hold_the_head_and_leave_out_prompts(made, tmp_path, to):
    encoder, size = made("narrow", False), Size(3, 8)
    rows = encoder.tokenize(["w3 w4 w5 w6", "w3 w5", "w9 w9 w1 w2 w3", "w1"], 20)
    expected = encoder.embed(rows, encoder.check([size]))[size]
    if to == "torch":  # the graph that is converted, which takes seconds
        graph = EmbeddingGraph(encoder, size)(**pad(rows, encoder.tokenizer.pad_token_id))
        np.testing.assert_allclose(graph.detach(), expected, rtol=0, atol=1e-5)
        return
    pytest.importorskip("onnxruntime" if to == "onnx" else "openvino")
    run(encoder, tmp_path / "out", to, str(size))
    batch = encoder.tokenizer.pad({"input_ids": rows}, return_tensors="np")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
        (found,) = session.run(["embedding"], inputs)
    else:
        import openvino

        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        found = openvino.Core().compile_model(tmp_path / "out" / "openvino_model.xml", "CPU", exact)(inputs)[
            "embedding"
        ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert "head" not in json.loads((tmp_path / "out" / "starbucks.json").read_text())


@pytest.mark.slow
def test_int8_leaves_the_head_in_fp32(tmp_path):
    pytest.importorskip("nncf")
    from starbucks_retrieval.models.backends import openvino

    encoder = model_of(tmp_path / "model", "dense", fit=True)
    graph = EmbeddingGraph(encoder, Size(2, 8))
    assert len(openvino._maps(openvino.convert(graph), graph)) == 3
