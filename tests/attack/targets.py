"""The readers of this package, each with a small valid input, the file of it that is damaged, and the work that reads it."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conftest import save_model
from small_stores import write_store

from starbucks_retrieval.sizes import Size

LOADED = ("models", "checkpoints", "convert", "quickstart states")  # areas that load torch and transformers


@dataclass(frozen=True)
class Target:
    """One file that is damaged and read.

    Attributes:
        area: The class of readers, as in the report.
        file: The file, relative to the folder that `make` fills.
        kind: The kind of damage, of `mutations.DAMAGE`.
        make: Writes a valid input into an empty folder.
        read: Reads it; works on a damaged one too, or raises UserError.
        writes: `read` changes the folder, so that each case needs a copy.
    """

    area: str
    file: str
    kind: str
    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    writes: bool = False

    @property
    def name(self) -> str:
        return f"{self.area}: {self.file}"


def _write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _all(records: Iterable[Any]) -> None:
    for _ in records:
        pass


# Configuration files.
_ENCODE = "model_name_or_path: m\ndataset_path: org/q\nencode_output_path: out\nsizes: 2:32,4:64\ndtype: fp32\nencode_is_query: true\nseed: 1\n"
_TRAIN = (
    "preset: starbucks-msmarco\nmodel_name_or_path: m\noutput_dir: out\nlearning_rate: 1e-4\nmax_steps: 2\nkl_weight: 1\n"
    "sampling: temperature\ntrain_layers: 2,4\ndataset_path:\n  - {name: org/a, weight: 2, query_prefix: 'q: '}\n  - org/b@2\n"
)
_CARD = "---\nbase_model: bert-base\nlicense: mit\ntags:\n  - a\n---\n# Model\n"


def _parse_encode(folder: Path) -> None:
    from starbucks_retrieval.cli import parse_flags
    from starbucks_retrieval.cli.flags import CommonArguments
    from starbucks_retrieval.encode import EncodeArguments

    for file in folder.iterdir():
        parse_flags([EncodeArguments, CommonArguments], [str(file)], "starbucks encode", "x")


def _parse_train(folder: Path) -> None:
    from starbucks_retrieval.cli.precedence import parse_training
    from starbucks_retrieval.train.arguments import TrainArguments
    from starbucks_retrieval.train.presets import PRESETS

    for file in folder.iterdir():
        parse_training(TrainArguments, PRESETS, [str(file), "--quiet"], "starbucks train", "x", "")


def _card(folder: Path) -> None:
    from starbucks_retrieval.models.card import base_model_text

    base_model_text(str(folder))


def _data_set(folder: Path) -> None:
    from starbucks_retrieval.train.mixture import DataSet

    DataSet.parse((folder / "set.json").read_text(encoding="utf-8", errors="replace"))


# Collections.
_CORPUS = [{"docid": f"d{i}", "title": f"t{i}", "text": f"w{i} w{i + 1}"} for i in range(4)]
_QUERIES = [{"query_id": f"q{i}", "query": f"w{i}"} for i in range(3)]
_GROUPS = [
    {
        "query_id": "q1",
        "query": "w1",
        "positive_passages": [{"docid": "d1", "title": "", "text": "w2"}],
        "negative_passages": [{"docid": "d2", "title": "", "text": "w3"}],
        "positive_scores": [0.5],
        "negative_scores": [0.1],
    },
    {"query": "w1", "positive": "w2", "negative": "w3"},
]
_PAIRS = [{"sentence1": "w1", "sentence2": "w2", "score": 3.5}, {"sentence1": "w3", "sentence2": "w4", "score": 1}]
_LABELLED = [{"text": "w1", "label": 1}, {"text": "w2", "label": "b"}]
_QREL_ROWS = [{"query-id": f"q{i}", "corpus-id": f"d{i}", "score": i} for i in range(3)]


def _jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _separated(rows: list[dict[str, Any]], separator: str) -> str:
    return "\n".join(separator.join(map(str, cells)) for cells in (rows[0], *(row.values() for row in rows))) + "\n"


def _arrow(name: str, rows: list[dict[str, Any]]) -> Callable[[Path], Any]:
    def write(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        table = pa.Table.from_pylist(rows)
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(table, folder / name)
        else:
            with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
                writer.write_table(table)

    return write


def _saved(splits: bool) -> Callable[[Path], Any]:
    def write(folder: Path) -> None:
        import datasets

        rows = datasets.Dataset.from_list(_CORPUS)
        (datasets.DatasetDict({"train": rows}) if splits else rows).save_to_disk(str(folder / "saved"))

    return write


def _corpus(folder: Path) -> None:
    from starbucks_retrieval.data import open_corpus
    from starbucks_retrieval.data.records import count_records, scan

    for path in folder.iterdir():
        corpus = open_corpus(str(path))
        scan(corpus)
        count_records(corpus)


def _queries(folder: Path) -> None:
    from starbucks_retrieval.data import open_queries
    from starbucks_retrieval.data.records import scan

    for path in folder.iterdir():
        scan(open_queries(str(path)), "queries")


def _groups(folder: Path) -> None:
    from starbucks_retrieval.data import open_groups
    from starbucks_retrieval.data.records import scan

    for path in folder.iterdir():
        scan(open_groups(str(path)), "groups")


def _pairs(folder: Path) -> None:
    from starbucks_retrieval.data.pairs import open_pairs
    from starbucks_retrieval.data.records import scan

    for path in folder.iterdir():
        scan(open_pairs(str(path)), "pairs")


def _labelled(folder: Path) -> None:
    from starbucks_retrieval.data.pairs import open_labelled

    for path in folder.iterdir():
        _all(open_labelled(str(path)))


def _documents(folder: Path) -> None:
    from starbucks_retrieval.data.documents import open_documents

    for path in folder.iterdir():
        _all(open_documents(str(path)))


def _qrels(folder: Path) -> None:
    from starbucks_retrieval.data import read_qrels

    for path in folder.iterdir():
        read_qrels(str(path))


def _run(folder: Path) -> None:
    from starbucks_retrieval.data.run_reader import open_run, read_tag

    for path in folder.iterdir():
        found = open_run(path)
        assert found.size is None or found.size.dim
        read_tag(path)


def _evaluate(folder: Path) -> None:
    from starbucks_retrieval.evaluate.__main__ import main

    main(["--qrels", str(folder / "qrels.txt"), "--run", str(folder / "a.run"), "--quiet"])


def _judged_run(folder: Path) -> None:
    _write("qrels.txt", "".join(f"q{i} 0 d{j} {j}\n" for i in range(3) for j in range(3)))(folder)
    _write("a.run", "".join(f"q{i} Q0 d{j} {j + 1} {9 - j}.5 tag-6:128\n" for i in range(3) for j in range(4)))(folder)


# Stores and indexes.
_IDS = [f"d{number}" for number in range(40)]


def _vectors(count: int = 40, dim: int = 8, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def _store(folder: Path, **changes: object) -> None:
    write_store(folder / "L6-D8", _IDS, _vectors(), shard_size=16, **changes)


def _read_store(folder: Path) -> None:
    from starbucks_retrieval.store import open_store

    store = open_store(folder)
    _all(store.blocks(7, np.float32))
    store.ids(np.arange(store.count))
    store.verify()


def _info_store(folder: Path) -> None:
    from starbucks_retrieval.store.__main__ import main

    main(["info", str(folder), "--quiet"])
    main(["verify", str(folder), "--quiet"])


def _resume_store(folder: Path) -> None:
    import os

    os.environ.setdefault("STARBUCKS_CACHE", str(folder / "cache"))
    (folder / "L6-D8" / "00002.json").unlink(missing_ok=True)
    _store(folder)


def _index(folder: Path) -> None:
    from starbucks_retrieval.search.indexes import build_index
    from starbucks_retrieval.store import open_store

    _store(folder)
    build_index(open_store(folder), "IVF4,SQ8", folder / "index", train_sample=40)


def _search_index(folder: Path) -> None:
    from starbucks_retrieval.search.indexes import open_index
    from starbucks_retrieval.store import open_store

    store = open_store(folder)
    index = open_index(folder / "index", store)
    index.search(_vectors(2, seed=3), 5)


def _rebuild_index(folder: Path) -> None:
    _index(folder)


# Results.
_RESULTS: dict[str, Any] = {
    "format": "starbucks-results",
    "version": 1,
    "kind": "grid",
    "label": "ours",
    "layout": "grid",
    "cells": [
        {"dataset": "a", "measure": "nDCG@10", "value": 0.5 + layer / 100, "count": 3, "size": f"{layer}:8"}
        | ({"values": {"q1": 0.5, "q2": 0.6, "q3": 0.4}} if layer == 2 else {})
        for layer in (2, 4)
    ],
    "costs": {f"{layer}:8": {"query_ms": 1.5 * layer, "passage_ms": 2.5, "bytes_per_passage": 16} for layer in (2, 4)},
    "findings": {"a": {"2:8": ["few_queries"]}},
    "runs": [{"label": "ours", "dataset": "a", "size": "2:8", "findings": [{"what": "x", "serious": True}]}],
    "sets": [{"name": "a", "findings": [{"what": "y", "serious": True}]}],
    "provenance": {"configuration": {"grid": True, "model_name_or_path": "m"}},
}


def _results(folder: Path) -> None:
    from starbucks_retrieval.choose import ChooseArguments, choose
    from starbucks_retrieval.errors import UserError
    from starbucks_retrieval.report.findings import preflight_warnings
    from starbucks_retrieval.report.inputs import read_inputs

    refused: UserError | None = None
    path = str(folder / "results.json")
    try:
        inputs = read_inputs([path])
        inputs.choose_sizes()
        for method in inputs.methods:
            assert method.label
    except UserError as error:
        refused = error
    try:
        choose(ChooseArguments([path], auto_sizes=2))
    except UserError as error:
        refused = error
    if refused is None:
        preflight_warnings("ours", json.loads((folder / "results.json").read_text()))
    if refused is not None:
        raise refused


def _report(folder: Path) -> None:
    from starbucks_retrieval.report.__main__ import main

    main(["--input", str(folder / "results.json"), "--output_dir", str(folder / "report"), "--no_figures", "--quiet"])


def _published(folder: Path) -> None:
    from starbucks_retrieval.report.published import read_published

    read_published(folder / "published.json")


_PAPER = {
    "starbucks": {
        "sizes": {"demi": "2,32", "short": "4,64"},
        "table4": {"ours": {"demi": {"STS-B": 80.1, "Average": 79.0}, "short": {"STS-B": 82.1}}},
        "table1": {"ours": {"STS-B": 80.0, "Average": 79.0}},
        "readme_tableA2": {"ours": {"demi": {"fiqa": 0.3}}},
    }
}


# Models.
def _model(folder: Path) -> None:
    save_model(folder / "m", hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)


def _starbucks_model(folder: Path) -> None:
    from starbucks_retrieval.models.config import EncoderConfig
    from starbucks_retrieval.sizes import Sizes

    _model(folder)
    config = EncoderConfig(Sizes([Size(1, 8), Size(2, 16)]), "mean", query_prefix="w1 ", passage_layers=((1, 2),))
    config.save(folder / "m")


def _split_model(folder: Path) -> None:
    _model(folder)
    weights = (folder / "m" / "model.safetensors").read_bytes()
    (folder / "m" / "model.safetensors").unlink()
    (folder / "m" / "model-00001-of-00001.safetensors").write_bytes(weights)
    length = int.from_bytes(weights[:8], "little")
    names = [name for name in json.loads(weights[8 : 8 + length]) if name != "__metadata__"]
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "m" / "model.safetensors.index.json").write_text(json.dumps(index))


def _sentence_model(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    _model(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": 16,
            "pooling_mode_mean_tokens": True,
            "include_prompt": False,
        },
        "2_Dense/config.json": {
            "in_features": 16,
            "out_features": 8,
            "bias": False,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "w1 ", "document": ""},
            "similarity_fn_name": "cosine",
            "truncate_dim": 4,
        },
    }
    for name, content in files.items():
        (folder / "m" / name).parent.mkdir(exist_ok=True)
        (folder / "m" / name).write_text(json.dumps(content))
    save_file({"linear.weight": torch.ones(8, 16)}, folder / "m" / "2_Dense" / "model.safetensors")


def _fitted_model(folder: Path) -> None:
    from fitted_models import fitted, load

    _model(folder)
    encoder, _ = fitted(load(folder / "m"))
    encoder.save_pretrained(folder / "m")


def _load_model(folder: Path) -> None:
    from starbucks_retrieval.errors import UserError
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.models.info import model_info

    refused: UserError | None = None
    try:
        found = model_info(str(folder / "m"))
        found.sizes, found.token_limit, found.parameters(1)
    except UserError as error:
        refused = error
    encoder = NestedEncoder.from_pretrained(folder / "m", device="cpu")
    encoder.encode(["w1 w2 w3", "w4"], encoder.sizes, is_query=True)
    if refused is not None:
        raise refused


def _pickled(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    _model(folder)
    torch.save(load_file(folder / "m" / "model.safetensors"), folder / "m" / "pytorch_model.bin")
    (folder / "m" / "model.safetensors").unlink()


def _convert(folder: Path) -> None:
    import shutil

    from starbucks_retrieval.convert.__main__ import main

    shutil.rmtree(folder / "out", ignore_errors=True)
    main(["--model_name_or_path", str(folder / "m"), "--output_dir", str(folder / "out"), "--quiet"])


# Checkpoints.
def _checkpoint(folder: Path) -> None:
    _model(folder)
    rows = [{"query": f"w{i}", "positive": f"w{i} w{i + 1}"} for i in range(8)]
    (folder / "data.jsonl").write_text(_jsonl(rows))
    _train(folder)
    (folder / "out" / "checkpoint-2" / "trainer_state.json").unlink()


def _train(folder: Path) -> None:
    from starbucks_retrieval.train.__main__ import main

    with contextlib.chdir(folder):  # paths are part of the configuration that a resumed run is compared with
        main(
            [
                *[
                    "--model_name_or_path",
                    "m",
                    "--dataset_path",
                    "data.jsonl",
                    "--output_dir",
                    "out",
                    "--train_group_size",
                    "1",
                ],
                *[
                    "--max_steps",
                    "2",
                    "--per_device_train_batch_size",
                    "2",
                    "--save_steps",
                    "1",
                    "--use_cpu",
                    "--quiet",
                ],
                *["--resume_from_checkpoint", "true"],
            ]
        )


def _list_checkpoints(folder: Path) -> None:
    from starbucks_retrieval.trainer import check_resume_config, complete_checkpoints, prepare_output_dir

    complete_checkpoints(folder)
    prepare_output_dir(folder, True, False)
    check_resume_config(folder, {"sizes": "2:32", "learning_rate": 1e-4}, True, False)


def _list_of_checkpoints(folder: Path) -> None:
    for step in (1, 2):
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(
            json.dumps({"global_step": step, "log_history": []})
        )
    (folder / "run.json").write_text(json.dumps({"sizes": "2:32", "learning_rate": 1e-4}))


def _pickle(folder: Path) -> None:
    with open(folder / "a.pkl", "wb") as file:
        pickle.dump((_vectors(4, 3), ["d1", "d2", "d3", "d4"]), file)


def _embeddings(folder: Path) -> None:
    from starbucks_retrieval.store.safe_pickle import load_embeddings

    load_embeddings(folder / "a.pkl")


def _import(folder: Path) -> None:
    import shutil

    from starbucks_retrieval.store.__main__ import main

    shutil.rmtree(folder / "out", ignore_errors=True)
    main(["import", str(folder / "a.pkl"), str(folder / "out"), "--name", "m", "--layer", "2", "--quiet"])


def _resume(file: str, kind: str) -> Target:
    return Target("checkpoints", f"out/{file}", kind, _checkpoint, _train, writes=True)


_T = Target
TARGETS = [
    *(_T("yaml", "a.yaml", "yaml", _write("a.yaml", text), read) for text, read in ((_ENCODE, _parse_encode), (_TRAIN, _parse_train))),
    _T("yaml", "a.json", "json", _write("a.json", json.dumps({"dataset_path": "q", "model_name_or_path": "m", "encode_output_path": "o", "seed": 8})), _parse_encode),
    _T("yaml", "README.md", "yaml", _write("README.md", _CARD), _card),
    _T("yaml", "set.json", "json", _write("set.json", json.dumps({"name": "a.jsonl", "weight": 2, "train_group_size": 2})), _data_set),
    _T("collections", "corpus.jsonl", "jsonl", _write("corpus.jsonl", _jsonl(_CORPUS)), _corpus),
    _T("collections", "corpus.jsonl.gz", "gzip", _write("corpus.jsonl.gz", gzip.compress(_jsonl(_CORPUS).encode())), _corpus),
    _T("collections", "corpus.tsv", "cells", _write("corpus.tsv", _separated(_CORPUS, "\t")), _corpus),
    _T("collections", "corpus.csv", "cells", _write("corpus.csv", _separated(_CORPUS, ",")), _corpus),
    _T("collections", "corpus.parquet", "table", _arrow("corpus.parquet", _CORPUS), _corpus),
    _T("collections", "corpus.arrow", "table", _arrow("corpus.arrow", _CORPUS), _corpus),
    _T("collections", "saved/state.json", "json", _saved(False), _corpus),
    _T("collections", "saved/dataset_dict.json", "json", _saved(True), _corpus),
    _T("collections", "queries.jsonl", "jsonl", _write("queries.jsonl", _jsonl(_QUERIES)), _queries),
    _T("collections", "queries.tsv", "cells", _write("queries.tsv", _separated(_QUERIES, "\t")), _queries),
    _T("collections", "groups.jsonl", "jsonl", _write("groups.jsonl", _jsonl(_GROUPS)), _groups),
    _T("collections", "groups.parquet", "table", _arrow("groups.parquet", _GROUPS[:1]), _groups),
    _T("collections", "pairs.jsonl", "jsonl", _write("pairs.jsonl", _jsonl(_PAIRS)), _pairs),
    _T("collections", "pairs.tsv", "cells", _write("pairs.tsv", _separated(_PAIRS, "\t")), _pairs),
    _T("collections", "pairs.parquet", "table", _arrow("pairs.parquet", [_PAIRS[0]]), _pairs),
    _T("collections", "labelled.jsonl", "jsonl", _write("labelled.jsonl", _jsonl(_LABELLED)), _labelled),
    _T("collections", "documents.jsonl", "jsonl", _write("documents.jsonl", _jsonl(_CORPUS)), _documents),
    _T("collections", "documents.txt", "bytes", _write("documents.txt", "w1 w2\n\nw3\n"), _documents),
    _T("qrels", "qrels.txt", "cells", _write("qrels.txt", "".join(f"q{i} 0 d{i} {i}\n" for i in range(4))), _qrels),
    _T("qrels", "qrels.tsv", "cells", _write("qrels.tsv", _separated(_QREL_ROWS, "\t")), _qrels),
    _T("qrels", "qrels.csv", "cells", _write("qrels.csv", _separated(_QREL_ROWS, ",")), _qrels),
    _T("qrels", "qrels.jsonl", "jsonl", _write("qrels.jsonl", _jsonl(_QREL_ROWS)), _qrels),
    _T("qrels", "qrels.parquet", "table", _arrow("qrels.parquet", _QREL_ROWS), _qrels),
    _T("runs", "a.run", "cells", _write("a.run", "".join(f"q1 Q0 d{j} {j + 1} {9 - j}.5 tag-6:128\n" for j in range(4))), _run),
    _T("runs", "a.run", "cells", _judged_run, _evaluate),
    _T("runs", "qrels.txt", "cells", _judged_run, _evaluate),
    *(_T("stores", f"L6-D8/{file}", kind, _store, read)
      for file, kind in (("manifest.json", "json"), ("00001.json", "json"), ("00001.vectors.npy", "npy"), ("00001.ids.npy", "npy"))
      for read in (_read_store, _info_store)),
    *(_T("stores", f"L6-D8/{file}", kind, _store, _resume_store, writes=True)
      for file, kind in (("manifest.json", "json"), ("00001.json", "json"), ("00001.ids.npy", "npy"))),
    _T("stores", "a.pkl", "bytes", _pickle, _embeddings),
    _T("stores", "a.pkl", "bytes", _pickle, _import, writes=True),
    _T("indexes", "index/manifest.json", "json", _index, _search_index),
    _T("indexes", "index/index.faiss", "bytes", _index, _search_index),
    _T("indexes", "index/manifest.json", "json", _index, _rebuild_index, writes=True),
    _T("results", "results.json", "json", _write("results.json", json.dumps(_RESULTS)), _results),
    _T("results", "results.json", "json", _write("results.json", json.dumps(_RESULTS)), _report, writes=True),
    _T("results", "published.json", "json", _write("published.json", json.dumps(_PAPER)), _published),
    *(_T("models", f"m/{file}", kind, _starbucks_model, _load_model)
      for file, kind in (("config.json", "json"), ("starbucks.json", "json"), ("tokenizer.json", "json"),
                         ("tokenizer_config.json", "json"), ("model.safetensors", "safetensors"))),
    _T("models", "m/model.safetensors.index.json", "json", _split_model, _load_model),
    *(_T("models", f"m/{file}", kind, _sentence_model, _load_model)
      for file, kind in (("modules.json", "json"), ("1_Pooling/config.json", "json"), ("2_Dense/config.json", "json"),
                         ("2_Dense/model.safetensors", "safetensors"), ("sentence_bert_config.json", "json"),
                         ("config_sentence_transformers.json", "json"))),
    *(_T("models", f"m/{file}", kind, _fitted_model, _load_model)
      for file, kind in (("projections.safetensors", "safetensors"), ("starbucks.json", "json"))),
    *(_T("convert", f"m/{file}", kind, _pickled, _convert, writes=True)
      for file, kind in (("pytorch_model.bin", "bytes"), ("config.json", "json"), ("tokenizer.json", "json"))),
    _T("convert", "m/modules.json", "json", _sentence_model, _convert, writes=True),
    _T("checkpoints", "checkpoint-2/trainer_state.json", "json", _list_of_checkpoints, _list_checkpoints, writes=True),
    _T("checkpoints", "run.json", "json", _list_of_checkpoints, _list_checkpoints, writes=True),
    *(_resume(f"checkpoint-1/{file}", kind)
      for file, kind in (("trainer_state.json", "json"), ("starbucks.json", "json"), ("model.safetensors", "safetensors"),
                         ("optimizer.pt", "bytes"), ("scheduler.pt", "bytes"), ("rng_state.pth", "bytes"))),
    _resume("run.json", "json"),
]  # fmt: skip
