"""`starbucks convert`: tensors of pickles become a safe folder, and nothing else of a pickle is read."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import save_model, save_tokenizer, slow_except
from safetensors.torch import load_file, save_file

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.convert.__main__ import main
from starbucks_retrieval.convert.api import append_eos
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.sizes import Size


def convert(*words) -> int:
    return run_command(main, [*map(str, words), "--quiet"])


@pytest.fixture(scope="module")
def smae(tmp_path_factory) -> Path:
    """A masked language model as ielab/Starbucks saves it: one pickle with the head and a decoder of its own."""
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("smae")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(**shape, vocab_size=100, max_position_embeddings=64, pad_token_id=0)
    config.architectures = ["BertFor2DMaekMatryoshkaMaskedLM"]
    weights = BertForMaskedLM(config).state_dict()  # tied weights share memory, as in the published files
    weights["decoder.layer.0.weight"] = torch.zeros(2)
    config.save_pretrained(folder)
    torch.save(weights, folder / "pytorch_model.bin")
    save_tokenizer(folder)
    return folder


@pytest.fixture
def published(smae, tmp_path) -> Path:
    return shutil.copytree(smae, tmp_path / "published")


def test_a_pickled_masked_language_model_keeps_its_weights_and_its_head(smae, tmp_path, capsys):
    assert run_command(main, ["--model_name_or_path", str(smae), "--output_dir", str(tmp_path / "out"), "--json"]) == 0
    out = capsys.readouterr()
    figures = json.loads(out.out)
    assert figures["architecture"] == "BertForMaskedLM" and figures["left_out"] == ["decoder.layer.0.weight"]
    assert "1 left out such as decoder.layer.0.weight; no stored settings" in out.err
    pickled = torch.load(smae / "pytorch_model.bin", weights_only=True)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {"cls.predictions.bias", "bert.encoder.layer.3.output.dense.weight"} < set(written) <= set(pickled)
    for name, weight in written.items():
        torch.testing.assert_close(weight, pickled[name], rtol=0, atol=0)
    encoder = NestedEncoder.from_pretrained(tmp_path / "out", device="cpu")
    assert encoder.config == EncoderConfig() and not (tmp_path / "out" / "starbucks.json").exists()


def test_a_sharded_pickle(published, tmp_path):
    weights = torch.load(published / "pytorch_model.bin", weights_only=True)
    (published / "pytorch_model.bin").unlink()
    where = {name: f"pytorch_model-{i % 2 + 1:05}-of-00002.bin" for i, name in enumerate(sorted(weights))}
    for shard in set(where.values()):
        torch.save({name: weights[name] for name in where if where[name] == shard}, published / shard)
    index = published / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert convert("--model_name_or_path", published, "--output_dir", tmp_path / "out") == 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(
        written["bert.encoder.layer.3.output.dense.weight"], weights["bert.encoder.layer.3.output.dense.weight"]
    )
    next(iter(published.glob("pytorch_model-00002*"))).unlink()
    with pytest.raises(UserError, match=r"lacks pytorch_model-00002-of-00002\.bin"):
        main(["--model_name_or_path", str(published), "--output_dir", str(tmp_path / "two")])
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.bin"}}))
    with pytest.raises(UserError, match=r"index\.json does not list the files"):
        main(["--model_name_or_path", str(published), "--output_dir", str(tmp_path / "two")])


@pytest.mark.parametrize(
    ("dense", "folder"),
    slow_except(
        [(True, "0_Transformer")], [(dense, folder) for dense in (False, True) for folder in ("", "0_Transformer")]
    ),
)
def test_a_mean_pooling_sentence_transformers_folder(folder, dense, tmp_path):
    """In old folders the transformer lies in one of its own, and the weights of every module are pickled."""
    from sentence_transformers import SentenceTransformer

    source = tmp_path / "source"
    save_model(source / folder)
    kinds = [(folder, "Transformer"), ("1_Pooling", "Pooling"), *([("2_Dense", "Dense")] if dense else [])]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense:
        (source / "2_Dense").mkdir()
        settings = {
            "in_features": 32,
            "out_features": 32,
            "bias": False,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        (source / "2_Dense" / "config.json").write_text(json.dumps(settings))
        torch.save({"linear.weight": torch.eye(32).roll(1, 0)}, source / "2_Dense" / "pytorch_model.bin")
    expected = SentenceTransformer(str(source), device="cpu").encode(["w1 w2 w3", "w4"])
    if folder:
        torch.save(load_file(source / folder / "model.safetensors"), source / folder / "pytorch_model.bin")
        (source / folder / "model.safetensors").unlink()
    out = tmp_path / "out"
    words = ("--model_name_or_path", source, "--sizes", "2:8,4:32", "--query_prefix", "query: ")
    assert convert(*words, "--output_dir", out, "--override") == 0
    config = EncoderConfig.load(out / "starbucks.json")
    assert config.pooling == "mean" and str(config.sizes) == "2:8,4:32" and config.query_prefix == "query: "
    ours = NestedEncoder.from_pretrained(out, device="cpu").encode(["w1 w2 w3", "w4"])[Size(4, 32)]
    again = SentenceTransformer(str(out), device="cpu")
    for vectors in (ours, again.encode(["w1 w2 w3", "w4"])):
        torch.testing.assert_close(torch.as_tensor(vectors).float(), torch.as_tensor(expected), rtol=0, atol=1e-5)
    assert again.prompts["query"] == "query: "
    assert not list(out.rglob("*.bin"))
    assert convert(*words[:2], "--output_dir", tmp_path / "cls", "--pooling", "cls") == 2


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("broken-in",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"bert.a": Evil()}, r"names \w+\.mkdir, which no tensor needs; nothing of it was executed"),
        ({"bert.a": torch.zeros(2), "epoch": 3}, "holds 'epoch' of type int, not a plain tensor"),
        ({"bert.a": torch.eye(2).to_sparse()}, "holds 'bert.a' of type Tensor, not a plain tensor"),
        ({"model": {"bert.a": torch.zeros(2)}}, "holds 'model' of type dict"),
        ([torch.zeros(2)], "holds a list, not names with their tensors"),
        (torch.nn.Linear(2, 2), r"names torch\.nn\.modules\.linear\.Linear"),
        (None, "holds a NoneType"),
    ],
)
def test_anything_but_tensors_is_refused_before_it_runs(content, problem, published, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save(content, published / "pytorch_model.bin")
    assert convert("--model_name_or_path", published, "--output_dir", "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and re.search(problem, lines[0]), lines
    assert not Path("broken-in").exists() and not Path("out").exists()


def test_damaged_files_and_folders_that_are_no_checkpoint(published, tmp_path, capsys):
    whole = (published / "pytorch_model.bin").read_bytes()
    for content in (whole[: len(whole) // 2], b"junk", b""):
        (published / "pytorch_model.bin").write_bytes(content)
        assert convert("--model_name_or_path", published, "--output_dir", tmp_path / "out") == 2
        assert "is damaged, or not a pickle of tensors" in capsys.readouterr().err
    (published / "pytorch_model.bin").unlink()
    assert convert("--model_name_or_path", published, "--output_dir", tmp_path / "out") == 2
    assert "holds neither model.safetensors nor pytorch_model.bin" in capsys.readouterr().err
    weights = {"bert.embeddings.word_embeddings.weight": torch.zeros(100, 32)}
    torch.save(weights, published / "pytorch_model.bin")
    assert convert("--model_name_or_path", published, "--output_dir", tmp_path / "out") == 2
    assert "weights of its architecture, for example" in capsys.readouterr().err
    assert convert("--model_name_or_path", tmp_path / "nowhere", "--output_dir", tmp_path / "out") == 2


def test_a_folder_that_is_not_empty_is_kept(smae, published, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    assert convert("--model_name_or_path", smae, "--output_dir", tmp_path / "out") == 2
    assert "is not empty" in capsys.readouterr().err and (tmp_path / "out" / "mine.txt").exists()
    assert convert("--model_name_or_path", published, "--output_dir", published, "--overwrite_output_dir") == 2
    assert "is the checkpoint itself" in capsys.readouterr().err
    assert convert("--model_name_or_path", smae, "--output_dir", tmp_path / "out", "--overwrite_output_dir") == 0


@pytest.mark.parametrize("pickled", slow_except([True], [False, True]))
def test_adapters_are_merged(pickled, tmp_path):
    """As Tevatron saves them: the adapters alone, with the name of the model that they belong to."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModel

    source, adapters = save_model(tmp_path / "source", "llama"), tmp_path / "adapters"
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(AutoModel.from_pretrained(source), config)
    model.save_pretrained(adapters)
    if pickled:
        torch.save(load_file(adapters / "adapter_model.safetensors"), adapters / "adapter_model.bin")
        (adapters / "adapter_model.safetensors").unlink()
    words = ("--model_name_or_path", source, "--lora_name_or_path", adapters)
    assert convert(*words, "--output_dir", tmp_path / "out", "--pooling", "last", "--normalize") == 0
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        expected = model.eval()(ids).last_hidden_state
        merged = AutoModel.from_pretrained(tmp_path / "out").eval()(ids).last_hidden_state
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-5)
    assert EncoderConfig.load(tmp_path / "out" / "starbucks.json").pooling == "last"
    other = save_model(tmp_path / "other", "llama", num_hidden_layers=2)
    with pytest.raises(UserError, match="do not fit the model"):
        main([*map(str, ("--model_name_or_path", other, *words[2:], "--output_dir", tmp_path / "two"))])
    settings = json.loads((adapters / "adapter_config.json").read_text())
    for values in (
        {"rank_pattern": "x"},
        {"alora_invocation_tokens": [1]},
        {"eva_config": 1.5, "init_lora_weights": "eva"},
    ):
        (adapters / "adapter_config.json").write_text(json.dumps(settings | values))
        with pytest.raises(UserError, match=r"adapter_config.json is damaged|cannot add the adapters"):
            main([*map(str, (*words, "--output_dir", tmp_path / "two"))])
    (adapters / "adapter_config.json").write_text(json.dumps(settings))
    save_file({"x": torch.zeros(1)}, adapters / "adapter_model.safetensors")
    with pytest.raises(UserError, match="do not fit the model"):
        main([*map(str, (*words, "--output_dir", tmp_path / "two"))])


@pytest.mark.parametrize(
    ("earlier", "expected"), [("", "w1 w2 [SEP]"), ("[CLS] $A", "[CLS] w1 w2 [SEP]"), ("$A [MASK]", "w1 w2 [MASK]")]
)
def test_texts_end_with_the_end_of_sequence_token(earlier, expected, tmp_path):
    from tokenizers import processors
    from transformers import AutoTokenizer

    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(UserError, match="no end-of-sequence token"):
        tokenizer.backend_tokenizer.post_processor = None
        append_eos(tokenizer)
    tokenizer.add_special_tokens({"eos_token": "[SEP]"})
    special = [("[CLS]", 2), ("[MASK]", 4)]
    if earlier:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=earlier, special_tokens=special
        )
    append_eos(tokenizer)
    append_eos(tokenizer)
    tokenizer.save_pretrained(tmp_path / "again")
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "again")):
        assert each.decode(each("w1 w2")["input_ids"]) == expected
        assert each("w1 w2 w3 w4", truncation=True, max_length=4)["input_ids"][-1] == each("w1")["input_ids"][-1]
