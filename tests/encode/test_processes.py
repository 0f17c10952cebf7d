"""Several processes, Ray, and other back ends write what one process writes; what is lost is done by the others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from waiting import wait_until

from starbucks_retrieval import Sizes
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode.__main__ import main
from starbucks_retrieval.encode.processes import PORT, WorkerGroup, _loopback_store
from starbucks_retrieval.store import open_store

SETTINGS = ("--sizes", "1:4,4:32", "--shard_size", "10", "--max_tokens_per_batch", "60")
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = [" ".join(f"w{k}" for k in rng.integers(0, 95, 1 + i % 50)) for i in range(150)]
    path.write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


def flags(model, corpus, output, *more):
    base = ["--model_name_or_path", str(model), "--dataset_path", str(corpus), "--encode_output_path", str(output)]
    return [*base, *(() if "--dtype" in more or "auto" in more else ("--dtype", "fp32")), *more]


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def command(*words):
    return [sys.executable, "-m", "starbucks_retrieval.encode", *words]


@pytest.fixture(scope="module")
def whole(tiny_bert, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert run_command(main, flags(tiny_bert, corpus, folder, *SETTINGS, "--quiet")) == 0
    return contents(folder)


def test_two_processes_share_the_items(monkeypatch):
    """As two threads, each with the group of a process: starting the processes takes seconds."""
    store = _loopback_store(dist.TCPStore)
    groups = []
    for rank in range(2):
        for name, value in (("WORLD_SIZE", 2), (PORT, store.port), ("RANK", rank)):
            monkeypatch.setenv(name, str(value))
        groups.append(WorkerGroup())

    def work(group):
        plan = group.broadcast("plan", lambda: ["of", group.rank])
        shared = list(group.share(range(10, 40)))
        gathered = group.gather(shared)
        group.shutdown()
        return plan, shared, gathered

    with ThreadPoolExecutor(2) as pool:
        (plan, first, gathered), (same, second, own) = pool.map(work, groups)
    assert plan == same == ["of", 0]
    assert sorted(first + second) == list(range(10, 40)) and first == sorted(first) and second == sorted(second)
    assert gathered == [first, second] and own == [second]


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one(tiny_bert, corpus, tmp_path, whole):
    words = flags(tiny_bert, corpus, tmp_path / "two", *SETTINGS, "--num_processes", "2", "--json", "--quiet")
    done = subprocess.run(command(*words), env=ALONE, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert (figures["processes"], figures["encoded"]) == (2, 150) and not done.stderr
    assert contents(tmp_path / "two") == whole


@pytest.mark.slow
def test_torchrun_does_the_same(tiny_bert, corpus, tmp_path, whole):
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = flags(tiny_bert, corpus, tmp_path / "two", *SETTINGS, "--json")
    done = subprocess.run([*run, "-m", "starbucks_retrieval.encode", *words], env=ALONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["encoded"] == 150  # the first process alone speaks
    assert contents(tmp_path / "two") == whole


def _killed(command, rank, folder):
    """Start a job of two processes and kill one of them once the first shards are there; the job's exit status."""
    import psutil

    job = subprocess.Popen(command, env=ALONE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_until(lambda: len(list(folder.rglob("*.vectors.npy"))) >= 3, job)
    for child in psutil.Process(job.pid).children():
        if child.environ().get("RANK") == str(rank):
            child.send_signal(signal.SIGKILL)
    _, err = job.communicate()
    return job.returncode, err


@pytest.mark.slow
def test_a_lost_process_leaves_its_shards_to_the_others(tiny_bert, corpus, tmp_path, whole):
    words = flags(tiny_bert, corpus, tmp_path / "two", *SETTINGS, "--shard_size", "3", "--num_processes", "2")
    status, err = _killed(command(*words), 1, tmp_path / "two")
    assert status == 0 and "process 1 was lost" in err
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "one", *SETTINGS, "--shard_size", "3", "--quiet")) == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


@pytest.mark.slow
def test_a_lost_first_process_ends_the_job_and_a_rerun_completes_it(tiny_bert, corpus, tmp_path, whole):
    words = flags(tiny_bert, corpus, tmp_path / "two", *SETTINGS, "--num_processes", "2")
    status, err = _killed(command(*words), 0, tmp_path / "two")
    assert status == 2 and "it resumes" in err
    subprocess.run(command(*words), env=ALONE, check=True, capture_output=True)
    assert contents(tmp_path / "two") == whole


