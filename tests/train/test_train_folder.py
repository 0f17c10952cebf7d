"""What train writes is a model of sentence-transformers: the folder, its checkpoints, its pushes and its card."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from huggingface_hub.utils import filter_repo_objects

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main

SIZE = Size(4, 32)


@pytest.fixture
def train(tiny_bert, tmp_path):
    """Trains for four steps into the folder m, with more flags."""
    rows = [{"query": f"w{i}", "positive": f"w{i} w{i + 1}"} for i in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*more, model=tiny_bert):
        fixed = f"--model_name_or_path {model} --dataset_path {tmp_path}/data.jsonl --output_dir {tmp_path}/m"
        steps = "--train_group_size 1 --max_steps 4 --per_device_train_batch_size 2 --use_cpu --quiet"
        flags = ["--query_prefix", "w1 w2: ", "--passage_prefix", "w3 ", "--query_max_len", "60"]
        return run_command(main, [*fixed.split(), *steps.split(), *flags, *more])

    return run


def front_matter(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def assert_same(folder):
    """A folder gives our vectors in sentence-transformers."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    texts = ["w5 w6 w7", "w8", "", "w9 " * 80]
    np.testing.assert_allclose(model.encode_query(texts), encoder.encode(texts, SIZE, is_query=True)[SIZE], atol=1e-6)
    np.testing.assert_allclose(model.encode(texts), encoder.encode(texts, SIZE)[SIZE], atol=1e-6)


def test_the_folder_and_its_checkpoints(train, tmp_path):
    pytest.importorskip("peft")
    flags = ["--sizes", "2:16,4:16,4:32", "--pooling", "cls", "--lora", "--lora_target_modules", "query,value"]
    assert train("--save_steps", "2", *flags) == 0
    for folder in ("m", "m/checkpoint-2", "m/checkpoint-4"):
        assert_same(tmp_path / folder)
    head = front_matter(tmp_path / "m")
    assert (head["library_name"], head["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert {"sentence-transformers", "matryoshka"} <= set(head["tags"]) and "model-index" not in head
    card = (tmp_path / "m/README.md").read_text()
    assert 'SentenceTransformer("m")' in card and "reads this folder at size 4:32" in card
    assert json.loads((tmp_path / "m/config.json").read_text())["matryoshka_dimensions"] == [16, 32]


def test_a_model_of_two_depths_says_why_it_is_none(train, tmp_path):
    assert train("--sizes", "1:8,2:16", "--passage_layers", "1:4,2:4", "--save_strategy", "no") == 0
    assert not (tmp_path / "m/modules.json").exists()
    head = front_matter(tmp_path / "m")
    assert head["library_name"] == "starbucks_retrieval" and "pipeline_tag" not in head
    assert not [tag for tag in head["tags"] if "sentence" in tag]
    card = (tmp_path / "m/README.md").read_text()
    assert "cannot read this folder: queries and passages are encoded at different layers" in card
    assert "SentenceTransformer(" not in card


def test_the_card_has_what_is_known(train, tiny_bert, tmp_path):
    import shutil

    base = shutil.copytree(tiny_bert, tmp_path / "base")
    entries = {"license": "mit", "language": ["en", "de"], "base_model": "org/base", "datasets": ["org/other"]}
    (base / "README.md").write_text(f"---\n{yaml.safe_dump(entries)}---\n# Base\n")
    dev = tmp_path / "dev"
    (dev / "qrels").mkdir(parents=True)
    (dev / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"p{i}", "text": f"w{i}"}) + "\n" for i in range(4)))
    (dev / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{i}", "text": f"w{i}"}) + "\n" for i in range(4)))
    lines = [f"q{i}\tp{i}\t1" for i in range(4)]
    (dev / "qrels/dev.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines, ""]))
    flags = ["--sizes", "2:16,4:32", "--eval_dataset_path", str(dev), "--eval_steps", "2", "--save_steps", "2"]
    assert train(*flags, model=base) == 0
    head = front_matter(tmp_path / "m")
    assert (head["license"], head["language"], head["base_model"]) == ("mit", ["en", "de"], "org/base")
    assert "datasets" not in head  # a local file is no name on the hub
    [model] = head["model-index"]
    [result] = model["results"]
    assert model["name"] == "m" and result["task"] == {"type": "information-retrieval"}
    assert result["dataset"] == {"name": "dev", "type": "unknown", "split": "dev"}
    history = json.loads((tmp_path / "m/training.json").read_text())["history"]
    scores = [entry for entry in history if "eval_nDCG@10" in entry and entry["step"]]
    best = max(scores, key=lambda entry: entry["eval_nDCG@10"])  # whose weights are kept
    found = {metric["name"]: metric["value"] for metric in result["metrics"]}
    assert found["nDCG@10 at size 2:16"] == round(best["eval_nDCG@10/2:16"], 4) and len(found) == 4


@pytest.mark.slow
def test_every_push_has_settings_modules_and_card(train, tmp_path, monkeypatch):
    from huggingface_hub import HfApi
    from transformers import Trainer

    pushes = []

    def init_hf_repo(trainer, **_):
        trainer.hub_model_id, trainer.push_in_progress = "me/m", None

    def upload(*_, folder_path, ignore_patterns, **__):
        names = [path.relative_to(folder_path).as_posix() for path in Path(folder_path).rglob("*") if path.is_file()]
        kept = list(filter_repo_objects(names, ignore_patterns=ignore_patterns))
        pushes.append(kept)
        copy = tmp_path / f"push{len(pushes)}"
        for name in kept:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((Path(folder_path) / name).read_bytes())
        return SimpleNamespace(done=lambda: True)

    monkeypatch.setenv("HF_TOKEN", "hf_a")
    monkeypatch.setattr(Trainer, "init_hf_repo", init_hf_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr("transformers.trainer.upload_folder", partial(upload, None), raising=False)  # transformers 5.0
    push = ["--push_to_hub", "--hub_strategy", "every_save", "--save_steps", "2"]
    assert train(*push, "--sizes", "2:16,4:32", "--projections", "random") == 0
    assert len(pushes) == 3
    for number, names in enumerate(pushes, 1):
        assert {"README.md", "starbucks.json", "projections.safetensors", "2_Dense/model.safetensors"} <= set(names)
        assert not [name for name in names if "trainer_state" in name or "optimizer" in name]
        assert front_matter(tmp_path / f"push{number}")["library_name"] == "sentence-transformers"
        assert_same(tmp_path / f"push{number}")
