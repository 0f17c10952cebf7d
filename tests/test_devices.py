import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import starbucks_retrieval.search.engines.ray as ray_engine
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.encode.__main__ import main as encode
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid.__main__ import main as grid
from starbucks_retrieval.grid.plan import scoring_device
from starbucks_retrieval.integrations.base import SizedModel
from starbucks_retrieval.mine.__main__ import main as mine
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.search.__main__ import main as search
from starbucks_retrieval.search.engines import EngineOptions
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, StoreWriter
from starbucks_retrieval.sts.__main__ import main as sts
from starbucks_retrieval.transfer.__main__ import main as transfer

ABSENT = ["cuda:99", "gpu", "meta", "cuda:x", "hpu:0", "fpga", ""]


def test_available_devices():
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")
    assert resolve_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ABSENT)
def test_missing_devices(name, tiny_bert):
    for resolve in (resolve_device, lambda name: NestedEncoder.from_pretrained(tiny_bert, device=name)):
        with pytest.raises(UserError, match=f"no device {name}: ") as caught:
            resolve(name)
        assert caught.value.hint == "say --device cpu" and len(caught.value.what) < 250


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_where_there_is_none(name, tiny_bert):
    with pytest.raises(UserError, match=f"no device {name}: .*CUDA"):
        NestedEncoder.from_pretrained(tiny_bert, device=name)


@pytest.fixture
def data(tmp_path):
    """A BEIR folder of two passages and a query, training groups, scored pairs, labelled texts, and a store."""
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "title": "", "text": f"w{i} w2"}) + "\n" for i in range(2))
    )
    (tmp_path / "beir" / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "w1"}) + "\n")
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{i}\tw{i}\tw{i + 1}\n" for i in range(5)))
    (tmp_path / "texts.tsv").write_text("label\ttext\n" + "".join(f"{i % 2}\tw{i}\n" for i in range(40)))
    group = {"query_id": "q", "query": "w1", "positive_document_ids": ["d1"], "negative_document_ids": []}
    (tmp_path / "groups.jsonl").write_text(json.dumps(group) + "\n")
    vectors = np.eye(2, dtype=np.float32)
    for kind in ("passages", "queries"):
        spec = StoreSpec(kind, Size(2, 2), "cls", False, "", "", 60, "f", "fp32", "float32", kind, 2)
        with StoreWriter.open(tmp_path / kind, spec) as writer:
            writer.write_shard(0, ["a", "b"], vectors)
            writer.finish()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (encode, "--model_name_or_path {m} --dataset_path {d}/beir --encode_output_path {d}/out"),
        (encode, "--model_name_or_path {m} --dataset_path {d}/beir --encode_output_path {d}/out --dry_run"),
        (grid, "--model_name_or_path {m} --dataset_path {d}/beir --output {d}/out"),
        (
            mine,
            "--model_name_or_path {m} --dataset_path {d}/groups.jsonl --corpus_path {d}/beir --output_path {d}/out.jsonl",
        ),
        (sts, "--model_name_or_path {m} --data {d}/pairs.tsv --output {d}/out"),
        (transfer, "--model_name_or_path {m} --data {d}/texts.tsv --output {d}/out"),
        (search, "--query_reps {d}/queries --passage_reps {d}/passages --save_ranking_to {d}/out"),
        (search, "--query_reps {d}/queries --passage_reps {d}/passages --save_ranking_to {d}/out --dry_run"),
        (search, "--query_reps {d}/queries --passage_reps {d}/passages --save_ranking_to {d}/out --engine faiss"),
        (search, "--model_name_or_path {m} --passage_reps {d}/passages --query w1"),
    ],
)
@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_every_command_refuses_a_missing_device(command, words, device, data, tiny_bert, capfd):
    argv = words.format(m=tiny_bert, d=data).split()
    assert run_command(command, [*argv, "--device", device]) == 2
    err = capfd.readouterr().err
    assert "Traceback" not in err and ("--device cpu" in err or "take cpu" in err)
    assert not [*data.glob("out*")]


def test_integrations_refuse_a_missing_device(tiny_bert):
    with pytest.raises(UserError, match="no device gpu"):
        SizedModel(tiny_bert, device="gpu")


def test_ray_without_a_gpu_is_refused_at_once(data, monkeypatch):
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0}, nodes=lambda: [{"Alive": True}])
    monkeypatch.setattr(ray_engine, "import_ray", lambda purpose: ray)
    monkeypatch.setattr(ray_engine, "cluster", lambda *_: contextlib.nullcontext())
    store = EmbeddingStore.open(data / "passages")
    workers = ray_engine.RaySearch(store.folders, 1, EngineOptions("cuda", ray_workers=1))
    with pytest.raises(UserError, match="--device cuda: the Ray cluster has no GPU"):
        next(workers.search(np.eye(2, dtype=np.float32)))


def test_a_grid_scores_on_a_cpu_where_only_the_model_runs_elsewhere():
    assert scoring_device(torch.device("mps")) == "cpu"
    assert [scoring_device(torch.device(name)) for name in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