@pytest.mark.slow
def test_bad_input_ends_all_processes_with_one_message(tiny_bert, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "w1"}\n{oops\n')
    words = flags(tiny_bert, tmp_path / "corpus.jsonl", tmp_path / "out", "--num_processes", "2")
    done = subprocess.run(command(*words), env=ALONE, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count(":2") == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_group_of_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = WorkerGroup()
    assert group.is_leader and list(group.share([4, 5])) == [4, 5]
    assert group.broadcast("x", lambda: 3) == 3 and group.gather("mine") == ["mine"]


def test_only_this_machine_can_reach_the_store_of_num_processes():
    asked = {}

    def make_store(host, port, master_listen_fd, **options):
        with socket.socket(fileno=master_listen_fd) as listener:
            asked.update(address=listener.getsockname(), wanted=(host, port), **options)

    _loopback_store(make_store)
    assert asked["address"] == asked["wanted"] and asked["address"][0] == "127.0.0.1" and asked["is_master"]


# ---------------------------------------------------------------- Ray


@pytest.mark.slow
def test_two_ray_workers_write_the_bytes_of_one_process(tiny_bert, corpus, tmp_path, whole):
    pytest.importorskip("ray")
    words = flags(tiny_bert, corpus, tmp_path / "ray", *SETTINGS, "--engine", "ray", "--ray_workers", "2", "--json")
    done = subprocess.run(command(*words), env=ALONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["encoded"] == 150
    assert contents(tmp_path / "ray") == whole


@pytest.mark.slow
def test_a_lost_ray_worker_is_replaced(tiny_bert, corpus, tmp_path):
    pytest.importorskip("ray")
    import psutil

    settings = (*SETTINGS, "--shard_size", "1")
    words = flags(tiny_bert, corpus, tmp_path / "ray", *settings, "--engine", "ray", "--ray_workers", "2")
    job = subprocess.Popen(command(*words), env=ALONE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_until(lambda: len(list((tmp_path / "ray").rglob("*.vectors.npy"))) >= 3, job)
    workers = [p for p in psutil.Process(job.pid).children(recursive=True) if "MapWorker" in "".join(p.cmdline())]
    assert len(workers) == 2
    workers[0].send_signal(signal.SIGKILL)
    _, err = job.communicate()
    assert job.returncode == 0, err
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "one", *settings, "--quiet")) == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


def test_what_a_ray_worker_finds_wrong_is_the_user_s_to_read():
    from starbucks_retrieval.errors import UserError
    from starbucks_retrieval.ray_cluster import user_error

    try:
        try:
            raise UserError("no such file: x", "check the path")
        except UserError as error:
            raise RuntimeError("task failed") from error
    except RuntimeError as error:
        found = user_error(error)
    assert found is not None and (found.what, found.hint) == ("no such file: x", "check the path")
    assert user_error(RuntimeError("a bug")) is None


# ---------------------------------------------------------------- back ends


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_other_back_ends_fill_the_same_store(tiny_bert, corpus, tmp_path, backend):
    pytest.importorskip("onnxruntime" if backend == "onnx" else "openvino")
    words = ("--sizes", "1:4,4:32", "--store_dtype", "float32", "--quiet", "--dtype", "fp32")
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "torch", *words)) == 0
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / backend, *words, "--backend", backend)) == 0
    for size in Sizes.parse("1:4,4:32"):
        ours, theirs = (open_store(tmp_path / name, size) for name in ("torch", backend))
        assert theirs.spec.compute_dtype == f"{backend}-fp32"
        rows = np.arange(ours.count)
        np.testing.assert_allclose(theirs.vectors(rows), ours.vectors(rows), atol=1e-4)


@pytest.mark.slow
def test_a_choice_left_open_follows_what_was_begun(tiny_bert, corpus, tmp_path, capfd):
    pytest.importorskip("onnxruntime")
    words = ("--sizes", "2:8", "--shard_size", "50")
    assert run_command(main, flags(tiny_bert, corpus, tmp_path, *words, "--backend", "onnx", "--quiet")) == 0
    shard = next(tmp_path.rglob("00001.json"))
    kept = contents(tmp_path)
    shard.unlink()
    assert run_command(main, flags(tiny_bert, corpus, tmp_path, *words, "--backend", "auto", "--quiet")) == 0
    assert contents(tmp_path) == kept
    assert run_command(main, flags(tiny_bert, corpus, tmp_path, *words, "--quiet")) == 2  # torch was asked for
    assert "onnx-fp32" in capfd.readouterr().err


@pytest.mark.slow
def test_auto_picks_one_and_says_which(tiny_bert, corpus, tmp_path, capfd):
    words = flags(tiny_bert, corpus, tmp_path, "--sizes", "2:8", "--backend", "auto", "--json")
    assert run_command(main, words) == 0
    printed = capfd.readouterr()
    figures = json.loads(printed.out)
    speeds = figures["measured_texts_per_second"]
    assert figures["runtime"] in speeds and speeds[figures["runtime"]] == max(speeds.values())
    assert f"--backend auto: {figures['runtime']}" in printed.err


@pytest.mark.slow
def test_int8_tells_how_far_it_strays(tiny_bert, corpus, tmp_path, capfd):
    pytest.importorskip("nncf")
    words = flags(tiny_bert, corpus, tmp_path, "--sizes", "2:8", "--backend", "openvino", "--dtype", "int8", "--json")
    assert run_command(main, words) == 0
    printed = capfd.readouterr()
    drift = json.loads(printed.out)["drift"]["2:8"]
    assert 0.5 < drift["cosine"] < 1 and 0 < drift["top10"] <= 1
    assert "openvino-int8 against fp32 at 2:8" in printed.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--dtype", "int8"), "--backend openvino"),
        (("--num_processes", "0"), "below 1"),
        (("--engine", "ray", "--num_processes", "2"), "--ray_workers"),
        (("--torch_compile", "--backend", "onnx"), "--torch_compile"),
    ],
)
def test_flags_that_do_not_fit_are_refused(tiny_bert, corpus, tmp_path, capfd, more, message):
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "out", *more)) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ray_is_not_for_processes_of_a_launcher(tiny_bert, corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_command(main, flags(tiny_bert, corpus, tmp_path / "out", "--engine", "ray")) == 2
    assert "without torchrun" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
