"""Files of the hub are downloaded once, when their first row is needed, and read from the local copy."""

from __future__ import annotations

import gzip
import json
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import hub_builder

from starbucks_retrieval.data import open_corpus, open_groups
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import cache_folder


class Hub:
    """A stand-in for the hub: `folder` has its files, `downloads` what was fetched, `online` whether it can be asked."""

    def __init__(self, folder):
        self.folder, self.online, self.downloads, self.asked = folder, True, [], 0
        self.cache: set = set()

    def load_dataset_builder(self, name, config):
        if not self.online:
            raise ConnectionError("no network")
        self.asked += 1
        files = {}
        for path in sorted(self.folder.iterdir()):
            files.setdefault(path.name.split("-")[0], []).append(f"hf://datasets/{name}@c0ffee/{path.name}")
        return hub_builder({}, files)

    def hf_hub_download(self, name, path, *, repo_type, revision):
        assert (name, repo_type, revision) == ("org/set", "dataset", "c0ffee")
        if path not in self.cache:
            if not self.online:
                raise ConnectionError("no network")
            self.downloads.append(path)
            self.cache.add(path)
        return str(self.folder / path)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    (tmp_path / "hub").mkdir()
    hub = Hub(tmp_path / "hub")
    module = types.ModuleType("datasets")
    module.load_dataset_builder = hub.load_dataset_builder
    monkeypatch.setitem(__import__("sys").modules, "datasets", module)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.hf_hub_download)
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "cache"))
    return hub


def parquet(path, ids):
    rows = {"docid": [f"d{i}" for i in ids], "text": [f"text {i}" for i in ids], "vector": [[0.5, 0.5] for _ in ids]}
    pq.write_table(pa.table(rows), path, row_group_size=2)


def test_a_parquet_set_is_downloaded_once_and_file_by_file(hub):
    parquet(hub.folder / "train-0.parquet", range(5))
    parquet(hub.folder / "train-1.parquet", range(5, 8))
    parquet(hub.folder / "test-0.parquet", range(8, 9))
    corpus = open_corpus("org/set")
    assert next(iter(corpus)).docid == "d0" and hub.downloads == ["train-0.parquet"]
    assert [p.docid for p in corpus] == [f"d{i}" for i in range(8)] and hub.asked == 1
    assert [p.docid for p in open_corpus("org/set")] == [f"d{i}" for i in range(8)]  # of a later stage
    assert hub.downloads == ["train-0.parquet", "train-1.parquet"]
    assert [(number, p.docid) for number, p in corpus.numbered(4, 7)] == [(5, "d4"), (6, "d5"), (7, "d6")]
    assert [p.docid for p in corpus.rows(6)] == ["d6", "d7"] and not list(corpus.rows(8))
    assert [p.docid for p in open_corpus("org/set", split="test")] == ["d8"]


def test_what_was_read_can_be_read_again_without_the_network(hub, caplog):
    parquet(hub.folder / "train-0.parquet", range(3))
    parquet(hub.folder / "train-1.parquet", range(3, 6))
    assert next(iter(open_corpus("org/set"))).docid == "d0"
    hub.online = False
    assert [p.docid for p in open_corpus("org/set").rows(0, 3)] == ["d0", "d1", "d2"]
    assert "the files of the last time are read" in caplog.text
    with pytest.raises(UserError, match="cannot read the Hugging Face data set 'org/set': ConnectionError"):
        list(open_corpus("org/set"))  # the second file was never needed
    with pytest.raises(UserError, match="cannot read the Hugging Face data set 'org/other'"):
        list(open_corpus("org/other"))
    assert len(list((cache_folder() / "hub").iterdir())) == 1


def test_jsonl_files_are_read_from_their_copies(hub):
    rows = [{"query": f"q{i}", "positive": f"p{i}", "empty": {}} for i in range(4)]
    (hub.folder / "train-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    with gzip.open(hub.folder / "train-1.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows[2:]))
    groups = open_groups("org/set")
    for _ in range(2):
        assert [group.query for group in groups] == ["q0", "q1", "q2", "q3"]
    assert [group.query for group in groups.rows(2)] == ["q2", "q3"] and not list(groups.rows(4))
    assert [number for number, _ in groups.numbered(1, 3)] == [2, 3]
    assert len(hub.downloads) == 2


def test_another_format_is_parsed_from_the_copy_with_the_settings_of_the_set(tmp_path):
    """By the package datasets itself: a csv with semicolons, as the set's README says."""
    import datasets

    from starbucks_retrieval.data.hub import HubData

    datasets.disable_progress_bars()
    lines = ["docid;text", *(f"{i};text {i}" for i in range(4))]
    (tmp_path / "a.csv").write_text("\n".join(lines[:3]) + "\n")
    (tmp_path / "b.csv").write_text("\n".join([lines[0], *lines[3:]]) + "\n")
    header = ["---", "configs:", "- config_name: default", "  sep: ;", "  data_files:", "  - split: train"]
    (tmp_path / "README.md").write_text("\n".join([*header, "    path: '*.csv'", "---", ""]))
    found = [(i + 1, {"docid": i, "text": f"text {i}"}) for i in range(4)]
    for start, stop in ((0, None), (1, 3), (2, None), (3, 9), (4, None)):
        assert list(HubData(str(tmp_path), "corpus").rows(start, stop)) == found[start:stop]
