"""A search of damaged stores writes the same run or none. The long version is in tests/attack."""

import json

import pytest
from bit_flips import flipped, outcomes
from searched_stores import LARGE, SEARCHES, searching, write_searched

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.__main__ import main
from starbucks_retrieval.search.engines import EngineOptions
from starbucks_retrieval.search.engines.ray import _open
from starbucks_retrieval.store import checksums, open_store


@pytest.fixture
def files(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(checksums, "_checked", {})
    monkeypatch.setattr(checksums, "BLOCK", 1024)
    return write_searched(tmp_path, 700)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_flipped_bit_is_noticed_or_harmless(files, tmp_path, name):
    found = outcomes(files, 12, len(name), searching(tmp_path, name))
    assert found["noticed"] >= 2


def test_a_run_without_checksums_says_so(files, tmp_path, capfd):
    flags = ["--query_reps", tmp_path / "q", "--passage_reps", tmp_path / "p", "--size", LARGE, "--depth", "5"]
    flags = [str(flag) for flag in (*flags, "--save_ranking_to", tmp_path / "run.trec", "--json", "--quiet")]
    passages = tmp_path / "p" / "L6-D32"
    with flipped(passages / "00000.vectors.npy", 1000, 3):
        assert run_command(main, flags) == 2
        out, err = capfd.readouterr()
        assert "00000.vectors.npy is damaged: its bytes 0 to 1024 do not match" in err and not out
        assert not (tmp_path / "run.trec").exists()
        assert run_command(main, [*flags, "--skip_checksum"]) == 0
    assert json.loads(capfd.readouterr().out)["checksums"] == "skipped"
    tags = {line.split()[-1] for line in (tmp_path / "run.trec").read_text().splitlines()}
    assert tags == {"starbucks-unchecked-6:32"}
    assert run_command(main, flags) == 0
    assert "checksums" not in json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("name", SEARCHES)
def test_no_kind_of_search_compares_checksums_if_none_is_wanted(files, tmp_path, name, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("compared")

    monkeypatch.setattr(checksums, "damaged_block", refuse)
    assert searching(tmp_path, name, skip_checksum=True)()


def test_workers_of_ray_compare_checksums_as_the_search_does(files, tmp_path):
    folders = open_store(tmp_path / "p", LARGE).folders
    with flipped(folders[0] / "00000.ids.npy", 500, 1):
        assert _open(folders, 8, EngineOptions(checksum=False).checksum).ids([3])
        with pytest.raises(UserError, match="do not match their checksum"):
            _open(folders, 8, EngineOptions().checksum).ids([3])
