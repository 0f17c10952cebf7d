"""export to sentence-transformers and transformers: what those libraries load gives our own embeddings."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import DECODERS, FAMILIES, TYPICAL, slow_except
from export.exports import SIZE, exported, model_of, run, run_card, some_texts

from starbucks_retrieval import NestedEncoder, Size, Sizes
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.export.__main__ import main
from starbucks_retrieval.models.pooling import pool

POOLINGS = ("cls", "mean", "last")
_CUT_AT_5 = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}


# ------------------------------------------------------------------ sentence-transformers


@pytest.mark.parametrize(
    ("family", "pooling", "normalize"),
    [
        ("bert", "cls", False),
        ("qwen3", "last", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("bert", "cls", True),
                ("modernbert", "mean", True),
                *(("bert", pooling, normalize) for pooling in ("mean", "last") for normalize in (True, False)),
                ("modernbert", "cls", False),
                ("modernbert", "last", False),
                ("llama", "mean", False),
                ("llama", "last", True),
                ("roberta", "mean", True),
                ("mpnet", "cls", False),
                ("distilbert", "mean", True),
                ("electra", "cls", False),
            )
        ),
    ],
)
def test_sentence_transformers_gives_our_embeddings(tmp_path, family, pooling, normalize):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = model_of(
        tmp_path / "model",
        family,
        pooling=pooling,
        normalize=normalize,
        query_prefix="w3 w4 ",
        passage_prefix="w9 ",
    )
    run(encoder, tmp_path / "out", "sentence-transformers")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = some_texts()
    passages = encoder.encode(texts, SIZE)[SIZE]
    queries = encoder.encode(texts, SIZE, is_query=True)[SIZE]
    assert np.abs(passages - queries).max() > 1e-3  # the prefixes tell
    np.testing.assert_allclose(model.encode_document(texts, batch_size=3), passages, atol=1e-6)
    np.testing.assert_allclose(model.encode(texts, batch_size=3), passages, atol=1e-6)
    np.testing.assert_allclose(model.encode_query(texts, batch_size=3), queries, atol=1e-6)
    scores = model.similarity(model.encode_query(texts), model.encode_document(texts))
    np.testing.assert_allclose(scores, queries @ passages.T, rtol=1e-5, atol=1e-5)
    assert model.max_seq_length == 20


def test_cut_then_normalised_not_the_other_way_round(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = model_of(tmp_path / "model", pooling="mean", normalize=True)
    run(encoder, tmp_path / "out", "sentence-transformers")
    vectors = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(some_texts())
    assert vectors.shape == (7, SIZE.dim)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_full_width_needs_no_cut_and_no_prefix_no_default_prompt(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = model_of(tmp_path / "model", pooling="mean")
    run(encoder, tmp_path / "out", "sentence-transformers", "2:32")
    assert [module["type"].rsplit(".", 1)[1] for module in json.loads((tmp_path / "out/modules.json").read_text())] == [
        "Transformer",
        "Pooling",
    ]
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert model.default_prompt_name is None
    expected = encoder.encode(some_texts(), "2:32")[Size(2, 32)]
    np.testing.assert_allclose(model.encode(some_texts()), expected, atol=1e-6)


@pytest.mark.parametrize("to", ["sentence-transformers", "transformers"])
def test_a_tokenizer_without_a_padding_token_gets_one_and_forgets_a_length(tmp_path, to):
    encoder = model_of(tmp_path / "model", "llama", pooling="last")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = tmp_path / "model" / name
        if path.exists():
            content = json.loads(path.read_text())
            content.pop("pad_token", None)
            path.write_text(json.dumps(content | ({"padding_side": "left"} if "config" in name else {})))
    path = tmp_path / "model/tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": _CUT_AT_5}))
    bare = NestedEncoder.from_pretrained(tmp_path / "model")
    assert bare.tokenizer.pad_token is None
    run(encoder, tmp_path / "out", to)
    back = NestedEncoder.from_pretrained(tmp_path / "out")
    assert (back.tokenizer.pad_token, back.tokenizer.padding_side) == ("[UNK]", "right")
    assert back.fingerprint(3) == bare.fingerprint(3)
    assert json.loads((tmp_path / "out/tokenizer.json").read_text())["truncation"] is None


# ------------------------------------------------------------------ transformers


@pytest.mark.parametrize("family", slow_except(TYPICAL, FAMILIES))
def test_automodel_finds_every_weight_and_gives_the_tap(tmp_path, family):
    from transformers import AutoModel, AutoTokenizer

    encoder = model_of(tmp_path / "model", family, pooling="last" if family in DECODERS else "mean")
    figures = run(encoder, tmp_path / "out", "transformers")
    model, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = tokenizer(some_texts(), padding=True, truncation=True, max_length=20, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        hidden = model.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = encoder(ids, mask, [3])[3]
    torch.testing.assert_close(pool(hidden, mask, encoder.config.pooling), pooled, rtol=0, atol=1e-6)
    own = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("pooler."))
    assert figures["parameters_kept"] == own
    assert figures["parameters_total"] == sum(p.numel() for p in encoder.backbone.parameters())


def test_our_own_tools_read_the_folder(tmp_path):
    encoder = model_of(tmp_path / "model", pooling="mean", normalize=True, query_prefix="w1 ")
    figures = run(encoder, tmp_path / "out", "transformers")
    back = NestedEncoder.from_pretrained(tmp_path / "out")
    assert str(back.config.sizes) == "1:8,3:12,3:16"  # the rungs that are left, and the one that was asked for
    assert dataclasses.replace(back.config, sizes=encoder.config.sizes) == encoder.config
    assert back.num_layers == 3
    assert back.fingerprint(3) == encoder.fingerprint(3) == figures["fingerprint"]
    for size, vectors in encoder.encode(some_texts(), back.sizes, is_query=True).items():
        np.testing.assert_array_equal(back.encode(some_texts(), size, is_query=True)[size], vectors)


@pytest.mark.parametrize(
    ("to", "pooling"),
    slow_except(
        [("transformers", "mean"), ("sentence-transformers", "cls")],
        [(to, pooling) for to in ("transformers", "sentence-transformers") for pooling in POOLINGS],
    ),
)
def test_the_lines_of_the_card_give_our_embeddings(tmp_path, pooling, to):
    if to == "sentence-transformers":
        pytest.importorskip("sentence_transformers")
    encoder = model_of(tmp_path / "model", pooling=pooling, normalize=pooling != "cls", passage_prefix="w5 ")
    run(encoder, tmp_path / "out", to)
    found = run_card(tmp_path / "out")["passages"][:1]
    np.testing.assert_allclose(found, encoder.encode(["a passage"], SIZE)[SIZE], atol=1e-6)
    head = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---\n")[1])
    whole = to == "sentence-transformers"  # other folders leave the pooling to their reader
    assert (head["library_name"], "sentence-transformers" in head["tags"]) == (to, whole)
    assert head["pipeline_tag"] == ("sentence-similarity" if whole else "feature-extraction")


def test_the_same_export_gives_the_same_bytes_and_names_no_path(tmp_path):
    encoder = model_of(tmp_path / "model")
    run(encoder, tmp_path / "a", "sentence-transformers")
    run(encoder, tmp_path / "elsewhere" / "b", "sentence-transformers")
    first = exported(tmp_path / "a")
    assert first == exported(tmp_path / "elsewhere" / "b")
    assert not [name for name, content in first.items() if str(tmp_path).encode() in content]
    assert str(tmp_path) not in (tmp_path / "a/README.md").read_text()
    record = json.loads(first["export.json"])
    assert (record["size"], record["to"]) == ("3:12", "sentence-transformers")
    assert record["fingerprint"] == encoder.fingerprint(3)
    assert record["configuration"]["model_name_or_path"] == "model"


# ------------------------------------------------------------------ the door


def test_the_command_prints_what_it_wrote(tmp_path, capfd):
    encoder = model_of(tmp_path / "model", query_max_len=10)
    flags = ["--model_name_or_path", encoder.name, "--to", "sentence-transformers", "--output_dir"]
    assert run_command(main, [*flags, str(tmp_path / "out"), "--layer", "3", "--dim", "12", "--json"]) == 0
    out, err = capfd.readouterr()
    figures = json.loads(out)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "out").stat().st_mode & 0o666}  # whoever may look into the folder may read all of it
    assert figures["files"] == {
        str(path.relative_to(tmp_path / "out")): path.stat().st_size
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert "size 3:12 for sentence-transformers" in err
    assert "3:12 is not one of the sizes that the model was trained for: 1:8,3:16,4:32" in err
    card = (tmp_path / "out/README.md").read_text()
    assert "queries 10, passages 20 tokens" in card and "max_seq_length = 10" in card


def test_cup_names_and_defaults(tmp_path):
    six = Sizes.parse("1:4,1:8,2:8,3:8,3:16,4:32")
    encoder = model_of(tmp_path / "model", sizes=six)
    assert run(encoder, tmp_path / "tall", "transformers", "tall")["size"] == "2:8"
    assert run(encoder, tmp_path / "wide", "transformers", None, layer=2)["size"] == "2:32"
    assert run(encoder, tmp_path / "deep", "transformers", None, dim=4)["size"] == "4:4"


def test_an_earlier_export_is_replaced_only_when_asked_and_other_things_never(tmp_path, capfd):
    encoder = model_of(tmp_path / "model")
    flags = ["--model_name_or_path", encoder.name, "--size", "2:8", "--quiet", "--output_dir", str(tmp_path / "out")]
    assert run_command(main, [*flags, "--to", "sentence-transformers"]) == 0
    before = exported(tmp_path / "out")
    assert run_command(main, [*flags, "--to", "transformers"]) == 2
    assert "--overwrite_output_dir" in capfd.readouterr().err
    assert exported(tmp_path / "out") == before
    assert run_command(main, [*flags, "--to", "transformers", "--overwrite_output_dir"]) == 0
    assert not (tmp_path / "out/modules.json").exists()  # nothing of the earlier one is left

    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("years of work")
    flags[-1] = str(tmp_path / "thesis")
    assert run_command(main, [*flags, "--to", "transformers", "--overwrite_output_dir"]) == 2
    assert "no earlier export wrote it" in capfd.readouterr().err
    assert (tmp_path / "thesis/chapter1.tex").read_text() == "years of work"
    flags[-1] = str(tmp_path / "out")
    flags[1] = str(tmp_path / "out")  # an export can be exported again, but not onto itself
    assert run_command(main, [*flags, "--to", "transformers", "--overwrite_output_dir"]) == 2
    assert "is the model that is to be exported" in capfd.readouterr().err


@pytest.mark.parametrize("moment", ["card", "rename"])
def test_what_fails_half_way_leaves_things_as_they_were(tmp_path, monkeypatch, moment):
    encoder = model_of(tmp_path / "model")
    run(encoder, tmp_path / "out", "transformers")
    before = exported(tmp_path / "out")

    def fail(*arguments, **keywords):
        raise KeyboardInterrupt

    if moment == "card":
        monkeypatch.setattr("starbucks_retrieval.export.api.write_card", fail)
    else:
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda p, to: fail() if p.name.endswith(".tmp") else rename(p, to))
    for output in ("out", "new"):
        with pytest.raises(KeyboardInterrupt):
            run(encoder, tmp_path / output, "transformers", "1:8", overwrite_output_dir=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
    assert exported(tmp_path / "out") == before


def test_what_a_killed_export_left_is_removed(tmp_path):
    encoder = model_of(tmp_path / "model")
    left = tmp_path / ".out.0123456789ab.tmp"
    left.mkdir()
    (left / "half").write_text("x")
    (tmp_path / "out").mkdir()  # an empty folder may be written into
    run(encoder, tmp_path / "out", "transformers", "1:8")
    run(encoder, tmp_path / "out", "transformers", "1:8", overwrite_output_dir=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
    assert not (tmp_path / "out/half").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The only folder in its own."""
    return Path(model_of(tmp_path_factory.mktemp("models") / "model").name)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--size", "5:8"], "layer 5.*1:8,3:16,4:32"),
        (["--size", "2:64"], "64 dimensions.*1:8,3:16,4:32"),
        (["--size", "tall"], "needs a model with 6 sizes.*1:8,3:16,4:32"),
        (["--size", "1:8,3:16"], "names 2 sizes"),
        ([], "no size to export.*1:8,3:16,4:32"),
        (["--size", "2:8", "--layer", "2"], "contradict"),
        (["--size", "2:8", "--to", "gguf"], "gguf"),
        (["--size", "2:8", "--int8"], "--int8 is for --to openvino"),
        (["--size", "2:8", "--to", "onnx", "--int8"], "--int8 is not offered for onnx"),
        (["--size", "2:8", "--to", "openvino", "--int8"], "needs texts.*--calibration_path"),
        (["--size", "2:8", "--calibration_path", "x"], "for --int8 only"),
        (["--size", "2:8", "--push_to_hub"], "--hub_model_id"),
        (["--size", "2:8", "--hub_model_id", "me/it"], "without --push_to_hub"),
        (["--size", "2:8", "--push_to_hub", "--hub_model_id", "a/b/c"], "a/b/c"),
        (["--size", "2:8", "--model_name_or_path", "./nowhere"], "no such model folder"),
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(model, tmp_path, capfd, flags, message):
    base = ["--model_name_or_path", str(model), "--to", "transformers", "--output_dir", str(tmp_path / "out")]
    assert run_command(main, [*base, *flags]) == 2
    error = " ".join(capfd.readouterr().err.split())
    assert re.search(message, error), error
    assert not list(tmp_path.iterdir())
    assert sorted(path.name for path in model.parent.iterdir()) == ["model"]


@pytest.mark.parametrize(("size", "dims"), [("3:8", [4, 8]), ("3:32", [4, 8, 16]), ("2:16", None)])
def test_only_dims_that_were_trained_at_the_layer_are_named(tmp_path, size, dims):
    encoder = model_of(tmp_path / "model", sizes=Sizes.parse("1:8,3:4,3:8,3:16,4:32"))
    run(encoder, tmp_path / "out", "sentence-transformers", size)
    assert json.loads((tmp_path / "out/config.json").read_text()).get("matryoshka_dimensions") == dims
