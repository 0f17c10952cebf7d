"""doctor: facts, problems with remedies, and broken packages, which do not stop the report."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.doctor import USES, describe_extra, examine, probes
from starbucks_retrieval.doctor.__main__ import main
from starbucks_retrieval.doctor.probes import Dependency, dependencies, try_imports

TORCH = {
    "ok": True,
    "cuda": None,
    "gpus": [],
    "mps": False,
    "threads": 2,
    "bf16_speedup": 3.1,
    "dtype": "bf16",
    "gpu_bf16": False,
}
GPU = {"name": "H200", "bytes": 10**11, "free_bytes": 9 * 10**10, "capability": "9.0"}
FACTS = {
    "installation": {"executable": "python", "git": None, "folder": "f"}
    | {"starbucks_retrieval": "1", "python": "3.11", "platform": "p"},
    "processor": {"name": "CPU", "cores": 2, "usable": 2.0, "flags": ["avx2"], "omp_num_threads": None},
    "memory": {"bytes": 10**10, "free_bytes": 10**10},
    "disks": {"current folder": {"path": "/x", "bytes": 10**12, "free_bytes": 10**11, "writable": True}},
    "java": {"path": None, "version": None, "fits": False},
    "hub": {"offline": False, "endpoint": "https://hub", "cached_models": 0, "token": False, "reachable": None},
    "nvidia": None,
    "faiss": {"faiss-cpu": "1.15.1"},
}
NEEDS = [Dependency("torch", ">=2.6", "2.13", True)]
IMPORTS = {"torch": TORCH, "faiss": {"ok": True, "gpus": 0, "options": "AVX2"}}


@pytest.fixture
def problems_of(monkeypatch):
    """The problems of a made-up machine."""

    def examined(facts=None, needs=NEEDS, extras=None, imports=None):
        installed = [Dependency("faiss-cpu", "", "1.15.1", True)]
        known = {"dependencies": {"": needs, "cpu": installed, **(extras or {})}, **FACTS, **(facts or {})}
        for name, value in known.items():
            monkeypatch.setattr(probes, name, raising(value) if isinstance(value, Exception) else lambda *_, v=value: v)
        found = {**IMPORTS, **(imports or {})}
        monkeypatch.setattr(probes, "try_imports", imported(found))
        return examine(thorough=True).problems

    return examined


def imported(found):
    return lambda modules: {module: found.get(module, {"ok": True}) for module in modules}


def raising(error):
    def probe(*_):
        raise error

    return probe


def test_a_healthy_machine_has_no_problems(problems_of):
    assert problems_of() == []


BROKEN = {"ok": False, "error": "ImportError: libcudart.so.12"}
PYSERINI = {"pyserini": [Dependency("pyserini", ">=1.2", "1.6", True)]}
OLD = {"onnx": [Dependency("onnx", ">=1.17", "1.2", False)]}


@pytest.mark.parametrize(
    ("changes", "what", "remedy", "serious"),
    [
        ({"facts": {"faiss": {"faiss-cpu": "1", "faiss-gpu-cuvs": "2"}}}, "faiss-cpu 1 and faiss-gpu-cuvs 2 are installed together", "pip uninstall faiss-cpu faiss-gpu-cuvs", True),
        ({"facts": {"faiss": {}}}, "FAISS is not installed", "[cpu]", True),
        ({"imports": {"faiss": BROKEN}}, "FAISS cannot be imported: ImportError", "pip uninstall", True),
        ({"imports": {"torch": BROKEN}}, "torch 2.13 cannot be imported", "--force-reinstall", True),
        ({"needs": [Dependency("torch", ">=2.6", None, False)]}, "torch is missing", "pip install", True),
        ({"needs": [Dependency("torch", ">=2.6", "1.0", False)]}, "torch 1.0 is not >=2.6", "pip install", True),
        ({"needs": []}, "not installed; Python imports it", "pip install", False),
        ({"imports": {"torch": TORCH | {"cuda": "12.8"}}}, "takes gigabytes on a machine without a GPU", "CPU build", False),
        ({"facts": {"nvidia": "H200, 570"}}, "is a CPU build", "for CUDA", True),
        ({"facts": {"nvidia": "H200, 570"}, "imports": {"torch": TORCH | {"cuda": "12.8"}}}, "does not find it", "driver", True),
        ({"imports": {"torch": TORCH | {"cuda": "12.8", "gpus": [GPU]}}}, "installed FAISS does not use it", "--engine torch", False),
        ({"facts": {"processor": FACTS["processor"] | {"usable": 8.0, "omp_num_threads": "1"}}}, "OMP_NUM_THREADS=1: 2 of 8", "unset", False),
        ({"extras": PYSERINI}, "no Java was found", "JDK 21", True),
        ({"extras": PYSERINI, "facts": {"java": {"path": "/j", "version": "17", "fits": False}}}, "Java 17", "JDK 21", True),
        ({"extras": OLD}, "the extra onnx: onnx 1.2 is not >=1.17", "[onnx]", True),
        ({"extras": OLD, "imports": {"onnx": BROKEN}}, "onnx 1.2 cannot be imported", "[onnx]", True),
        ({"facts": {"disks": {"current folder": {"path": "/x", "free_bytes": 10**9, "writable": True}}}}, "1.0 GB are free", "free some", False),
        ({"facts": {"disks": {"hub cache": {"path": "/x", "free_bytes": 10**10, "writable": False}}}}, "is not writable", "HF_HOME", False),
        ({"facts": {"memory": {"bytes": 1, "free_bytes": 10**8}}}, "0.1 GB of memory", "--max_memory", False),
        ({"facts": {"hub": FACTS["hub"] | {"reachable": False}}}, "does not answer", "HF_HUB_OFFLINE=1", False),
        ({"facts": {"java": OSError("no")}}, "java could not be examined: OSError", "report", False),
    ],
)  # fmt: skip
def test_problems_have_remedies(problems_of, changes, what, remedy, serious):
    matching = [problem for problem in problems_of(**changes) if what in problem.what]
    assert len(matching) == 1, problems_of(**changes)
    assert remedy in matching[0].remedy and matching[0].serious is serious


def test_a_working_setup_is_no_problem(problems_of):
    assert problems_of({"hub": FACTS["hub"] | {"reachable": False, "offline": True}}) == []
    assert problems_of({"java": {"path": "/j", "version": "21", "fits": True}}, extras=PYSERINI) == []
    with_gpu = {"torch": TORCH | {"cuda": "12.8", "gpus": [GPU]}}
    assert problems_of({"faiss": {"faiss-gpu": "1"}, "nvidia": "H200"}, imports=with_gpu) == []


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules that import, raise, exit, kill their process, print, and hang."""
    for name, text in {
        "module_that_works": "",
        "module_that_raises": "raise OSError('libfoo.so: cannot open\\nsecond line')",
        "module_that_exits": "raise SystemExit(3)",
        "module_that_crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "module_that_prints": "print('{\"module\" never', flush=True)",
        "module_that_hangs": "import signal; signal.pause()",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_modules_that_break_crash_or_hang_are_reported_beside_those_that_work(modules):
    errors = {
        "module_that_works": None,
        "module_that_raises": "OSError: libfoo.so: cannot open second line",
        "module_that_crashes": "the import ended Python (SIGSEGV)",
        "module_that_prints": None,
        "module_that_hangs": "the import took more than 3 s",
        "module_that_exits": "SystemExit: 3",
        "missing_module": "ModuleNotFoundError: No module named 'missing_module'",
    }
    found = try_imports(list(errors), timeout=3)
    assert found == {name: {"ok": False, "error": error} if error else {"ok": True} for name, error in errors.items()}


def test_a_failing_probe_does_not_stop_the_report(monkeypatch):
    def broken(*_):
        raise RuntimeError("an unusual machine")

    names = ("installation", "processor", "memory", "disks", "java", "hub", "nvidia", "faiss", "dependencies")
    for name in names:
        monkeypatch.setattr(probes, name, broken)
    checked = examine()
    assert set(checked.facts["failed_probes"]) == set(names)
    assert "java could not be examined: RuntimeError: an unusual machine" in str(checked)
    json.dumps(checked.to_json())


def test_the_network_is_used_only_if_online(monkeypatch):
    def refused(*arguments, **named):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(probes, "reachable", refused)
    assert probes.hub()["reachable"] is None
    monkeypatch.setattr(probes, "reachable", lambda url: url.startswith("https://"))
    assert probes.hub(online=True)["reachable"] is True


def test_a_server_that_does_not_answer_is_not_reachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        assert probes.reachable(f"http://127.0.0.1:{taken.getsockname()[1]}") is False


def test_tokens_are_found_but_not_printed(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = probes.hub()
    assert found["token"] is True and "hf_secret" not in json.dumps(found)


@pytest.mark.parametrize(("version", "fits"), [("21.0.4", True), ("17.0.1", False), ("1.8.0_4", False)])
def test_java_that_pyserini_can_use(monkeypatch, tmp_path, version, fits):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert probes.java() == {"path": str(program), "version": version, "fits": fits}


def test_every_extra_is_described():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert list(USES) == list(project["project"]["optional-dependencies"])


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
    monkeypatch.setattr(probes.importlib.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(probes, "version_of", versions.get)
    needs = dependencies()
    assert [(need.name, need.version, need.fits) for need in needs.pop("")] == [
        ("torch", "2.13.0+cpu", True),
        ("absent-package", None, False),
    ]
    cpu, gpu, new = (describe_extra(name, needs[name]) for name in ("cpu", "gpu", "new"))
    assert (cpu["state"], gpu["state"], new["state"]) == ("missing", "missing", "installed")
    assert cpu["packages"] == {"faiss-cpu": "1.2"} and cpu["lacks"] == ["faiss-cpu>=1.10"]
    assert "uninstall faiss-cpu, then" in gpu["command"] and "[gpu]" in gpu["command"]
    assert new["gives"] == "ray[data]" and needs["new"][0].module == "ray"
    versions |= {"faiss-gpu-cuvs": "1.15.1"}
    assert describe_extra("gpu", dependencies()["gpu"])["packages"] == {"faiss-gpu-cuvs": "1.15.1"}
    assert probes.faiss() == {"faiss-cpu": "1.2", "faiss-gpu-cuvs": "1.15.1"}


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(probes, "try_imports", imported({**IMPORTS, "faiss": BROKEN}))
    assert run_command(main, []) == 0
    out, err = capsys.readouterr()
    assert "problem: FAISS cannot be imported" in out and "extras" in out and "1 problems" in err
    assert run_command(main, ["--strict", "--json", "--quiet"]) == 2
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert figures["problems"][0]["serious"] and "FAISS cannot be imported" in err
    assert figures["disks"]["current folder"]["free_bytes"] > 0
    monkeypatch.setattr(probes, "try_imports", imported(IMPORTS))
    assert run_command(main, ["--strict"]) == 0


@pytest.mark.slow
def test_the_report_of_this_machine(tmp_path):
    command = [sys.executable, "-m", "starbucks_retrieval.doctor", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["imports"]["torch"]["ok"] and figures["imports"]["torch"]["dtype"] in ("fp32", "bf16")
    assert figures["packages"]["torch"] and "failed_probes" not in figures
    assert not list(tmp_path.iterdir())
