"""train and fit of models with modules after pooling: the modules are trained, saved, resumed and written again."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from fitted_models import texts
from head_models import save_with_head
from safetensors.torch import load_file

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.fit.__main__ import main as fit_main
from starbucks_retrieval.pretrain.__main__ import main as pretrain_main
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.save import save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("head") / "model"
    save_with_head(folder, "narrow", include_prompt=False)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Rows to train on, which are a corpus too."""
    path = tmp_path_factory.mktemp("corpus") / "rows.jsonl"
    rows = texts(120, seed=5)
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps({"query": row[:8], "positive": row, "negative": [rows[0]]}) + "\n")
    (path.parent / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": str(i), "text": r}) + "\n" for i, r in enumerate(rows))
    )
    return path


def train(model, corpus, output, flags):
    common = "--per_device_train_batch_size 8 --learning_rate 1e-3 --use_cpu --dropout 0 --quiet --train_group_size 2"
    argv = f"--model_name_or_path {model} --dataset_path {corpus} --output_dir {output} {common} {flags}".split()
    assert run_command(main, argv) == 0
    return output


def weights(folder):
    return {path.parent.name: load_file(path) for path in sorted(folder.glob("[23]_*/model.safetensors"))}


def test_the_modules_are_trained_and_resumed(model, corpus, tmp_path):
    steps = "--max_steps 4 --save_steps 2 --logging_steps 1 --sizes 2:8,4:12"
    out = train(model, corpus, tmp_path / "out", steps)
    start, end = weights(model), weights(out)
    assert start.keys() == end.keys() == {"2_LayerNorm", "3_Dense"}
    assert all(not torch.equal(start[module][name], end[module][name]) for module in start for name in start[module])
    encoder = NestedEncoder.from_pretrained(out)
    assert encoder.config.head == ("2_LayerNorm", "3_Dense") and not encoder.config.include_prompt
    resumed = train(out / "checkpoint-2", corpus, tmp_path / "other", "--max_steps 1 --sizes 2:8")  # a model folder
    assert weights(resumed).keys() == start.keys()
    shutil.rmtree(out / "checkpoint-4")
    for name in ("model.safetensors", "3_Dense/model.safetensors"):
        (out / name).unlink()
    train(model, corpus, out, f"{steps} --resume_from_checkpoint {out / 'checkpoint-2'}")
    again = weights(out)
    assert again.keys() == end.keys()
    for module, found in again.items():
        for name, tensor in found.items():
            assert torch.equal(tensor, end[module][name])


@pytest.mark.slow
def test_lora_trains_the_modules_too(model, corpus, tmp_path):
    pytest.importorskip("peft")
    out = train(model, corpus, tmp_path / "out", "--max_steps 2 --lora --sizes 4:12")
    assert not torch.equal(weights(out)["3_Dense"]["linear.weight"], weights(model)["3_Dense"]["linear.weight"])


def test_gathered_weights_are_saved_in_place_of_the_modules_own(model, tmp_path):
    from types import SimpleNamespace

    encoder = NestedEncoder.from_pretrained(model)
    module = SimpleNamespace(encoder=encoder, lora_scale=0.0)
    state = {f"encoder.{name}": weight + 1 for name, weight in encoder.state_dict().items()}
    save_model(module, tmp_path / "saved", state)
    found, before = weights(tmp_path / "saved"), weights(model)
    torch.testing.assert_close(found["3_Dense"]["linear.bias"], before["3_Dense"]["linear.bias"] + 1)


@pytest.mark.slow
def test_fit_writes_the_modules_again(model, corpus, tmp_path):
    out = tmp_path / "fitted"
    argv = f"--model_name_or_path {model} --dataset_path {corpus.parent / 'corpus.jsonl'} --output_dir {out} --quiet"
    assert run_command(fit_main, argv.split()) == 0
    plain, found = NestedEncoder.from_pretrained(model), NestedEncoder.from_pretrained(out)
    full = Size(4, 12)
    before, after = (encoder.encode(texts(10), [full])[full] for encoder in (plain, found))
    np.testing.assert_allclose(after @ after.T, before @ before.T, rtol=0, atol=1e-5)
    assert run_command(fit_main, [*argv.split(), "--overwrite_output_dir"]) == 0
    assert NestedEncoder.from_pretrained(out).fingerprint(2) == found.fingerprint(2)


def test_pretrain_refuses_them(model, corpus, tmp_path, capfd):
    argv = f"--model_name_or_path {model} --dataset_path {corpus.parent / 'corpus.jsonl'} --output_dir {tmp_path / 'p'}"
    assert run_command(pretrain_main, [*argv.split(), "--max_steps", "1", "--use_cpu"]) == 2
    assert "modules after pooling (2_LayerNorm, 3_Dense)" in capfd.readouterr().err


@pytest.mark.slow
def test_sentence_transformers_reads_the_trained_folder(model, corpus, tmp_path):
    from sentence_transformers import SentenceTransformer

    out = train(model, corpus, tmp_path / "out", "--max_steps 1 --sizes 2:8,4:12")
    encoder, theirs = NestedEncoder.from_pretrained(out), SentenceTransformer(str(out), device="cpu")
    ours = encoder.encode(texts(6), "4:12", is_query=True)[Size(4, 12)]
    np.testing.assert_allclose(theirs.encode_query(texts(6)), ours, rtol=0, atol=1e-6)
    fitted = tmp_path / "fitted"
    argv = f"--model_name_or_path {out} --dataset_path {corpus.parent / 'corpus.jsonl'} --output_dir {fitted} --quiet"
    assert run_command(fit_main, argv.split()) == 0
    theirs = SentenceTransformer(str(fitted), device="cpu")
    ours = NestedEncoder.from_pretrained(fitted).encode(texts(6), "4:12")[Size(4, 12)]
    np.testing.assert_allclose(theirs.encode_document(texts(6)), ours, rtol=0, atol=1e-6)
