"""The command encode: stores equal to the Python API, resume after kill -9, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder, Size, Sizes
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode.__main__ import main
from starbucks_retrieval.store import open_store
from starbucks_retrieval.store.convert import quantise_stores


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = [
        {
            "_id": f"é{i}😀",
            "title": "w1" if i % 3 else "",
            "text": " ".join(f"w{k}" for k in rng.integers(0, 95, i % 50)),
        }
        for i in range(150)
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def flags(model, corpus, output, *more):
    base = ["--model_name_or_path", str(model), "--dataset_path", str(corpus), "--encode_output_path", str(output)]
    return [*base, "--dtype", "fp32", "--quiet", *more]


def encode(*arguments):
    assert run_command(main, flags(*arguments)) == 0


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_all_sizes_in_one_pass_equal_the_python_api(tiny_bert, corpus, tmp_path):
    encode(tiny_bert, corpus, tmp_path, "--sizes", "1:4,2:8,4:32", "--store_dtype", "float32", "--shard_size", "64")
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    texts = [f"{row['title']} {row['text']}".strip() for row in rows]
    expected = NestedEncoder.from_pretrained(tiny_bert).encode(texts, "1:4,2:8,4:32")
    for size, vectors in expected.items():
        store = open_store(str(tmp_path), size)
        assert store.count == len(rows)
        everything = np.arange(store.count)
        assert store.ids(everything) == [row["_id"] for row in rows]
        np.testing.assert_allclose(store.vectors(everything), vectors, atol=2e-5)
        store.verify()


def test_queries_take_their_own_prefix_and_length(tiny_bert, tmp_path):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = encoder.config.__class__(Sizes.parse("2:8,4:32"), query_prefix="w9 ", query_max_len=4)
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "queries.tsv").write_text("q1\tw1 w2 w3 w4\n")
    encode(
        tmp_path / "model", tmp_path / "queries.tsv", tmp_path / "q", "--encode_is_query", "--store_dtype", "float32"
    )
    store = open_store(str(tmp_path / "q"), Size(2, 8))
    assert (store.spec.kind, store.spec.prefix, store.spec.max_length) == ("queries", "w9 ", 4)
    bare = NestedEncoder.from_pretrained(tiny_bert).encode(["w9 w1"], "2:8")[Size(2, 8)]
    np.testing.assert_allclose(store.vectors(np.array([0])), bare, atol=1e-6)


# Encodes, and stops in the middle as soon as so many files of vectors are there, for the test to kill it.
STOPS = """
import os, signal, sys
from pathlib import Path
from starbucks_retrieval.encode.__main__ import main

def replace(source, target, real=os.replace):
    real(source, target)
    if len(list(Path(target).parents[1].rglob("*.vectors.npy"))) >= int(sys.argv[1]):
        print("stopped", flush=True)
        signal.pause()

os.replace = replace
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_kill_at_any_moment_then_the_same_command_gives_the_same_bytes(tiny_bert, corpus, tmp_path):
    settings = ["--sizes", "1:4,4:32", "--shard_size", "10", "--max_tokens_per_batch", "60"]
    encode(tiny_bert, corpus, tmp_path / "whole", *settings)
    words = flags(tiny_bert, corpus, tmp_path / "cut", *settings)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for wanted in (1, 4, 9):
        # the shallow size's shard is written first: this lands between the two, or inside a write
        command = [sys.executable, "-c", STOPS, str(wanted), *words]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
            assert job.stdout.readline() == b"stopped\n"
            job.send_signal(signal.SIGKILL)
    encode(tiny_bert, corpus, tmp_path / "cut", *settings)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_parts_join_to_the_whole(tiny_bert, corpus, tmp_path):
    encode(tiny_bert, corpus, tmp_path / "whole", "--sizes", "2:8")
    for part in ("0", "1", "2"):
        encode(
            *(tiny_bert, corpus, tmp_path / "parts", "--sizes", "2:8"),
            *("--dataset_number_of_shards", "3", "--dataset_shard_index", part),
        )
    whole, parts = open_store(str(tmp_path / "whole")), open_store(str(tmp_path / "parts"))
    rows = np.arange(150)
    assert parts.ids(rows) == whole.ids(rows)
    np.testing.assert_allclose(parts.vectors(rows), whole.vectors(rows), atol=1e-3)


