"""A report on the installation and the machine: versions, devices, extras, and problems with remedies."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starbucks_retrieval.doctor import probes
from starbucks_retrieval.doctor.probes import Dependency, install_command
from starbucks_retrieval.lazy import public_names

__all__ = ["EnvironmentReport", "Problem", "examine"]
__dir__ = public_names(__name__)

_LOW_DISK, _LOW_MEMORY, _SMALL_CACHE = 5e9, 2e9, 1e9  # bytes
_SHOWN = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy")

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
    """A problem and how to solve it; serious if something will fail, not only be slower or larger."""

    what: str
    remedy: str
    serious: bool = True


@dataclass
class EnvironmentReport:
    """Facts, the lines that tell them, and the problems that follow from them.

    Attributes:
        facts: Facts by probe, ready for JSON; `failed_probes` has the errors of probes that failed.
        lines: Headings and lines for a terminal.
        problems: Problems, serious ones first.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def probe(self, name: str, probe: Callable[[], Any]) -> Any:
        """Return what a probe returns, or None if it fails: it may in any way on an unusual machine."""
        try:
            return probe()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.facts.setdefault("failed_probes", {})[name] = reason
            self.note(f"{name} could not be examined: {reason}", "please report this with the line above")
            return None

    def tell(self, heading: str, line: str) -> None:
        """Add a line."""
        self.lines.append((heading, line))

    def problem(self, what: str, remedy: str) -> None:
        """Add a serious problem."""
        self.problems.append(Problem(what, remedy))

    def note(self, what: str, remedy: str) -> None:
        """Add a problem that only makes something slower or larger."""
        self.problems.append(Problem(what, remedy, False))

    def __str__(self) -> str:
        """Lines of facts, each heading once, and after them the problems with their remedies."""
        above = ["", *(heading for heading, _ in self.lines)]
        lines = [f"{name if name != last else '':13}{line}" for last, (name, line) in zip(above, self.lines)]
        wrap = partial(
            textwrap.fill, width=110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        for one in self.problems:
            lines += wrap(f"{'problem' if one.serious else 'note'}: {one.what}"), wrap(f"  try: {one.remedy}")
        return "\n".join(lines if self.problems else [*lines, "no problems found"])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {**self.facts, "problems": [vars(problem) for problem in self.problems]}


def examine(*, online: bool = False, thorough: bool = False) -> EnvironmentReport:
    """Examine the installation and the machine, in seconds. Nothing is written, and a failing probe does not stop others.

    Args:
        online: Check that the hub answers; otherwise no network is used.
        thorough: Import the packages of installed extras too, which takes longer.

    Returns:
        The facts, the state of every extra, and the problems.
    """
    began, report = time.monotonic(), EnvironmentReport()
    facts = report.facts
    extras: dict[str, list[Dependency]] = report.probe("dependencies", probes.dependencies) or {}
    required = extras.pop("", [])
    for name in ("installation", "processor", "memory", "disks", "java", "nvidia", "faiss"):
        facts[name] = report.probe(name, getattr(probes, name))
    facts["hub"] = report.probe("hub", partial(probes.hub, online))
    used = [name for name in extras if (name not in _PROJECT if thorough else name in ("cpu", "gpu"))]
    tried = [*required, *(need for name in used for need in extras[name])]
    modules = list(dict.fromkeys(need.module for need in tried if need.version is not None))
    imports = facts["imports"] = probes.try_imports(modules)
    facts["packages"] = {need.name: need.version for need in required}
    facts["extras"] = [describe_extra(name, extras[name]) for name in sorted(extras, key=[*USES, *extras].index)]
    _packages(report, required, imports)
    _devices(report, imports.get("torch", {}))
    _space(report)
    _hub(report)
    _java(report, extras.get("pyserini", []))
    _extras(report, extras, imports)
    report.problems.sort(key=lambda problem: not problem.serious)
    facts["seconds"] = round(time.monotonic() - began, 2)
    return report


def describe_extra(name: str, needs: Sequence[Dependency]) -> dict[str, Any]:
    """Return the state of an extra (installed, partly, missing), what it gives, packages, lacks, and a pip command."""
    lacks = [f"{need.name}{need.specifier}" for need in needs if not need.fits]
    uninstall = _uninstall() if name in ("cpu", "gpu") and lacks else ""
    return {
        "name": name,
        "state": "installed" if not lacks else "partly" if len(lacks) < len(needs) else "missing",
        "gives": USES.get(name) or ", ".join(need.name for need in needs),
        "packages": {need.name: need.version for need in needs},
        "lacks": lacks,
        "command": uninstall + install_command(f"[{name}]"),
    }


def _uninstall() -> str:
    """Return the command that makes room for another build of FAISS, as the beginning of a remedy."""
    builds = probes.faiss()
    return f"pip uninstall {' '.join(builds)}, then " if builds else ""


def _packages(report: EnvironmentReport, required: Sequence[Dependency], imports: Mapping[str, Any]) -> None:
    if here := report.facts["installation"]:
        git = f" ({here['git'][:10]})" if here["git"] else ""
        report.tell("version", f"starbucks_retrieval {here['starbucks_retrieval']}{git} in {here['folder']}")
        report.tell("version", f"Python {here['python']} at {here['executable']}, {here['platform']}")
    builds, faiss = report.facts["faiss"] or {}, imports.get("faiss", {})
    versions = {need.name: need.version for need in required if need.name in _SHOWN} | builds
    report.tell("packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    if not required:
        what = "this package is not installed; Python imports it from its folder"
        report.note(what, install_command("[cpu]"))
    for need in required:
        if need.version is None:
            report.problem(f"{need.name} is missing", install_command())
        elif not need.fits:
            report.problem(f"{need.name} {need.version} is not {need.specifier}", install_command())
        if error := imports.get(need.module, {}).get("error"):
            remedy = f"install it again: pip install --force-reinstall --no-deps {need.name}=={need.version}"
            report.problem(f"{need.name} {need.version} cannot be imported: {error}", remedy)
    if not builds:
        report.problem("FAISS is not installed: search has only --engine torch", install_command("[cpu]"))
    elif len(builds) > 1:
        several = " and ".join(f"{name} {version}" for name, version in builds.items())
        remedy = f"{_uninstall()}{install_command('[cpu]')}, or [gpu] on a CUDA machine"
        report.problem(f"{several} are installed together and overwrite each other's files", remedy)
    if builds and "error" in faiss:
        report.problem(f"FAISS cannot be imported: {faiss['error']}", f"{_uninstall()}install one of them")
    if faiss.get("ok"):
        report.tell("packages", f"FAISS is built for {faiss['options']}, and finds {faiss['gpus']} GPUs")


def _devices(report: EnvironmentReport, torch: Mapping[str, Any]) -> None:
    cpu, driver = report.facts["processor"], report.facts["nvidia"]
    gpus, cuda = torch.get("gpus", []), torch.get("cuda")
    for number, gpu in enumerate(gpus):
        free = f"{_gb(gpu['free_bytes'])} of {_gb(gpu['bytes'])} free"
        bf16 = ", bf16" if torch["gpu_bf16"] else ""
        report.tell("devices", f"GPU {number}: {gpu['name']}, {free}, capability {gpu['capability']}{bf16}")
    if torch.get("ok") and not gpus:
        report.tell("devices", "GPU: Apple's, through MPS" if torch["mps"] else "PyTorch finds no GPU")
    if cpu:
        flags = ", ".join(cpu["flags"]) or "no vector instructions known"
        report.tell("devices", f"CPU: {cpu['name']}, {cpu['cores']} cores, {cpu['usable']:g} usable; {flags}")
    if not torch.get("ok"):
        return
    speed = f"bf16 multiplication is {torch['bf16_speedup']:.1f} times as fast as fp32 on this CPU"
    report.tell("devices", f"{speed}: --dtype auto selects {torch['dtype']}")
    if gpus and "faiss-cpu" in (report.facts["faiss"] or {}):
        remedy = f"use search --engine torch --device cuda; or {_uninstall()}{install_command('[gpu]')}"
        report.note("there is a GPU, and the installed FAISS does not use it", remedy)
    if driver and not gpus:
        what = f"PyTorch for CUDA {cuda} does not find it" if cuda else "the installed PyTorch is a CPU build"
        install = "install PyTorch for CUDA as pytorch.org describes"
        remedy = "check the driver's version, and CUDA_VISIBLE_DEVICES" if cuda else install
        report.problem(f"there is a GPU ({driver.splitlines()[0]}), and {what}", remedy)
    elif cuda and not gpus:
        what = f"PyTorch for CUDA {cuda} takes gigabytes on a machine without a GPU"
        report.note(what, "install PyTorch's CPU build as pytorch.org describes")
    if cpu and cpu["omp_num_threads"] and torch["threads"] < int(cpu["usable"]):
        what = f"OMP_NUM_THREADS={cpu['omp_num_threads']}: {torch['threads']} of {cpu['usable']:g} cores are used"
        report.note(what, "unset it, unless several processes share this machine")


def _space(report: EnvironmentReport) -> None:
    if memory := report.facts["memory"]:
        free = memory["free_bytes"]
        report.tell("memory", _gb(memory["bytes"]) + ("" if free is None else f", {_gb(free)} free"))
        if free is not None and free < _LOW_MEMORY:
            report.note(f"only {_gb(free)} of memory are free", "end other programs; give search a --max_memory")
    for name, disk in (report.facts["disks"] or {}).items():
        here, path, free = name == "current folder", f"{disk['path']} ({name})", disk["free_bytes"]
        report.tell("disk", f"{_gb(free)} free at {path}")
        if not disk["writable"]:
            remedy = "work in another folder" if here else "set HF_HOME to a folder that is writable"
            (report.problem if here else report.note)(f"{path} is not writable", remedy)
        if free < (_LOW_DISK if here else _SMALL_CACHE):
            remedy = "free some space, or work elsewhere: a checkpoint of BERT-base takes 1.3 GB"
            report.note(f"only {_gb(free)} are free at {path}", remedy)


def _hub(report: EnvironmentReport) -> None:
    if hub := report.facts["hub"]:
        state = "offline by environment variable" if hub["offline"] else f"online by setting ({hub['endpoint']})"
        tried = {None: "not checked (use --online)", True: "answers", False: "does not answer"}[hub["reachable"]]
        token = "a token" if hub["token"] else "no token (public models need none)"
        report.tell("hub", f"{state}; network {tried}; {hub['cached_models']} models in the cache; {token}")
        if hub["reachable"] is False and not hub["offline"]:
            remedy = "set HF_HUB_OFFLINE=1 to use local folders and the cache; or check the network"
            report.note(f"{hub['endpoint']} does not answer, and libraries will contact it", remedy)


def _java(report: EnvironmentReport, pyserini: Sequence[Dependency]) -> None:
    if java := report.facts["java"]:
        version = java["version"]
        fits = "recent enough for pyserini" if java["fits"] else "too old for pyserini"
        report.tell("Java", f"{version}, {fits}" if version else "not found; only pyserini needs it")
        if any(need.version for need in pyserini) and not java["fits"]:
            what = f"pyserini needs Java {probes.JAVA}, and {f'Java {version}' if version else 'no Java'} was found"
            report.problem(what, "install a JDK 21 and set JAVA_HOME to it; or mine with the extra bm25")


def _extras(report: EnvironmentReport, extras: Mapping[str, Sequence[Dependency]], imports: Mapping[str, Any]) -> None:
    for extra in report.facts["extras"]:
        name, command = extra["name"], extra["command"]
        report.tell("extras", f"{name:10}{extra['state']:10}{extra['gives']}")
        if extra["lacks"]:
            partly = f"   # lacks {', '.join(extra['lacks'])}" if extra["state"] == "partly" else ""
            report.tell("extras", f"{'':20}{command}{partly}")
        for need in extras[name] if name not in (*_PROJECT, "cpu", "gpu") else ():
            if need.version is not None and not need.fits:
                report.problem(f"the extra {name}: {need.name} {need.version} is not {need.specifier}", command)
            if error := imports.get(need.module, {}).get("error"):
                report.problem(f"{need.name} {need.version} cannot be imported: {error}", command)


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
