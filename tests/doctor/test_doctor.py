"""doctor: facts, findings with remedies, and broken packages that must not break it."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from starbucks_retrieval.cli import run_door
from starbucks_retrieval.doctor import api, children, examine, findings, installed, machine
from starbucks_retrieval.doctor.__main__ import main
from starbucks_retrieval.doctor.children import try_imports
from starbucks_retrieval.doctor.installed import GIVES, Extra, Needed, extras, required
from starbucks_retrieval.doctor.text import as_text

TORCH = {
    "ok": True,
    "cuda": None,
    "gpus": [],
    "mps": False,
    "threads": 2,
    "capabilities": ["amx_bf16"],
    "bf16_speedup": 3.1,
    "dtype": "bf16",
    "gpu_bf16": False,
}
GPU = {"name": "H200", "bytes": 10**11, "free_bytes": 9 * 10**10, "capability": "9.0"}
FACTS = {
    "installation": {"script_is_ours": True, "script": None, "executable": "python", "git": None, "folder": "f"}
    | {"starbucks_retrieval": "1", "python": "3.11", "platform": "p"},
    "processor": {"name": "CPU", "cores": 2, "usable": 2.0, "flags": ["avx2"], "omp_num_threads": None},
    "memory": {"bytes": 10**10, "free_bytes": 10**10},
    "disks": {"current folder": {"path": "/x", "bytes": 10**12, "free_bytes": 10**11, "writable": True}},
    "java": {"path": None, "version": None, "fits": False},
    "hub": {"offline": False, "endpoint": "https://hub", "cached_models": 0, "token": False, "reachable": None},
    "nvidia": None,
    "faiss": {"faiss-cpu": "1.15.1"},
}
NEEDS = [Needed("torch", ">=2.6", "2.13", True)]
IMPORTS = {"torch": TORCH, "faiss": {"ok": True, "gpus": 0, "options": "AVX2"}}


def found(facts=None, needs=NEEDS, extras=(), imports=None):
    return findings.problems({**FACTS, **(facts or {})}, needs, extras, {**IMPORTS, **(imports or {})})


def test_a_healthy_machine_has_no_findings():
    assert found() == []


BROKEN = {"ok": False, "error": "ImportError: libcudart.so.12"}
PYSERINI = Extra("pyserini", "", "pip install it", [Needed("pyserini", ">=1.2", "1.6", True)])
OLD = Extra("onnx", "", "pip install it", [Needed("onnx", ">=1.17", "1.2", False)])


@pytest.mark.parametrize(
    ("changes", "what", "remedy", "serious"),
    [
        ({"facts": {"faiss": {"faiss-cpu": "1", "faiss-gpu": "2"}}}, "are both installed", "pip uninstall", True),
        ({"facts": {"faiss": {}}}, "FAISS is not installed", "[cpu]", True),
        ({"imports": {"faiss": BROKEN}}, "FAISS cannot be imported: ImportError", "pip uninstall", True),
        ({"imports": {"torch": BROKEN}}, "torch 2.13 cannot be imported", "--force-reinstall", True),
        ({"needs": [Needed("torch", ">=2.6", None, False)]}, "torch is missing", "pip install", True),
        ({"needs": [Needed("torch", ">=2.6", "1.0", False)]}, "torch 1.0 is not >=2.6", "pip install", True),
        ({"needs": []}, "not installed, only its folder", "pip install", False),
        ({"imports": {"torch": TORCH | {"cuda": "12.8"}}}, "without a GPU takes gigabytes", "CPU build", False),
        ({"facts": {"nvidia": "H200, 570"}}, "is a CPU build", "for CUDA", True),
        ({"facts": {"nvidia": "H200, 570"}, "imports": {"torch": TORCH | {"cuda": "12.8"}}}, "does not see it", "driver", True),
        ({"imports": {"torch": TORCH | {"cuda": "12.8", "gpus": [GPU]}}}, "FAISS that is installed", "--engine torch", False),
        ({"facts": {"processor": FACTS["processor"] | {"usable": 8.0, "omp_num_threads": "1"}}}, "OMP_NUM_THREADS=1: 2 of 8", "unset", False),
        ({"extras": [PYSERINI]}, "no Java was found", "JDK 21", True),
        ({"extras": [PYSERINI], "facts": {"java": {"path": "/j", "version": "17", "fits": False}}}, "Java 17", "JDK 21", True),
        ({"extras": [OLD]}, "too old for the extra onnx: onnx 1.2", "pip install it", True),
        ({"extras": [OLD], "imports": {"onnx": BROKEN}}, "onnx 1.2 cannot be imported", "pip install it", True),
        ({"facts": {"disks": {"current folder": {"path": "/x", "free_bytes": 10**9, "writable": True}}}}, "1.0 GB are free", "free some", False),
        ({"facts": {"disks": {"hub cache": {"path": "/x", "free_bytes": 10**10, "writable": False}}}}, "may not be written", "HF_HOME", False),
        ({"facts": {"memory": {"bytes": 1, "free_bytes": 10**8}}}, "0.1 GB of memory", "--max_memory", False),
        ({"facts": {"hub": FACTS["hub"] | {"reachable": False}}}, "does not answer", "HF_HUB_OFFLINE=1", False),
        ({"facts": {"installation": FACTS["installation"] | {"script": "/other", "script_is_ours": False}}}, "/other", "activate", False),
        ({"facts": {"failed_probes": {"java": "OSError: no"}}}, "java could not be examined: OSError", "report", False),
    ],
)  # fmt: skip
def test_findings_have_remedies(changes, what, remedy, serious):
    matching = [problem for problem in found(**changes) if what in problem.what]
    assert len(matching) == 1, found(**changes)
    assert remedy in matching[0].remedy and matching[0].serious is serious


def test_no_finding_of_what_is_fine():
    assert found({"hub": FACTS["hub"] | {"reachable": False, "offline": True}}) == []
    assert found({"java": {"path": "/j", "version": "21", "fits": True}}, extras=[PYSERINI]) == []
    with_gpu = {"torch": TORCH | {"cuda": "12.8", "gpus": [GPU]}}
    assert found({"faiss": {"faiss-gpu": "1"}, "nvidia": "H200"}, imports=with_gpu) == []


def test_problems_come_before_notes():
    mixed = found({"faiss": {}, "memory": {"bytes": 1, "free_bytes": 1}})
    assert [problem.serious for problem in mixed] == [True, False]


@pytest.fixture
def odd_modules(tmp_path, monkeypatch):
    """Modules that import, raise, exit, kill their process, print, and hang."""
    for name, text in {
        "odd_good": "",
        "odd_broken": "raise OSError('libfoo.so: cannot open\\nsecond line')",
        "odd_exit": "raise SystemExit(3)",
        "odd_crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "odd_noisy": "print('{\"module\" never', flush=True)",
        "odd_hang": "import signal; signal.pause()",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_module_that_breaks_or_crashes_is_told_and_the_others_are_tried(odd_modules):
    answers = try_imports([["odd_broken", "odd_crash", "odd_good"], ["odd_exit", "odd_missing", "odd_good"]])
    assert answers["odd_good"] == {"ok": True}
    assert answers["odd_broken"]["error"] == "OSError: libfoo.so: cannot open second line"
    assert answers["odd_crash"]["error"].startswith("the import ended Python (SIGSEGV)")
    assert answers["odd_exit"]["error"].startswith("SystemExit")
    assert "No module named" in answers["odd_missing"]["error"]


def test_a_module_that_hangs_is_given_up(odd_modules):
    answers = try_imports([["odd_hang"]], timeout=1)
    assert answers["odd_hang"]["error"] == "the import took more than 1 s"


def test_what_a_child_said_before_it_hung_counts(monkeypatch):
    def hangs(command, *, timeout, **_):
        assert command[-2:] == ["odd_good", "odd_hang"]
        raise subprocess.TimeoutExpired(command, timeout, output=b'{"module": "odd_good", "ok": true}\n{"mod')

    monkeypatch.setattr(children.subprocess, "run", hangs)
    answers = try_imports([["odd_good", "odd_hang"]], timeout=3)
    assert answers == {"odd_good": {"ok": True}, "odd_hang": {"ok": False, "error": "the import took more than 3 s"}}


def test_a_probe_that_fails_stops_nothing(monkeypatch):
    def broken(*_):
        raise RuntimeError("a strange machine")

    monkeypatch.setattr(api, "try_imports", lambda groups: IMPORTS)
    for name in ("processor", "memory", "disks", "java", "hub", "nvidia"):
        monkeypatch.setattr(machine, name, broken)
    for name in ("required", "extras", "faiss_packages"):
        monkeypatch.setattr(installed, name, broken)
    checkup = examine()
    assert len(checkup.facts["failed_probes"]) == 9
    assert "java could not be examined: RuntimeError: a strange machine" in as_text(checkup)
    json.dumps(checkup.to_json())


def test_nothing_outside_the_machine_is_asked_unless_online(monkeypatch):
    def refused(*arguments, **named):
        raise AssertionError("the network was tried")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(machine, "_reachable", refused)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert machine.hub(online=False)["reachable"] is None and machine.hub(online=False)["offline"]
    monkeypatch.setattr(machine, "_reachable", lambda url: url == "https://hub.example")
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert machine.hub(online=True)["reachable"] is True


def test_a_server_that_does_not_answer_is_not_reachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        assert machine._reachable(f"http://127.0.0.1:{taken.getsockname()[1]}") is False


def test_tokens_are_seen_and_never_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert machine.hub(False)["token"] is False
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert machine.hub(False)["token"] is True
    assert "hf_secret" not in json.dumps(machine.hub(False))


@pytest.mark.parametrize(
    ("version", "modules", "fits"),
    [("21.0.4", "jdk.incubator.vector@21", True), ("21.0.4", "java.base", False), ("17.0.1", "jdk.incubator.vector", False), ("1.8.0_4", "", False)],
)  # fmt: skip
def test_java_that_pyserini_can_use(monkeypatch, tmp_path, version, modules, fits):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncase $1 in -version) echo 'openjdk version \"{version}\"' >&2;; *) echo {modules};; esac\n")  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine.java() == {"path": str(program), "version": version, "fits": fits}


def setup_extras() -> dict[str, list[str]]:
    tree = ast.parse((Path(__file__).resolve().parents[2] / "setup.py").read_text(encoding="utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    return next(ast.literal_eval(node.value) for node in assigned if node.targets[0].id == "EXTRAS")


def test_every_extra_of_setup_is_described():
    assert set(GIVES) == set(setup_extras())


def test_requirements_are_read_from_the_metadata(monkeypatch):
    lines = [
        "torch>=2.6",
        "absent-package>=1",
        "windows-only; sys_platform == 'win32'",
        'faiss-cpu>=1.10; extra == "cpu"',
        "faiss-gpu>=1.15; extra == 'gpu'",
        'ray[data]>=2.50; extra == "new"',
    ]
    versions = {"torch": "2.13.0+cpu", "faiss-cpu": "1.2", "ray": "2.60"}
    monkeypatch.setattr(installed.importlib.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(installed, "version_of", versions.get)
    assert [(need.name, need.version, need.fits) for need in required()] == [
        ("torch", "2.13.0+cpu", True),
        ("absent-package", None, False),
    ]
    cpu, gpu, new = extras()
    assert (cpu.state, gpu.state, new.state) == ("missing", "missing", "installed")
    assert cpu.missing[0].version == "1.2"
    assert "uninstall faiss-cpu faiss-gpu, then" in gpu.command and "[gpu]" in gpu.command
    assert (new.gives, new.needs[0].spec, new.needs[0].module) == ("ray[data]", "ray[data]>=2.50", "ray")


def test_the_door(monkeypatch, capsys):
    monkeypatch.setattr(api, "try_imports", lambda groups: IMPORTS | {"faiss": BROKEN})
    assert run_door(main, []) == 0
    out, err = capsys.readouterr()
    assert "problem: FAISS cannot be imported" in out and "extras" in out and "1 problems" in err
    assert run_door(main, ["--strict", "--json", "--quiet"]) == 2
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert figures["problems"][0]["serious"] and "FAISS cannot be imported" in err
    assert figures["disks"]["current folder"]["free_bytes"] > 0
    monkeypatch.setattr(api.findings, "problems", lambda *_: [])
    assert run_door(main, ["--strict"]) == 0


def test_on_this_machine_as_it_is(tmp_path):
    command = [sys.executable, "-m", "starbucks_retrieval.doctor", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["imports"]["torch"]["ok"] and figures["imports"]["torch"]["dtype"] in ("fp32", "bf16")
    assert figures["packages"]["torch"] and "failed_probes" not in figures
    assert not list(tmp_path.iterdir())
