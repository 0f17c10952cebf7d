"""Models that compute the same embeddings have one fingerprint, and others have different ones."""

import json
import shutil

import numpy as np
import pytest
from conftest import FAMILIES, save_model, slow_except
from small_stores import make_0_1

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.search.__main__ import main as search
from starbucks_retrieval.store import open_store
from starbucks_retrieval.store.layout import read_manifest


def edited(model, folder, **changes):
    """Copy a model with other values in its config.json; None removes a key."""
    shutil.copytree(model, folder)
    content = json.loads((folder / "config.json").read_text()) | changes
    content = {key: value for key, value in content.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def prints(model, **options):
    encoder = NestedEncoder.from_pretrained(model, device="cpu", **options)
    return [encoder.fingerprint(layer) for layer in range(1, encoder.num_layers + 1)]


@pytest.mark.parametrize(
    "change",
    slow_except(
        [{"layer_norm_eps": 0.5}, {"is_decoder": True}],
        [{"layer_norm_eps": 0.5}, {"hidden_act": "relu"}, {"num_attention_heads": 2}, {"is_decoder": True}],
    ),
)
def test_settings_that_change_embeddings(tiny_bert, tmp_path, change):
    other = edited(tiny_bert, tmp_path / "other", **change)
    vectors = [NestedEncoder.from_pretrained(m).encode(["w1 w2 w3"], "2:32") for m in (tiny_bert, other)]
    assert not np.allclose(*(next(iter(own.values())) for own in vectors))
    assert not set(prints(tiny_bert)) & set(prints(other))


def test_settings_of_rotations(tmp_path):
    model = save_model(tmp_path / "llama", "llama")
    rope = {"rope_type": "default", "rope_theta": 77.0}
    assert not set(prints(model)) & set(prints(edited(model, tmp_path / "other", rope_parameters=rope)))


def test_truncation_at_the_other_end_is_another_model(tiny_bert, tmp_path):
    left = tmp_path / "left"
    shutil.copytree(tiny_bert, left)
    settings = json.loads((left / "tokenizer_config.json").read_text()) | {"truncation_side": "left"}
    (left / "tokenizer_config.json").write_text(json.dumps(settings))
    assert not set(prints(tiny_bert)) & set(prints(left))


def test_settings_that_change_nothing(tiny_bert, tmp_path):
    changes = {
        "_name_or_path": "elsewhere",
        "architectures": ["BertForMaskedLM"],
        "transformers_version": "4.0.0",
        "dtype": "float16",
        "hidden_dropout_prob": 0.5,
        "attention_probs_dropout_prob": 0.5,
        "classifier_dropout": 0.3,
        "use_cache": False,
        "id2label": {"0": "no", "1": "yes", "2": "maybe"},
        "label2id": {"no": 0, "yes": 1, "maybe": 2},
        "initializer_range": 0.5,
        "eos_token_id": 3,
        "gradient_checkpointing": False,
        "hidden_act": None,  # where the default says the same
        "layer_norm_eps": None,
    }
    assert prints(edited(tiny_bert, tmp_path / "other", **changes)) == prints(tiny_bert)
    assert prints(tiny_bert, attn_implementation="eager", dropout=0.0) == prints(tiny_bert)


@pytest.mark.parametrize("family", slow_except(["modernbert"], FAMILIES))
def test_a_model_saved_with_fewer_layers(family, tmp_path):
    model = save_model(tmp_path / "whole", family)
    NestedEncoder.from_pretrained(model, layers=3).save_pretrained(tmp_path / "cut")
    whole = prints(model)
    assert len(set(whole)) == 4
    assert prints(tmp_path / "cut") == prints(model, layers=3) == whole[:3]
    assert prints(tmp_path / "cut", layers=1) == whole[:1]


def test_search_refuses_queries_of_the_model_before_its_settings_were_edited(tiny_bert, tmp_path, capsys):
    other = edited(tiny_bert, tmp_path / "other", layer_norm_eps=0.5)
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "w{i} w9"}}\n' for i in range(3)))
    common = {"dataset_path": str(tmp_path / "texts.jsonl"), "sizes": "2:8", "device": "cpu"}
    encode(EncodeArguments(str(tiny_bert), str(tmp_path / "p"), **common))
    for model, name in ((tiny_bert, "own"), (other, "edited")):
        encode(EncodeArguments(str(model), str(tmp_path / name), encode_is_query=True, **common))
    flags = ["--passage_reps", str(tmp_path / "p"), "--save_ranking_to", str(tmp_path / "run")]
    assert run_command(search, ["--query_reps", str(tmp_path / "edited"), *flags]) == 2
    assert "different models" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert run_command(search, ["--query_reps", str(tmp_path / "own"), *flags]) == 0
    exact = (tmp_path / "run").read_bytes()

    # A store of version 0.1 knows the weights alone; it is searched as far as that tells.
    manifest = tmp_path / "p" / "L2-D8" / "manifest.json"
    spec = json.loads(manifest.read_text())["spec"]
    make_0_1(manifest.parent, spec=spec | {"fingerprint": spec["fingerprint"].split(":")[0]})
    assert run_command(search, ["--query_reps", str(tmp_path / "own"), *flags]) == 0
    assert (tmp_path / "run").read_bytes() == exact
    typed = ["--model_name_or_path", str(tiny_bert), "--passage_reps", str(tmp_path / "p"), "--query", "w1"]
    assert run_command(search, typed) == 0
    # The same job goes on with it, and claims no more for it than it did.
    encode(EncodeArguments(str(tiny_bert), str(tmp_path / "p"), **common))
    assert ":" not in read_manifest(manifest.parent).spec.fingerprint == open_store(tmp_path / "p").spec.fingerprint


def test_layer_types_count_and_the_pattern_that_they_were_made_from_does_not(tmp_path):
    """A pattern of the hub's older configurations is not written again."""
    model = save_model(tmp_path / "model", "gemma3_text")
    content = json.loads((model / "config.json").read_text())
    del content["layer_types"]
    content.pop("_sliding_window_pattern", None)
    (model / "config.json").write_text(json.dumps(content | {"sliding_window_pattern": 2}))
    NestedEncoder.from_pretrained(model).save_pretrained(tmp_path / "again")
    assert prints(tmp_path / "again") == prints(model)
    (model / "config.json").write_text(json.dumps(content | {"sliding_window_pattern": 3}))
    assert prints(tmp_path / "again") != prints(model)
