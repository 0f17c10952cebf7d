"""encode --dry_run: figures that the real run then keeps to, refusals, and nothing written."""

from __future__ import annotations

import json

import pytest
from fitted_models import fitted, load
from small_stores import make_0_1

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode.__main__ import main
from starbucks_retrieval.models import info
from starbucks_retrieval.models.architectures import count_parameters
from starbucks_retrieval.store import open_store


@pytest.fixture
def job(tiny_bert, tmp_path, monkeypatch):
    """The flags of a job over 50 passages, in an empty folder."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{i}", "text": "w1 w2 w3"}) + "\n" for i in range(50)))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(info.ModelInfo, "layer_seconds", lambda *_: 1e-3)
    return ["--model_name_or_path", str(tiny_bert), "--dataset_path", str(corpus), "--encode_output_path", "emb"]


def previewed(capsys, *argv):
    assert run_command(main, [*argv, "--dry_run", "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_it_says_is_what_is_written(job, tmp_path, capsys):
    sizes = ["--sizes", "1:4,3:32", "--shard_size", "20", "--store_dtype", "float32", "--dtype", "fp32"]
    told = previewed(capsys, *job, *sizes)
    assert not list((tmp_path / "here").iterdir())
    assert (told["texts"], told["rows"], told["layers"], told["mean_tokens"]) == (50, 50, 3, 5.0)
    assert told["seconds"] == pytest.approx(50 * 5 * 3 * 1e-3)
    assert told["bytes"] == 50 * 4 * (4 + 32)
    assert [store["state"] for store in told["stores"]] == ["new", "new"]
    assert run_command(main, [*job, *sizes, "--quiet"]) == 0
    for one in told["stores"]:
        store = open_store(one["folder"])
        assert (str(store.spec.size), store.spec.shards) == (one["size"], one["shards"])
        vectors = sum(path.stat().st_size - 128 for path in (tmp_path / "here" / one["folder"]).glob("*.vectors.npy"))
        assert vectors == one["bytes"]
    assert previewed(capsys, *job, *sizes)["stores"][0]["state"].startswith("complete")
    assert previewed(capsys, *job, *sizes, "--overwrite")["stores"][0]["state"] == "replaced"
    (tmp_path / "here" / told["stores"][0]["folder"] / "00001.json").unlink()
    make_0_1(tmp_path / "here" / told["stores"][0]["folder"], complete=False)
    assert previewed(capsys, *job, *sizes)["stores"][0]["state"].startswith("2 of 3 shards there")


def test_parameters_are_those_of_the_model_cut_there(tiny_bert):
    shape = info.model_info(str(tiny_bert))
    for layers in (1, 4):
        cut = NestedEncoder.from_pretrained(tiny_bert, layers=layers).backbone
        assert shape.parameters(layers) == sum(weight.numel() for weight in cut.parameters())
        assert shape.backbone_parameters(layers) == shape.parameters(layers)
    assert (shape.num_layers, shape.hidden_size, shape.token_limit) == (4, 32, 60)


def test_parameters_of_a_fitted_model_count_its_map(tiny_bert, tmp_path):
    encoder = fitted(load(tiny_bert))[0]
    encoder.save_pretrained(tmp_path)
    shape = info.model_info(str(tmp_path))
    for size in (Size(0, 8), Size(0, 32), Size(1, 8), Size(4, 32)):
        whole = count_parameters(encoder, size)
        assert shape.parameters(size.layer) == whole
        # The rotation of the last layer has no bias; the others take the token table, which is not cut.
        width = 0 if size.layer == 0 else 32 if size.layer == 4 else 65
        cut = whole * size.dim // 32 if size.layer == 0 else whole - (32 - size.dim) * width
        assert shape.parameters(size.layer, size.dim) == cut
    (tmp_path / "projections.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="damaged"):
        shape.parameters(1)
    (tmp_path / "projections.safetensors").unlink()
    with pytest.raises(UserError, match="lacks projections"):
        shape.parameters(1)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "modernbert", "distilbert", "qwen3"])
def test_layers_of_every_kind_can_be_timed(tmp_path, family, ticking):
    from conftest import save_model

    shape = info.model_info(str(save_model(tmp_path / family, family)))
    timed = min(4, info._TIMED_LAYERS)
    assert shape.layer_seconds(12, 48, "cpu", None, budget=0.0) == pytest.approx(1 / (4 * 12 * timed))


def test_a_part_of_queries_and_what_is_not_timed(job, tmp_path, capsys):
    (tmp_path / "queries.tsv").write_text("".join(f"q{i}\tw1 w2\n" for i in range(7)))
    job[3] = str(tmp_path / "queries.tsv")
    parts = ["--dataset_number_of_shards", "3", "--dataset_shard_index", "2", "--encode_is_query"]
    told = previewed(capsys, *job, *parts, "--backend", "onnx")
    assert (told["texts"], told["rows"], told["seconds"]) == (7, 3, None)
    assert "part-00002-of-00003" in told["stores"][0]["folder"]


def test_the_models_own_settings_count(tiny_bert, job, tmp_path, capsys):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = encoder.config.__class__(Sizes.parse("2:8,4:32"), passage_max_len=4)
    encoder.save_pretrained(tmp_path / "model")
    job[1] = str(tmp_path / "model")
    told = previewed(capsys, *job)
    assert ([store["size"] for store in told["stores"]], told["mean_tokens"]) == (["2:8", "4:32"], 4.0)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--sizes", "9:8"], "9:8"),
        (["--dataset_path", "nope.jsonl"], "nope.jsonl"),
        (["--passage_max_len", "500"], "beyond this model's 60"),
        (["--dataset_number_of_shards", "2", "--dataset_shard_index", "2"], "not one of 2 parts"),
        (["--sizes", "2:8", "--layer", "2"], "contradict"),
    ],
)
def test_refusals(job, capsys, more, what):
    assert run_command(main, [*job, *more, "--dry_run"]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_layer_0_is_a_look_up_in_float32(tiny_bert, job, tmp_path, capsys, ticking, backend):
    fitted(load(tiny_bert))[0].save_pretrained(tmp_path / "model")
    job[1] = str(tmp_path / "model")
    told = previewed(capsys, *job, "--sizes", "0:8,0:16", "--backend", backend, "--dtype", "auto")
    assert (told["layers"], told["parameters"], told["runtime"]) == (0, 100 * 32, "torch, fp32")
    assert told["seconds"] == pytest.approx(1.0)  # a tick for the sample, which has all 50 texts
    assert [store["bytes_per_text"] for store in told["stores"]] == [16, 32]
    assert run_command(main, [*job, "--sizes", "0:8", "--backend", backend, "--quiet"]) == 0
    capsys.readouterr()
    assert open_store("emb/L0-D8").spec.compute_dtype == "fp32"


def test_text_for_a_terminal(job, capsys):
    assert run_command(main, [*job, "--sizes", "2:8", "--dry_run"]) == 0
    out, err = capsys.readouterr()
    assert "50 passages in" in out and "16 bytes a text, to emb/L2-D8 (new)" in out and "about 1 s" in out
    assert "nothing was written" in err
