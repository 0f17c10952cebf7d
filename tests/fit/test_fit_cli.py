"""starbucks fit: the folder that it writes, resuming, refusals and the dry run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import save_model
from fit.conftest import make_texts
from safetensors.torch import load_file, save_file

from starbucks_retrieval.fit import FitArguments, fit, plan
from starbucks_retrieval.fit.card import grid_table
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.models import EncoderConfig, NestedEncoder
from starbucks_retrieval.models.fit_report import RECORD
from starbucks_retrieval.sizes import Size, Sizes

FULL = Size(4, 32)


def files(folder):
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_a_fitted_folder_is_a_model_with_useful_small_sizes(run, tiny_bert, tmp_path):
    figures = run()
    out = tmp_path / "out"
    assert figures["texts"] + figures["held_out"] == 80
    assert figures["sources"] == [
        {"name": str(tmp_path.parent / figures["sources"][0]["name"]), "kind": "passages", "texts": 80}
    ]
    assert len(figures["grid"]) == 5 * 2  # layers 0 to 4, dims 16 and 32
    assert (out / "model.safetensors").read_bytes() == (tiny_bert / "model.safetensors").read_bytes()
    assert (out / "config.json").read_bytes() == (tiny_bert / "config.json").read_bytes()
    assert not [name for name in files(out) if name.startswith((".", "fit-"))]
    encoder = NestedEncoder.from_pretrained(out, device="cpu")
    assert [str(size) for size in encoder.sizes] == figures["sizes"]
    original = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    original.config = EncoderConfig(pooling="mean", normalize=True)
    texts = make_texts(20, seed=2)
    before, after = original.encode(texts, str(FULL))[FULL], encoder.encode(texts, str(FULL))[FULL]
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)
    record = json.loads((out / "fit.json").read_text())
    assert record["grid"] == figures["grid"] and record["max_texts"] == 120
    assert "seconds" not in record


def test_the_card_and_the_summary(run, tmp_path, capsys):
    figures = run()
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"usable at {len(figures['sizes'])} sizes" in card
    assert "80 passages of `set`; of these 8 were held out" in card
    assert all(f"| {size} " in card for size in figures["sizes"])
    table = grid_table(figures["grid"], figures["sizes"])
    assert len(table.splitlines()) == 6 and table.count("*") == len(figures["sizes"])


# Each fit runs in a forked process, in chunks of 20 texts with a checkpoint after each, and is killed at a call.
SCRIPT = """
import os, signal, sys
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.fit import FitArguments, api
from starbucks_retrieval.models import NestedEncoder

model, corpus, root = sys.argv[1:]
api.CHUNK, api._CHECKPOINT_SECONDS = 20, -1.0

def killing(real, count):
    calls = 0
    def call(*args, **keywords):
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **keywords)
    return call

def fit(out, add=0, replace=0):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    api.Fitter.add = killing(api.Fitter.add, add)
    write = api._write_model
    def writing(*args):
        os.replace = killing(os.replace, replace)
        write(*args)
    api._write_model = writing
    api.fit(FitArguments(model, f"{root}/{out}/m", dataset_path=[corpus], query_path=[corpus], max_texts=120,
                         pooling="mean", normalize=True, device="cpu"))
    os._exit(0)

def loads(out):
    try:
        NestedEncoder.from_pretrained(f"{root}/{out}/m", device="cpu")
    except UserError:
        return False
    return True

assert fit("whole") == 0 and loads("whole")
assert fit("killed", add=4) == signal.SIGKILL
assert sorted(os.listdir(f"{root}/killed/m")) == [".lock", "fit-checkpoint.safetensors"]
step = 1
while fit("killed", replace=step) == signal.SIGKILL:
    assert not loads("killed"), step
    step += 1
