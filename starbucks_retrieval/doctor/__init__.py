"""A report on the installation and the machine: versions, devices, extras, and problems with remedies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from starbucks_retrieval.doctor import probes
from starbucks_retrieval.doctor.probes import Dependency, install_command
from starbucks_retrieval.lazy import public_names

__all__ = ["EnvironmentReport", "Problem", "examine"]
__dir__ = public_names(__name__)

_LOW_DISK, _LOW_MEMORY, _SMALL_CACHE = 5e9, 2e9, 1e9  # bytes

# The use of every extra, in pyproject.toml's order; other extras are shown with their packages.
USES = {
    "cpu": "FAISS: search, indexes, funnels (this or gpu)",
    "gpu": "FAISS on CUDA GPUs; instead of cpu, never beside it",
    "pyserini": "mine by BM25 in Lucene; needs Java 21",
    "deepspeed": "train with ZeRO over several GPUs",
    "lora": "train --lora: low-rank adapters",
    "bm25": "mine --bm25 without Java",
    "onnx": "encode --backend onnx; export to ONNX",
    "openvino": "encode --backend openvino, int8; export to OpenVINO",
    "remote": "embedding stores at s3://, gs:// and other URLs",
    "milvus": "search --engine milvus: a file or a server",
    "ray": "encode and search --engine ray, over a cluster",
    "html": "starbucks quickstart: HTML files",
    "report": "starbucks report: figures",
    "transfer": "starbucks transfer: the classifiers",
    "demo": "starbucks demo: a small model, figures",
    "dev": "tests, types and lint of this project",
    "docs": "this project's documentation site",
}
_PROJECT = ("dev", "docs")  # extras for work on this project: not imported, and not a problem if too old


@dataclass(frozen=True)
class Problem:
    """A problem of the installation or the machine.

    Attributes:
        what: The problem.
        remedy: How to solve it.
        serious: Whether something will fail; otherwise it is only slower or larger.
    """

    what: str
    remedy: str
    serious: bool = True


@dataclass
class EnvironmentReport:
    """Facts, and the problems that follow from them.

    Attributes:
        facts: Facts by probe; `failed_probes` has the errors of probes that failed.
        required: This package's requirements.
        extras: JSON-ready mappings, from `describe_extra`.
        imports: The results of `try_import` by module.
        problems: Problems, serious ones first.
        seconds: The time that the report took.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    required: list[Dependency] = field(default_factory=list)
    extras: list[dict[str, Any]] = field(default_factory=list)
    imports: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            **self.facts,
            "packages": {need.name: need.version for need in self.required},
            "imports": self.imports,
            "extras": self.extras,
            "problems": [vars(problem) for problem in self.problems],
            "seconds": round(self.seconds, 2),
        }


def examine(*, online: bool = False, thorough: bool = False) -> EnvironmentReport:
    """Examine the installation and the machine, in seconds. Nothing is written, and a failing probe does not stop others.

    Args:
        online: Check that the hub answers; otherwise no network is used.
        thorough: Import the packages of installed extras too, which takes longer.

    Returns:
        The facts, the state of every extra, and the problems.
    """
    began, report = time.monotonic(), EnvironmentReport()

    def guarded(name: str, probe: Callable[[], Any]) -> Any:
        try:
            return probe()
        except Exception as error:  # probes may fail in any way on an unusual machine
            report.facts.setdefault("failed_probes", {})[name] = f"{type(error).__name__}: {error}"
            return None

    needs = guarded("dependencies", probes.dependencies) or {}
    report.required = needs.pop("", [])
    report.extras = [describe_extra(name, needs[name]) for name in sorted(needs, key=[*USES, *needs].index)]
    tried = [*report.required, *needs.get("cpu", []), *needs.get("gpu", [])]
    if thorough:
        tried += [need for name, those in needs.items() if name not in _PROJECT for need in those]
    modules = list(dict.fromkeys(need.module for need in tried if need.version is not None))
    with ThreadPoolExecutor(2) as pool:
        imports = pool.map(probes.try_import, modules)
        for name in ("installation", "processor", "memory", "disks", "java", "nvidia", "faiss"):
            report.facts[name] = guarded(name, getattr(probes, name))
        report.facts["hub"] = guarded("hub", lambda: probes.hub(online))
        report.imports = dict(zip(modules, imports))
    report.problems = sorted(find_problems(report, needs), key=lambda problem: not problem.serious)
    report.seconds = time.monotonic() - began
    return report


def describe_extra(name: str, needs: Sequence[Dependency]) -> dict[str, Any]:
    """Return an extra as a JSON-ready mapping.

    Args:
        name: The name of the extra.
        needs: The packages that it requires.

    Returns:
        Its `name`; its `state`: installed, partly or missing; what it `gives`; the versions of its `packages`; the
        requirements that it `lacks`; and the `command` that installs it.
    """
    lacks = [f"{need.name}{need.specifier}" for need in needs if not need.fits]
    command = install_command(f"[{name}]")
    if name in ("cpu", "gpu") and lacks and any(map(probes.version_of, probes.FAISS_BUILDS)):
        command = f"pip uninstall {' '.join(probes.FAISS_BUILDS)}, then {command}"
    return {
        "name": name,
        "state": "installed" if not lacks else "partly" if len(lacks) < len(needs) else "missing",
        "gives": USES.get(name) or ", ".join(need.name for need in needs),
        "packages": {need.name: need.version for need in needs},
        "lacks": lacks,
        "command": command,
    }