def test_a_model_that_stores_its_settings_refuses_contradictions(tiny_bert, corpus, tmp_path, capfd):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = encoder.config.__class__(pooling="mean")
    encoder.save_pretrained(tmp_path / "model")
    arguments = (tmp_path / "model", corpus, tmp_path / "out", "--pooling", "cls")
    assert run_command(main, flags(*arguments)) == 2
    assert "contradicts the model's own 'mean'" in capfd.readouterr().err
    encode(*arguments, "--override")
    encode(tiny_bert, corpus, tmp_path / "bare", "--pooling", "mean")  # a bare backbone stores nothing


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (None, (), "no such file"),
        ('{"_id": "1", "text": "w1"}\n{"_id": "2"}\n', (), ":2"),
        ('{"_id": "1", "text": "w1"}\n{oops\n', (), ":2"),
        ('{"_id": "1", "text": "w1"}\n{"_id": "1", "text": "w2"}\n', (), "'1'"),
        ("", (), "holds no passages"),
        (b'{"_id": "1", "text": "\xff"}\n', (), "UTF-8"),
        ('{"_id": "1", "text": "w1"}\n', ("--layer", "13"), "layer 13"),
        ('{"_id": "1", "text": "w1"}\n', ("--dim", "0"), "dims at 1"),
        ('{"_id": "1", "text": "w1"}\n', ("--sizes", "4:64"), "64 dimensions"),
        ('{"_id": "1", "text": "w1"}\n', ("--sizes", "2:8", "--layer", "2"), "contradict"),
        ('{"_id": "1", "text": "w1"}\n', ("--max_tokens_per_batch", "0"), "below 1"),
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(tiny_bert, tmp_path, capfd, content, more, message):
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run_command(main, flags(tiny_bert, path, tmp_path / "out", *more)) == 2
    printed = capfd.readouterr().err
    assert message in printed and "try:" in printed and "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_empty_texts_are_kept_counted_and_told(tiny_bert, tmp_path, capfd):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "1", "text": ""}\n{"_id": "2", "text": "w1"}\n')
    assert run_command(main, [*flags(tiny_bert, path, tmp_path / "out")[:-1], "--json"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["empty"] == 1 and json.loads(printed.out)["texts"] == 2
    assert "empty" in printed.err


def test_an_output_folder_that_holds_something_else_is_left_alone(tiny_bert, corpus, tmp_path, capfd):
    folder = tmp_path / "L4-D32"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    assert run_command(main, flags(tiny_bert, corpus, tmp_path)) == 2
    assert "thesis.txt" in capfd.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    encode(tiny_bert, corpus, tmp_path / "other", "--sizes", "2:8")
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "other", "--sizes", "2:8", "--pooling", "mean")) == 2
    assert "--overwrite" in capfd.readouterr().err
    encode(tiny_bert, corpus, tmp_path / "other", "--sizes", "2:8", "--pooling", "mean", "--overwrite")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full to play a full disk")
def test_a_full_disk_is_told_in_one_line_and_resumed(tiny_bert, corpus, tmp_path, capfd, monkeypatch):
    import starbucks_retrieval.store.layout as layout

    settings = ("--sizes", "2:8", "--shard_size", "50")
    encode(tiny_bert, corpus, tmp_path / "whole", *settings)
    calls = []
    real = layout.save_shard

    def fails_on_the_second(folder, *rest):
        calls.append(folder)
        if len(calls) == 2:
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(b"x")
        return real(folder, *rest)

    monkeypatch.setattr("starbucks_retrieval.store.writer.save_shard", fails_on_the_second)
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "cut", *settings)) == 2
    assert "no space left" in capfd.readouterr().err
    encode(tiny_bert, corpus, tmp_path / "cut", *settings)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_quantised_stores_have_scales_of_spread_texts_and_resume(tiny_bert, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("starbucks_retrieval.store.dtypes.CALIBRATED_ON", 40)
    few = ["--sizes", "1:4,2:8", "--shard_size", "64"]
    encode(tiny_bert, corpus, tmp_path / "floats", *few)
    for store_dtype in ("int8", "binary"):
        encode(tiny_bert, corpus, tmp_path / store_dtype, *few, "--store_dtype", store_dtype)
        before = contents(tmp_path / store_dtype)
        (tmp_path / store_dtype / "L2-D8" / "00001.json").unlink()
        monkeypatch.setattr("starbucks_retrieval.store.spec.Quantiser.calibrate", lambda *_: pytest.fail("again"))
        encode(tiny_bert, corpus, tmp_path / store_dtype, *few, "--store_dtype", store_dtype)
        monkeypatch.undo()
        monkeypatch.setattr("starbucks_retrieval.store.dtypes.CALIBRATED_ON", 40)
        assert contents(tmp_path / store_dtype) == before
    coded, floats = open_store(tmp_path / "int8", "2:8"), open_store(tmp_path / "floats", "2:8")
    rows = np.arange(floats.count)
    assert np.abs(coded.vectors(rows) - floats.vectors(rows)).mean() < 0.02
    quantise_stores([tmp_path / "floats"], "int8")
    # The same texts are calibrated on, whether they are encoded first or not.
    assert open_store(tmp_path / "floats" / "int8", "2:8").spec.scale == pytest.approx(coded.spec.scale, rel=1e-2)
