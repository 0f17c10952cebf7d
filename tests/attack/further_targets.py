"""Further readers: candidates of `mine`, the record of hub files, LoRA adapters, pre-training, Milvus, `quickstart`, locks."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from attack import targets
from attack.targets import Target
from attack.targets import _arrow as arrow
from attack.targets import _jsonl as jsonl
from attack.targets import _model as model
from attack.targets import _separated as separated
from attack.targets import _write as write


# mine.
def _candidates(folder: Path) -> None:
    from starbucks_retrieval.mine.candidates import Candidates, save_candidates

    rng = np.random.default_rng(1)
    found = Candidates(
        rng.integers(0, 9, (3, 4), np.int32), rng.random((3, 4), np.float32), rng.random(3, dtype=np.float32)
    )
    save_candidates(folder, found, {"depth": 4}, {"seed": 1})


def _load_candidates(folder: Path) -> None:
    from starbucks_retrieval.mine.candidates import load_candidates

    found = load_candidates(folder, {"depth": 4})
    if found is not None:
        assert found.rows.shape == found.scores.shape == (3, 4)


def _judged_set(folder: Path) -> None:
    passages = [{"_id": f"d{i}", "title": "", "text": f"w{i} w{i + 1}"} for i in range(6)]
    queries = [{"_id": f"q{i}", "text": f"w{i}"} for i in range(3)]
    (folder / "qrels").mkdir()
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text(jsonl(rows))
    (folder / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{i}\t1\n" for i in range(3))
    )
    (folder / "a.run").write_text(
        "".join(f"q{i} Q0 d{j} {j + 1} {9 - j}.5 tag-6:128\n" for i in range(3) for j in range(6))
    )


def _mine(folder: Path) -> None:
    from starbucks_retrieval.mine.__main__ import main

    words = f"--dataset_path {folder} --run {folder}/a.run --num_negatives 2 --output_path {folder}/n.jsonl"
    main([*words.split(), "--overwrite", "--quiet"])


# The record of the files of a data set on the hub.
def _hub_record(folder: Path) -> None:
    (folder / "a.jsonl").write_text(jsonl([{"docid": "d1", "text": "w1"}]))
    (folder / "record.json").write_text(json.dumps({"train": [str(folder.parent / "valid" / "a.jsonl")]}))


def _read_hub(folder: Path) -> None:
    from unittest import mock

    from starbucks_retrieval.data import hub

    with (
        mock.patch.object(hub, "_record_path", lambda *_: folder / "record.json"),
        mock.patch.object(hub, "_builder", side_effect=ConnectionError),  # the hub does not answer
    ):
        list(hub.HubData("org/a", "corpus").rows())


# LoRA adapters.
def _adapters(folder: Path) -> None:
    import transformers
    from peft import LoraConfig, get_peft_model

    model(folder)
    base = transformers.AutoModel.from_pretrained(folder / "m")
    get_peft_model(base, LoraConfig(r=2, target_modules=["query", "value"])).save_pretrained(str(folder / "lora"))


def _merge(folder: Path) -> None:
    from starbucks_retrieval.convert.__main__ import main

    shutil.rmtree(folder / "out", ignore_errors=True)
    words = f"--model_name_or_path {folder}/m --lora_name_or_path {folder}/lora --output_dir {folder}/out"
    main([*words.split(), "--quiet"])


# Checkpoints of pre-training.
def _pretrained(folder: Path) -> None:
    model(folder)
    (folder / "a.txt").write_text("".join(" ".join(f"w{i + k}" for k in range(9)) + "\n" for i in range(40)))
    _pretrain(folder)
    (folder / "out" / "checkpoint-2" / "trainer_state.json").unlink()


def _pretrain(folder: Path) -> None:
    from starbucks_retrieval.pretrain.__main__ import main

    words = (
        "--model_name_or_path m --dataset_path a.txt --output_dir out --max_steps 2 --per_device_train_batch_size 2 "
    )
    words += "--save_steps 1 --use_cpu --quiet --resume_from_checkpoint true"
    with contextlib.chdir(folder):  # paths are part of the configuration that a resumed run is compared with
        main(words.split())


def _teacher_map(folder: Path) -> None:
    import torch

    from starbucks_retrieval.train.distil import TeacherMap

    TeacherMap(torch.ones(4, 4), torch.ones(4), 2.0, {"score_scale": 2.0, "texts": 9}).save(folder / "map.safetensors")


def _load_teacher_map(folder: Path) -> None:
    from starbucks_retrieval.train.distil import TeacherMap

    TeacherMap.load(folder / "map.safetensors")


# The metadata of Milvus collections.
def _collection(folder: Path) -> None:
    from starbucks_retrieval.search.engines.milvus.collections import CollectionMetadata
    from starbucks_retrieval.store import open_store

    targets._store(folder)
    store = open_store(folder)
    (folder / "properties.json").write_text(CollectionMetadata.of({store.spec.size: store}).dumps())


def _read_collection(folder: Path) -> None:
    from starbucks_retrieval.search.engines.milvus.collections import CollectionMetadata
    from starbucks_retrieval.store import open_store

    text = (folder / "properties.json").read_text(encoding="utf-8", errors="replace")
    found = CollectionMetadata.loads({"starbucks": text}, "the collection")
    store = open_store(folder)
    made = CollectionMetadata.of({store.spec.size: store})
    found.difference(made)
    found.partitions()
    if store.spec.size in found.fields:
        found.only(store.spec.size).check(store.spec)


# quickstart.
_DOCUMENTS: list[dict[str, Any]] = [
    {"Ticket": i, "Subject": f"s{i}", "Body": f"w{i} w{i + 1} w{i + 2}"} for i in range(5)
]
_QUERIES = [{"id": f"q{i}", "question": f"w{i}"} for i in range(3)]
_MARKDOWN = "---\ntitle: 'One'\ntags: [a]\n---\n# One\n\nw1 w2\n\n## Two\n\nw3\n"
_HTML = (
    "<html><head><title>One</title></head><body><h1>One</h1><p>w1 w2 w3 w4 w5.</p><ul><li>w6</li></ul></body></html>"
)


def _open_documents(folder: Path) -> None:
    from starbucks_retrieval.quickstart import QuickstartArguments
    from starbucks_retrieval.quickstart.documents import open_documents, split_documents

    [path] = folder.iterdir()
    found = open_documents(QuickstartArguments(str(path)))
    found.state()
    list(split_documents(found, 16, lambda texts: [len(text.split()) for text in texts]))


def _open_folder(folder: Path) -> None:
    _open_documents(folder.parent / folder.name)


def _read_queries(folder: Path) -> None:
    from starbucks_retrieval.quickstart.documents import read_queries

    [path] = folder.iterdir()
    read_queries(path)


def _in_folder(name: str, content: str) -> Any:
    def make(folder: Path) -> None:
        (folder / "texts").mkdir()
        (folder / "texts" / name).write_text(content)
        (folder / "texts" / "other.txt").write_text("w1\n")

    return make


def _started(folder: Path) -> None:
    model(folder)
    (folder / "docs.csv").write_text(separated(_DOCUMENTS, ","))
    _quickstart(folder)


def _quickstart(folder: Path) -> None:
    from starbucks_retrieval.quickstart import QuickstartArguments, quickstart

    with contextlib.chdir(folder):
        quickstart(QuickstartArguments("docs.csv", model="m", output="out", device="cpu"))


# Locks, with what a killed process wrote into them.
def _locked(folder: Path) -> None:
    (folder / "a.jsonl").write_text("w1\n")
    (folder / ".a.jsonl.lock").write_text("process 12 on host\noutput 1 2\n")


def _lock(folder: Path) -> None:
    from starbucks_retrieval.locks import left_by_killed_run, lock_of

    left_by_killed_run(folder / "a.jsonl", lock_of(folder / "a.jsonl"))


_T = Target
_CHECKPOINT = "out/checkpoint-1"
_STATE = "out/.starbucks-quickstart"
TARGETS = [
    *targets.TARGETS,
    _T("mine", "manifest.json", "json", _candidates, _load_candidates),
    _T("mine", "rows.npy", "npy", _candidates, _load_candidates),
    _T("mine", "a.run", "cells", _judged_set, _mine, writes=True),
    _T("mine", "qrels/train.tsv", "cells", _judged_set, _mine, writes=True),
    _T("hub", "record.json", "json", _hub_record, _read_hub),
    _T("milvus", "properties.json", "json", _collection, _read_collection),
    *(_T("quickstart", name, kind, write(name, text), _open_documents)
      for name, kind, text in (("docs.csv", "cells", separated(_DOCUMENTS, ",")), ("docs.tsv", "cells", separated(_DOCUMENTS, "\t")),
                               ("docs.jsonl", "jsonl", jsonl(_DOCUMENTS)))),
    _T("quickstart", "docs.parquet", "table", arrow("docs.parquet", _DOCUMENTS), _open_documents),
    *(_T("quickstart", f"texts/{name}", kind, _in_folder(name, text), _open_folder)
      for name, kind, text in (("a.txt", "bytes", "w1 w2\n\nw3\n"), ("a.md", "bytes", _MARKDOWN),
                               *([("a.html", "bytes", _HTML)] if importlib.util.find_spec("trafilatura") else []))),
    *(_T("quickstart", name, kind, write(name, text), _read_queries)
      for name, kind, text in (("queries.csv", "cells", separated(_QUERIES, ",")), ("queries.jsonl", "jsonl", jsonl(_QUERIES)),
                               ("queries.txt", "bytes", "w1\nw2 w3\n"))),
    _T("locks", ".a.jsonl.lock", "bytes", _locked, _lock),
    _T("teachers", "map.safetensors", "safetensors", _teacher_map, _load_teacher_map),
    *(_T("quickstart states", f"{_STATE}/{name}.json", "json", _started, _quickstart, writes=True)
      for name in ("inputs", "documents", "encode")),
    *(_T("checkpoints", f"{_CHECKPOINT}/{file}", kind, _pretrained, _pretrain, writes=True)
      for file, kind in (("trainer_state.json", "json"), ("config.json", "json"), ("model.safetensors", "safetensors"),
                         ("decoder/decoder.safetensors", "safetensors"), ("optimizer.pt", "bytes"), ("rng_state.pth", "bytes"),
                         ("text-position-0.json", "json"))),
    *((_T("convert", f"lora/{file}", kind, _adapters, _merge, writes=True)
       for file, kind in (("adapter_config.json", "json"), ("adapter_model.safetensors", "safetensors")))
      if importlib.util.find_spec("peft") else ()),
]  # fmt: skip
