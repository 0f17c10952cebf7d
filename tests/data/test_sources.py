"""Which of the four spellings a string is, and what the two remote ones do, with stand-ins for their packages."""

import json
import sys
import types
from collections import namedtuple

import pytest
from conftest import hub_builder

from starbucks_retrieval.data import (
    Group,
    Passage,
    Query,
    open_corpus,
    open_groups,
    open_queries,
    read_qrels,
)
from starbucks_retrieval.data.ir_datasets import LICENSED, SHORT_NAMES, resolve_short_name
from starbucks_retrieval.errors import UserError


@pytest.mark.parametrize(
    "spelling",
    ["./corpus", "/nowhere/corpus", "~/nowhere-at-all", "corpus.jsonl", "c.tsv.gz", "c.parquet", "a/b/c", "here/c", ""],
)
@pytest.mark.parametrize("opener", [open_corpus, open_queries, open_groups, read_qrels])
def test_a_missing_path_is_said_so_at_once(spelling, opener, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(UserError, match="no such file"):
        opener(spelling)


def test_unknown_endings(tmp_path):
    for name in ("c.xml", "corpus"):
        (tmp_path / name).write_text("1\ta\n")
        with pytest.raises(UserError, match="cannot tell the format") as raised:
            open_corpus(str(tmp_path / name))
        assert ".jsonl" in raised.value.hint and ".csv" in raised.value.hint


@pytest.mark.parametrize("name", ["c.parquet.gz", "c.arrow.gz"])
def test_tables_are_not_read_through_gzip(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match="not read through gzip") as raised:
        list(open_corpus(str(tmp_path / name)))
    assert "gunzip" in raised.value.hint


def test_folder_without_the_file(tmp_path):
    (tmp_path / "queries.jsonl").write_text("")
    with pytest.raises(UserError, match=r"holds no corpus\.jsonl"):
        open_corpus(str(tmp_path))


Doc = namedtuple("Doc", "doc_id title text")
Report = namedtuple("Report", "doc_id body")
Report.default_text = lambda self: self.body
Topic = namedtuple("Topic", "query_id text")
Judgement = namedtuple("Judgement", "query_id doc_id relevance iteration")


class FakeIr:
    """As much of an ir_datasets data set as the reader touches."""

    def __init__(self, docs=(), queries=(), qrels=()):
        self._parts = {"docs": docs, "queries": queries, "qrels": qrels}

    def __getattr__(self, name):
        if name.startswith("has_"):
            return lambda: bool(self._parts[name[4:]])
        return lambda: iter(self._parts[name.removesuffix("_iter")])


@pytest.fixture
def ir(monkeypatch):
    shelf = {}
    monkeypatch.setitem(sys.modules, "ir_datasets", types.SimpleNamespace(load=lambda name: shelf[name]))
    return shelf


def test_ir_datasets(ir):
    ir["set/train"] = FakeIr(
        [Doc("a", "T", "x"), Report("b", "y"), Doc("c", None, "z")],
        [Topic("1", "why"), Topic("2", "how")],
        [Judgement("1", "b", 2, "0"), Judgement("1", "a", 0, "0")],
    )
    corpus = open_corpus("ir:set/train")
    assert list(corpus) == [Passage("a", "T", "x"), Passage("b", "", "y"), Passage("c", "", "z")]
    assert list(corpus.numbered(1, 2)) == [(2, Passage("b", "", "y"))]
    assert list(open_queries("ir:set/train")) == [Query("1", "why"), Query("2", "how")]
    assert read_qrels("ir:set/train") == {"1": {"b": 2, "a": 0}}
    assert list(open_groups("ir:set/train")) == [Group("1", "why", ("b",), ("a",), None)]


def test_ir_datasets_errors(ir, monkeypatch):
    with pytest.raises(UserError, match="has no data set 'set'"):
        list(open_corpus("ir:set"))
    ir["set"] = FakeIr(docs=[Doc("a", "", "x")])
    with pytest.raises(UserError, match="has no queries"):
        list(open_queries("ir:set"))

    def unplugged():
        yield Doc("a", "", "x")
        raise ConnectionError("no route\nto host")

    ir["set"].docs_iter = unplugged
    with pytest.raises(UserError, match="cannot read corpus of ir_datasets' set: ConnectionError: no route to host"):
        list(open_corpus("ir:set"))
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(UserError, match="needs the package ir_datasets") as raised:
        list(open_corpus("ir:set"))
    assert raised.value.hint.startswith("pip install ir-datasets, or name local files")


def test_pyserini_stands_in_for_topics_and_judgements(ir, monkeypatch):
    search = types.SimpleNamespace(
        get_topics=lambda name: {5: {"title": f"of {name}"}, 9: {"title": "not judged"}},
        get_qrels=lambda name: {5: {7: "2", "MARCO_8": 0}},
    )
    monkeypatch.setitem(sys.modules, "pyserini", types.ModuleType("pyserini"))
    monkeypatch.setitem(sys.modules, "pyserini.search", search)
    # Either ir_datasets does not know the name, or it is not there at all.
    for module in (sys.modules["ir_datasets"], None):
        monkeypatch.setitem(sys.modules, "ir_datasets", module)
        assert read_qrels("dl19") == {"5": {"7": 2, "MARCO_8": 0}}
        assert list(open_queries("dl19")) == [Query("5", "of dl19-passage")]
        assert next(iter(open_queries("beir/cqadupstack/gis"))).text == "of beir-v1.0.0-cqadupstack-gis-test"
        for name, split in (("dl-hard", "test"), ("beir/fiqa", "train"), ("beir/msmarco", "test")):
            with pytest.raises(UserError, match="ir_datasets"):
                read_qrels(name, split=split)
        with pytest.raises(UserError, match="ir_datasets"):
            list(open_corpus("dl19"))
    monkeypatch.setitem(sys.modules, "pyserini.search", None)
    with pytest.raises(UserError, match="needs the package ir_datasets"):
        read_qrels("dl19")


def test_short_names_are_ir_datasets_ids(ir, tmp_path, monkeypatch):
    ir["beir/scifact/test"] = FakeIr([Doc("a", "", "x")], [Topic("1", "why")], [Judgement("1", "a", 1, "0")])
    ir["beir/scifact/train"] = FakeIr([Doc("a", "", "x")], [Topic("2", "how")], [Judgement("2", "a", 1, "0")])
    assert [q.query_id for q in open_queries("beir/scifact")] == ["1"]
    assert [q.query_id for q in open_queries("beir/scifact", split="train")] == ["2"]
    assert list(read_qrels("beir/scifact")) == ["1"]
    # Training rows are never made from test judgements unless somebody says so.
    assert [group.query_id for group in open_groups("beir/scifact")] == ["2"]
    with pytest.raises(UserError, match="dl19 has no split 'train'"):
        open_groups("dl19")
    # A file or folder of that name comes first.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beir" / "scifact").mkdir(parents=True)
    (tmp_path / "beir" / "scifact" / "queries.jsonl").write_text('{"_id": "local", "text": "x"}')
    assert [q.query_id for q in open_queries("beir/scifact")] == ["local"]


@pytest.mark.parametrize("name", LICENSED)
def test_sets_that_nobody_may_pass_on_say_where_they_come_from(name, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=f"{name} may not be passed on") as caught:
        open_corpus(name)
    assert "folder" in caught.value.hint
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "one"}\n')
    assert [passage.docid for passage in open_corpus(name)] == ["d1"]


