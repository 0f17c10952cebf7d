"""Candidates on disk: equal searches find them, nothing else does, and a kill leaves nothing that looks whole."""

from __future__ import annotations

import dataclasses
import json
import logging

import numpy as np
import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.mine import candidates as module
from starbucks_retrieval.mine.candidates import Candidates, candidates_folder, load_candidates, save_candidates

IDENTITY = {"engine": "e", "depth": 3, "k1": 0.9}


@pytest.fixture
def candidates():
    rng = np.random.default_rng(0)
    return Candidates(
        rng.integers(0, 9, (4, 3)).astype(np.int32),
        rng.random((4, 3), np.float32),
        np.array([1, np.nan], np.float32),
    )


def same(one, other):
    return all(np.array_equal(*pair, equal_nan=True) for pair in zip(vars(one).values(), vars(other).values()))


def test_what_was_saved_is_found_for_the_same_search_only(tmp_path, candidates, caplog):
    folder = tmp_path / "a" / "b.candidates"
    assert load_candidates(folder, IDENTITY) is None
    save_candidates(folder, candidates, IDENTITY, {"flag": 1})
    found = load_candidates(folder, IDENTITY)
    assert same(found, candidates)
    assert found.rows.dtype == np.int32 and found.scores.dtype == np.float32
    with caplog.at_level(logging.INFO, "starbucks_retrieval"):
        for other in (IDENTITY | {"depth": 4}, IDENTITY | {"new": 1}, {"engine": "e", "depth": 3}):
            assert load_candidates(folder, other) is None
    assert "another search (depth)" in caplog.text
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["provenance"]["configuration"] == {"flag": 1}


def test_saving_again_gives_the_same_bytes(tmp_path, candidates):
    for name in ("one", "two"):
        save_candidates(tmp_path / name, candidates, IDENTITY, {})
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 4
    assert all((tmp_path / "one" / n).read_bytes() == (tmp_path / "two" / n).read_bytes() for n in files)


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_kill_between_any_two_files_leaves_nothing_to_load(tmp_path, candidates, monkeypatch, stop):
    """A first search, or one that replaces another's candidates."""
    for name, before in (("fresh", None), ("replaced", IDENTITY), ("other", IDENTITY | {"depth": 9})):
        folder = tmp_path / name
        if before:
            save_candidates(folder, dataclasses.replace(candidates, rows=candidates.rows + 1), before, {})
        done = []

        def counted(real, done=done):
            def call(*arguments, **options):
                done.append(1)
                if len(done) == stop:
                    raise KeyboardInterrupt
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(module.np, "save", counted(np.save))
            patch.setattr(module, "write_json", counted(module.write_json))
            with pytest.raises(KeyboardInterrupt):
                save_candidates(folder, candidates, IDENTITY, {})
        assert load_candidates(folder, IDENTITY) is None
        assert load_candidates(folder, IDENTITY | {"depth": 9}) is None
        save_candidates(folder, candidates, IDENTITY, {})
        assert same(load_candidates(folder, IDENTITY), candidates)


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{", "{}", '{"format": 1, "identity": 3, "arrays": {}}', '{"format": 1, "identity": []}']
)
def test_a_damaged_manifest_is_no_manifest(tmp_path, candidates, manifest):
    save_candidates(tmp_path, candidates, IDENTITY, {})
    (tmp_path / "manifest.json").write_text(manifest)
    assert load_candidates(tmp_path, IDENTITY) is None


@pytest.mark.parametrize("name", ["rows", "scores", "positive_scores"])
def test_a_changed_or_missing_array_is_noticed(tmp_path, candidates, name):
    save_candidates(tmp_path, candidates, IDENTITY, {})
    path = tmp_path / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load_candidates(tmp_path, IDENTITY) is None
    path.unlink()
    assert load_candidates(tmp_path, IDENTITY) is None


def test_a_manifest_of_another_format_is_not_read(tmp_path, candidates):
    save_candidates(tmp_path, candidates, IDENTITY, {})
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    assert load_candidates(tmp_path, IDENTITY) is None


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    (tmp_path / "o.jsonl.candidates").write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        candidates_folder(tmp_path / "o.jsonl")