def find_problems(report: EnvironmentReport, extras: Mapping[str, Sequence[Dependency]]) -> Iterator[Problem]:
    """Yield the problems of a report.

    Args:
        report: The report with its facts, requirements and imports.
        extras: The required packages of each extra.
    """
    facts = {name: fact for name, fact in report.facts.items() if fact is not None}
    if not report.required:
        yield Problem(
            "this package is not installed; Python imports it from its folder", install_command("[cpu]"), False
        )
    for need in report.required:
        if need.version is None:
            yield Problem(f"{need.name} is missing", install_command())
        elif not need.fits:
            yield Problem(f"{need.name} {need.version} is not {need.specifier}", install_command())
        if error := report.imports.get(need.module, {}).get("error"):
            remedy = f"install it again: pip install --force-reinstall --no-deps {need.name}=={need.version}"
            yield Problem(f"{need.name} {need.version} cannot be imported: {error}", remedy)
    yield from _faiss(facts.get("faiss") or {}, report.imports.get("faiss") or {})
    for name, needs in extras.items():
        command = install_command(f"[{name}]")
        for need in needs if name not in (*_PROJECT, "cpu", "gpu") else ():
            if need.version is not None and not need.fits:
                yield Problem(f"the extra {name}: {need.name} {need.version} is not {need.specifier}", command)
            if error := report.imports.get(need.module, {}).get("error"):
                yield Problem(f"{need.name} {need.version} cannot be imported: {error}", command)
    yield from _devices(facts, report.imports.get("torch") or {})
    if any(need.version for need in extras.get("pyserini", ())) and not facts.get("java", {}).get("fits"):
        version = facts.get("java", {}).get("version")
        what = f"needs Java {probes.JAVA}, and {f'Java {version}' if version else 'no Java'} was found"
        yield Problem(f"pyserini {what}", "install a JDK 21 and set JAVA_HOME to it; or mine with the extra bm25")
    yield from _space(facts)
    hub = facts.get("hub") or {}
    if hub.get("reachable") is False and not hub["offline"]:
        remedy = "set HF_HUB_OFFLINE=1 to use local folders and the cache; or check the network"
        yield Problem(f"{hub['endpoint']} does not answer, and libraries will contact it", remedy, False)
    for name, reason in facts.get("failed_probes", {}).items():
        yield Problem(f"{name} could not be examined: {reason}", "please report this with the line above", False)


def _faiss(builds: Mapping[str, str], imported: Mapping[str, Any]) -> Iterator[Problem]:
    uninstall = "pip uninstall faiss-cpu faiss-gpu, then"
    if not builds:
        yield Problem("FAISS is not installed: search has only --engine torch", install_command("[cpu]"))
    elif len(builds) > 1:
        both = " and ".join(f"{name} {version}" for name, version in builds.items())
        remedy = f"{uninstall} {install_command('[cpu]')}, or [gpu] on a CUDA machine"
        yield Problem(f"{both} are both installed and overwrite each other's files", remedy)
    if builds and "error" in imported:
        yield Problem(f"FAISS cannot be imported: {imported['error']}", f"{uninstall} install one of them")


def _devices(facts: Mapping[str, Any], torch: Mapping[str, Any]) -> Iterator[Problem]:
    if not torch.get("ok"):
        return
    driver, cuda = facts.get("nvidia"), torch["cuda"]
    if torch["gpus"] and "faiss-cpu" in facts.get("faiss", {}):
        remedy = f"use search --engine torch --device cuda; or pip uninstall faiss-cpu, then {install_command('[gpu]')}"
        yield Problem("there is a GPU, and the installed FAISS does not use it", remedy, False)
    if driver and not torch["gpus"]:
        what = f"PyTorch for CUDA {cuda} does not find it" if cuda else "the installed PyTorch is a CPU build"
        install = "install PyTorch for CUDA as pytorch.org describes"
        remedy = "check the driver's version, and CUDA_VISIBLE_DEVICES" if cuda else install
        yield Problem(f"there is a GPU ({driver.splitlines()[0]}), and {what}", remedy)
    elif cuda and not torch["gpus"]:
        what = f"PyTorch for CUDA {cuda} takes gigabytes on a machine without a GPU"
        yield Problem(what, "install PyTorch's CPU build as pytorch.org describes", False)
    cpu = facts.get("processor") or {}
    if cpu.get("omp_num_threads") and torch["threads"] < int(cpu["usable"]):
        what = f"OMP_NUM_THREADS={cpu['omp_num_threads']}: {torch['threads']} of {cpu['usable']:g} cores are used"
        yield Problem(what, "unset it, unless several processes share this machine", False)


def _space(facts: Mapping[str, Any]) -> Iterator[Problem]:
    for name, disk in facts.get("disks", {}).items():
        here, path = name == "current folder", f"{disk['path']} ({name})"
        if not disk["writable"]:
            remedy = "work in another folder" if here else "set HF_HOME to a folder that is writable"
            yield Problem(f"{path} is not writable", remedy, here)
        if disk["free_bytes"] < (_LOW_DISK if here else _SMALL_CACHE):
            remedy = "free some space, or work elsewhere: a checkpoint of BERT-base takes 1.3 GB"
            yield Problem(f"only {disk['free_bytes'] / 1e9:.1f} GB are free at {path}", remedy, False)
    free = facts.get("memory", {}).get("free_bytes")
    if free is not None and free < _LOW_MEMORY:
        what = f"only {free / 1e9:.1f} GB of memory are free"
        yield Problem(what, "end other programs; give search a --max_memory", False)