def test_the_table_of_short_names():
    assert {"msmarco-dev", "dl19", "dl20", "beir/scifact", "beir/cqadupstack/android"} <= set(SHORT_NAMES)
    assert len([name for name in SHORT_NAMES if name.startswith("beir/") and name.count("/") == 1]) == 14
    for name, splits in SHORT_NAMES.items():
        assert resolve_short_name(name, None) in splits.values()
        assert all("/" in dataset_id and not dataset_id.startswith("ir:") for dataset_id in splits.values())
    assert resolve_short_name("scifact", None) is None


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for datasets whose load_dataset_builder is set by the test."""
    module = types.ModuleType("datasets")
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_hub_data_set(hub):
    calls = []

    def load_dataset_builder(name, config):
        calls.append((name, config))
        rows = {"train": [{"docid": 1, "text": "x"}, {"docid": 2, "text": "y"}], "dev": [{"docid": 3, "text": "z"}]}
        return hub_builder(rows)

    hub.load_dataset_builder = load_dataset_builder
    assert [p.docid for p in open_corpus("org/set", config="c")] == ["1", "2"]
    assert [p.docid for p in open_corpus("org/set", split="dev")] == ["3"]
    assert list(open_corpus("org/set").numbered(1)) == [(2, Passage("2", "", "y"))]
    assert calls[0] == ("org/set", "c")
    with pytest.raises(UserError, match="org/set has no split 'test'") as raised:
        list(open_corpus("org/set", split="test"))
    assert raised.value.hint == "name one of train, dev"


def test_hub_qrels_and_the_row_of_an_error(hub):
    hub.load_dataset_builder = lambda name, config: hub_builder({"test": [{"query-id": 1, "corpus-id": 2, "score": 1}]})
    assert read_qrels("BeIR/scifact-qrels") == {"1": {"2": 1}}
    hub.load_dataset_builder = lambda name, config: hub_builder(
        {"test": [{"query-id": 1, "corpus-id": 2, "score": 0.5}]}
    )
    with pytest.raises(UserError, match=r"BeIR/scifact-qrels:1: the grade 0\.5 is not an integer"):
        read_qrels("BeIR/scifact-qrels")
    hub.load_dataset_builder = lambda name, config: hub_builder({"train": [{"docid": 1, "text": "x"}, {"docid": 2}]})
    with pytest.raises(UserError, match=r"org/set \(c, train\):2: no column text or contents: the row has docid"):
        list(open_corpus("org/set", config="c", split="train"))


def test_hub_out_of_reach(hub):
    def load_dataset_builder(name, config):
        raise ConnectionError("Couldn't reach\nthe Hub")

    hub.load_dataset_builder = load_dataset_builder
    with pytest.raises(UserError, match="cannot read the Hugging Face data set 'org/set': ConnectionError") as raised:
        list(open_corpus("org/set"))
    assert "\n" not in raised.value.what and "network" in raised.value.hint

    def breaks_off():
        yield {"docid": 1, "text": "x"}
        raise OSError("connection reset")

    hub.load_dataset_builder = lambda name, config: hub_builder({"train": breaks_off()})
    with pytest.raises(UserError, match="OSError: connection reset"):
        list(open_corpus("org/set"))


def test_an_error_of_the_reader_s_user_is_not_taken_for_the_network_s(hub):
    hub.load_dataset_builder = lambda name, config: hub_builder({"train": [{"docid": 1, "text": "x"}]})
    with pytest.raises(ZeroDivisionError):
        for _ in open_corpus("org/set"):
            raise ZeroDivisionError


def test_hub_data_set_with_a_loading_script_is_read_from_its_converted_branch(hub):
    def load_dataset_builder(name, config, revision=None):
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found set.py")
        return hub_builder({"train": [{"docid": 1, "text": "x"}]})

    hub.load_dataset_builder = load_dataset_builder
    assert [p.docid for p in open_corpus("org/set")] == ["1"]


def test_the_real_datasets_package(tmp_path):
    """Configurations named corpus and queries, as BEIR's sets have on the hub; and a folder of save_to_disk."""
    import datasets

    from starbucks_retrieval.data.hub import HubData

    datasets.disable_progress_bars()
    parts = {"corpus": {"_id": "1", "title": "t", "text": "x"}, "queries": {"_id": "q", "text": "why"}}
    header = ["---", "configs:"]
    for name, row in parts.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        header += [f"- config_name: {name}", "  data_files:", f"  - split: {name}", f"    path: {name}.jsonl"]
    (tmp_path / "README.md").write_text("\n".join([*header, "---", ""]))
    for name, row in parts.items():
        assert list(HubData(str(tmp_path), name).rows()) == [(1, row)]
    with pytest.raises(UserError, match="Config name is missing"):
        list(HubData(str(tmp_path), "groups").rows())

    rows = [{"docid": str(i), "text": f"text {i}"} for i in range(10)]
    saved = datasets.Dataset.from_list(rows)
    saved.select(range(9, -1, -1)).save_to_disk(tmp_path / "saved", num_shards=3)
    assert [p.docid for p in open_corpus(str(tmp_path / "saved"))] == [str(i) for i in range(9, -1, -1)]
    datasets.DatasetDict(train=saved, dev=saved.select([4])).save_to_disk(tmp_path / "both")
    assert [p.text for p in open_corpus(str(tmp_path / "both"), split="dev")] == ["text 4"]
    assert len(list(open_corpus(str(tmp_path / "both")).rows(2, 7))) == 5