assert loads("killed")
print(step)
"""


@pytest.mark.slow
def test_killed_fits_continue_to_the_same_bytes_and_are_never_half_a_model(tiny_bert, corpus, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tiny_bert), str(corpus), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Weights, tokenizer_config.json, projections, starbucks.json, six files of modules, the card, fit.json and config.json.
    assert int(done.stdout) == 14
    assert files(tmp_path / "killed" / "m") == files(tmp_path / "whole" / "m")


def test_another_job_in_the_folder_is_refused_and_replaced_on_demand(run, corpus, tmp_path, monkeypatch):
    from starbucks_retrieval.fit import api

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(api, "_CHECKPOINT_SECONDS", -1.0)
        patch.setattr(api, "_write_model", stop)
        assert "interrupted" in run()
    assert "unfinished fit with other settings" in run(layers="2")
    assert "unfinished fit with other settings" in run(max_texts=75)
    with (corpus / "corpus.jsonl").open("a") as file:
        file.write("")
    assert run("--overwrite_output_dir", layers="2")["sizes"]
    assert "holds an earlier fit" in run(layers="2")
    assert "holds an earlier fit" in run("--dry_run", layers="2")
    (tmp_path / "out" / "model.safetensors").rename(tmp_path / "out" / "stale.safetensors")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    run("--overwrite_output_dir")
    assert {"notes.txt", "model.safetensors"} <= set(files(tmp_path / "out"))


def test_a_fit_that_was_killed_after_its_last_file_is_not_refused(run, tmp_path):
    before = run()["texts"]
    out = tmp_path / "out"
    lock = FolderLock(out)
    lock.announce(out / RECORD)
    lock.forget()  # as a kill does
    assert run()["texts"] == before and not (out / ".lock").exists()
    assert "holds an earlier fit" in run()


def test_files_of_an_earlier_fit_are_removed(run, tiny_bert, tmp_path):
    run()
    record = tmp_path / "out" / "fit.json"
    content = json.loads(record.read_text())
    assert {"model.safetensors", "projections.safetensors", "tokenizer.json"} <= set(content["files"])
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_text("a shard of another model")
    record.write_text(json.dumps(content | {"files": [*content["files"], "model-00001-of-00002.safetensors"]}))
    run("--overwrite_output_dir")
    assert "model-00001-of-00002.safetensors" not in files(tmp_path / "out")


def test_two_fits_do_not_write_one_folder(run, tmp_path):
    (tmp_path / "out").mkdir()
    lock = FolderLock(tmp_path / "out")
    assert "another process is writing" in run()
    lock.release()
    assert run()["sizes"]


def test_a_damaged_checkpoint_starts_over(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fit-checkpoint.safetensors").write_bytes(b"torn")
    assert "damaged; the fit starts over" in run()["log"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dataset_path": None}, "no texts to fit on"),
        ({"layers": "1,7"}, "no layer 7 in a model of 4 layers"),
        ({"layers": "a"}, "cannot read --layers"),
        ({"sizes": "9:8"}, "9:8"),
        ({"sizes": "1:8", "layers": "2"}, "no projection for layer 1, only for 2, 4"),
        ({"sizes": "all"}, "needs a model that stores its sizes"),
        ({"max_texts": "20"}, "20 texts are too few: the maps of this model need 36"),
        ({"max_texts": "0"}, "--max_texts 0 is below 1"),
        ({"dtype": "fp16"}, "CPUs do not support fp16"),
        ({"passage_max_len": "500"}, "a length of 500 tokens is beyond this model's 60"),
        ({"dataset_path": "missing.jsonl"}, "missing.jsonl"),
    ],
)
def test_refusals_before_anything_is_encoded(run, tmp_path, monkeypatch, changes, what):
    monkeypatch.setattr(NestedEncoder, "from_pretrained", lambda *_, **__: pytest.fail("the weights were read"))
    assert what in run(**changes)
    assert what in run("--dry_run", **changes)
    assert not (tmp_path / "out").exists()


def test_the_number_of_texts_needed_is_said(run, tmp_path):
    path = tmp_path / "few.txt"
    path.write_text("\n".join(make_texts(30)))
    error = run(dataset_path=path, max_texts=None)
    assert "30 texts are too few: the maps of this model need 36" in error and "better 360" in error
    error = run("--concat_layers", max_texts=90)
    assert "80 texts are too few: the maps of concatenated layers need 107" in error


def test_the_model_itself_is_no_output(run, tiny_bert, tmp_path):
    assert "is the model that is to be fitted" in run(output_dir=tiny_bert)
    (tmp_path / "file").write_text("")
    assert "is a file" in run(output_dir=tmp_path / "file")
    assert "no earlier fit wrote it" in run(output_dir=tmp_path)


def test_a_model_of_nan_is_refused_before_the_texts_are_read(run, tiny_bert, tmp_path, monkeypatch):
    from starbucks_retrieval.fit import api

    broken = tmp_path / "nan"
    shutil.copytree(tiny_bert, broken)
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if "layer.3.output.dense.weight" in name)
    save_file(
        weights | {name: torch.full_like(weights[name], float("nan"))}, broken / "model.safetensors", {"format": "pt"}
    )
    monkeypatch.setattr(api.Fitter, "add", lambda *_: pytest.fail("a text was encoded"))
    assert "not finite" in run(model_name_or_path=broken)
    assert not (tmp_path / "out").exists()


def test_an_unsupported_architecture_is_refused(run, tmp_path):
    from transformers import GPT2Config

    GPT2Config(n_layer=1, n_head=2, n_embd=8).save_pretrained(tmp_path / "gpt2")
    assert "gpt2" in run(model_name_or_path=tmp_path / "gpt2")


@pytest.mark.slow
def test_a_decoder_is_fitted_with_last_token_pooling(run, tmp_path):
    figures = run(model_name_or_path=save_model(tmp_path / "qwen3", "qwen3"), pooling=None, normalize=None)
    encoder = NestedEncoder.from_pretrained(figures["output"], device="cpu")
    assert encoder.config.pooling == "last" and not encoder.config.normalize
    assert encoder.encode(["w1 w2"], "0:16,2:16")[Size(0, 16)].any()


def test_an_encoder_that_finds_no_halves_gets_a_warning(run, monkeypatch):
    from starbucks_retrieval.fit import api

    monkeypatch.setattr(api, "half_agreement", lambda *_: (0.25, 0.5))
    assert "finds the other half of a text for 25 %" in run()["log"]
    monkeypatch.setattr(api, "half_agreement", lambda *_: (0.75, 0.5))
    assert "the other half" not in run("--overwrite_output_dir")["log"]


def test_halves_of_texts_that_share_words_are_found(tiny_bert):
    from starbucks_retrieval.fit.api import half_agreement

    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    full, means = half_agreement(encoder, make_texts(30))
    assert means > 0.9
    assert 0 <= full <= 1
    assert half_agreement(encoder, ["w1 w2"]) == (1.0, 0.0)


def test_chosen_layers_and_sizes(run, tmp_path):
    assert run(layers="0,2", sizes="0:8,2:32,4:32")["sizes"] == ["0:8", "2:32", "4:32"]
    encoder = NestedEncoder.from_pretrained(tmp_path / "out", device="cpu")
    assert encoder.config.projected_layers == (0, 2, 4)
    assert encoder.sizes == Sizes.parse("0:8,2:32,4:32")


def test_concatenated_layers(run, corpus, tmp_path):
    run("--concat_layers", "--table_input", "false", query_path=corpus)
    encoder = NestedEncoder.from_pretrained(tmp_path / "out", device="cpu")
    assert encoder.projections.map(3).inputs == (1, 2, 3)


def test_maps_without_the_table(run, tmp_path):
    run("--table_input", "false")
    assert NestedEncoder.from_pretrained(tmp_path / "out", device="cpu").projections.map(3).inputs == (3,)


def test_no_more_texts_are_read_than_are_used(run, monkeypatch):
    monkeypatch.setattr(plan, "MAX_TEXTS", 75)
    figures = run(max_texts=78)
    assert figures["max_texts"] == 75 and "reading 75 texts: more would not change" in figures["log"]


@pytest.mark.slow
def test_a_fitted_model_is_fitted_again_from_its_backbone(run, tiny_bert, tmp_path):
    run()
    again = run(model_name_or_path=tmp_path / "out", output_dir=tmp_path / "again", pooling=None, normalize=None)
    first, second = (
        NestedEncoder.from_pretrained(tmp_path / name, device="cpu").projections.space for name in ("out", "again")
    )
    assert first == second
    assert again["grid"] == json.loads((tmp_path / "out" / "fit.json").read_text())["grid"]


def test_a_dry_run_says_what_is_then_done(run, corpus, tmp_path):
    told = run("--dry_run", query_path=corpus)
    assert not (tmp_path / "out").exists()
    done = run(query_path=corpus)
    assert [(s["name"], s["kind"], s["texts"]) for s in told["sources"]] == [
        (s["name"], s["kind"], s["texts"]) for s in done["sources"]
    ]
    assert told["layers"] == [0, 1, 2, 3, 4] and told["texts_needed"] == 36
    out = tmp_path / "out"
    written = (out / "model.safetensors").stat().st_size + (out / "projections.safetensors").stat().st_size
    assert told["bytes"] == pytest.approx(written, rel=0.25)
    assert told["bytes_of_maps"] == pytest.approx((out / "projections.safetensors").stat().st_size, rel=0.1)
    assert told["seconds"] > 0


def test_the_default_number_of_texts_is_told(run, ticking):
    figures = run(max_texts=None)
    assert f"--max_texts {figures['max_texts']}: about" in figures["log"]
    assert figures["max_texts"] >= 320


def test_the_python_function(tiny_bert, corpus, tmp_path):
    out = os.fspath(tmp_path / "out")
    figures = fit(FitArguments(str(tiny_bert), out, dataset_path=[str(corpus)], max_texts=80, device="cpu"))
    assert figures["texts"] == 72
