"""From facts to findings: what is wrong here, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starbucks_retrieval.doctor.installed import Extra, Needed, install_command
from starbucks_retrieval.doctor.problems import Problem

LOW_DISK, LOW_MEMORY, SMALL_CACHE = 5e9, 2e9, 1e9  # bytes
Facts = Mapping[str, Any]


def problems(
    facts: Facts, required: Sequence[Needed], extras: Sequence[Extra], imports: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """All findings, those that make something fail first."""
    found = [
        *_packages(required, imports),
        *_faiss(facts, imports),
        *_extras(extras, imports),
        *_gpus(facts, imports),
        *_java(facts, extras),
        *_space(facts),
        *_hub(facts),
        *_installation(facts),
        *(
            Problem(f"the {name} could not be examined: {reason}", "please report this with the line above", False)
            for name, reason in (facts.get("failed_probes") or {}).items()
        ),
    ]
    return sorted(found, key=lambda problem: not problem.serious)


def _packages(required: Sequence[Needed], imports: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    if not required:
        yield Problem("this package is not installed, only its folder is there", install_command("[cpu]"), False)
    for need in required:
        if need.version is None:
            yield Problem(f"{need.name} is missing", install_command())
        elif not need.fits:
            yield Problem(f"{need.name} {need.version} is not {need.asked}", install_command())
        answer = imports.get(need.module)
        if answer is not None and not answer["ok"]:
            yield Problem(
                f"{need.name} {need.version} cannot be imported: {answer['error']}",
                f"install it again: pip install --force-reinstall --no-deps {need.name}=={need.version}",
            )


def _faiss(facts: Facts, imports: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    there = facts.get("faiss") or {}
    if len(there) > 1:
        both = " and ".join(f"{name} {version}" for name, version in there.items())
        yield Problem(
            f"{both} are both installed and overwrite each other's files",
            f"pip uninstall faiss-cpu faiss-gpu, then {install_command('[cpu]')}, or [gpu] on a CUDA machine",
        )
    answer = imports.get("faiss")
    if not there:
        yield Problem("FAISS is not installed: search has only --engine torch", install_command("[cpu]"))
    elif answer is not None and not answer["ok"]:
        yield Problem(
            f"FAISS cannot be imported: {answer['error']}",
            "pip uninstall faiss-cpu faiss-gpu, then install one of them",
        )


def _extras(extras: Sequence[Extra], imports: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    told = set()
    for extra in extras:
        if extra.name in ("dev", "docs", "cpu", "gpu"):
            continue
        old = [f"{need.name} {need.version}, not {need.asked}" for need in extra.missing if need.version is not None]
        if old:
            yield Problem(f"too old for the extra {extra.name}: {'; '.join(old)}", extra.command)
        for need in extra.needs:
            answer = imports.get(need.module)
            if answer is not None and not answer["ok"] and need.module not in told:
                told.add(need.module)
                yield Problem(f"{need.name} {need.version} cannot be imported: {answer['error']}", extra.command)


def _gpus(facts: Facts, imports: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    torch = imports.get("torch") or {}
    if not torch.get("ok"):
        return
    driver = facts.get("nvidia")
    if torch["gpus"]:
        if "faiss-cpu" in (facts.get("faiss") or {}):
            yield Problem(
                "there is a GPU, and the FAISS that is installed does not use it",
                f"search --engine torch --device cuda does; or pip uninstall faiss-cpu, then {install_command('[gpu]')}",
                False,
            )
    elif driver and not torch["cuda"]:
        yield Problem(
            f"there is a GPU ({driver.splitlines()[0]}), and the PyTorch that is installed is a CPU build",
            "install PyTorch for CUDA as pytorch.org describes",
        )
    elif driver:
        yield Problem(
            f"there is a GPU ({driver.splitlines()[0]}), and PyTorch for CUDA {torch['cuda']} does not see it",
            "check the driver's version, and CUDA_VISIBLE_DEVICES",
        )
    elif torch["cuda"]:
        yield Problem(
            f"PyTorch for CUDA {torch['cuda']} on a machine without a GPU takes gigabytes for nothing",
            "install PyTorch's CPU build as pytorch.org describes, if no GPU is to come",
            False,
        )
    processor = facts.get("processor") or {}
    if torch["threads"] < int(processor.get("usable") or 1) and processor.get("omp_num_threads"):
        yield Problem(
            f"OMP_NUM_THREADS={processor['omp_num_threads']}: {torch['threads']} of {processor['usable']:g} cores are used",
            "unset it, unless several processes share this machine",
            False,
        )


def _java(facts: Facts, extras: Sequence[Extra]) -> Iterator[Problem]:
    java = facts.get("java") or {}
    wanted = any(extra.name == "pyserini" and extra.state == "installed" for extra in extras)
    if wanted and not java.get("fits"):
        version = f"Java {java['version']} has not what it needs" if java.get("version") else "no Java was found"
        yield Problem(
            f"pyserini is installed, and {version}",
            "install a JDK 21 and set JAVA_HOME to it; or mine with the extra bm25",
        )


def _space(facts: Facts) -> Iterator[Problem]:
    for name, disk in (facts.get("disks") or {}).items():
        where = f"{disk['path']} ({name})"
        if not disk["writable"]:
            yield Problem(
                f"{where} may not be written",
                "work in another folder" if name == "current folder" else "set HF_HOME to a folder that may",
                name == "current folder",
            )
        if disk["free_bytes"] < (LOW_DISK if name == "current folder" else SMALL_CACHE):
            yield Problem(
                f"only {disk['free_bytes'] / 1e9:.1f} GB are free at {where}",
                "a full-size store of a million passages takes 1.5 GB, a checkpoint of BERT-base 1.3 GB: free some, or work elsewhere",
                False,
            )
    free = (facts.get("memory") or {}).get("free_bytes")
    if free is not None and free < LOW_MEMORY:
        yield Problem(
            f"only {free / 1e9:.1f} GB of memory are free", "end other programs; give search a --max_memory", False
        )


def _hub(facts: Facts) -> Iterator[Problem]:
    hub = facts.get("hub") or {}
    if hub.get("reachable") is False and not hub["offline"]:
        yield Problem(
            f"{hub['endpoint']} does not answer, and the libraries will try it",
            "set HF_HUB_OFFLINE=1 to work from local folders and the cache without waiting; or check the network",
            False,
        )


def _installation(facts: Facts) -> Iterator[Problem]:
    here = facts.get("installation") or {}
    if here and not here["script_is_ours"]:
        yield Problem(
            f"the command starbucks is {here['script']}, not that of {here['executable']}",
            "activate the environment that you mean, or call python -m starbucks_retrieval",
            False,
        )
