"""A checkup for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from starbucks_retrieval.doctor.api import Checkup

_INDENT, _WIDTH = 13, 110
_SHOWN = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 bf16",
    "amx_bf16": "AMX bf16",
    "amx_int8": "AMX int8",
}
_SPEED = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy")


def as_text(found: Checkup) -> str:
    """Lines under headings; findings last, where a reader's eye ends."""
    facts = found.facts
    lines = [
        *_section("version", _installation(facts.get("installation") or {})),
        *_section("packages", _packages(found)),
        *_section("devices", _devices(facts, found.imports.get("torch") or {})),
        *_section("memory", _memory(facts.get("memory") or {})),
        *_section("disk", _disks(facts.get("disks") or {})),
        *_section("hub", _hub(facts.get("hub") or {})),
        *_section("Java", _java(facts.get("java") or {})),
        "",
        *_section("extras", _extras(found)),
        "",
    ]
    if not found.problems:
        return "\n".join([*lines, "nothing wrong was found"])
    for problem in found.problems:
        lines.append(_wrapped(f"{'problem' if problem.serious else 'note'}: {problem.what}", "  "))
        lines.append(_wrapped(f"  try: {problem.remedy}", "    "))
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _section(name: str, lines: Iterator[str]) -> Iterator[str]:
    heading = name
    for line in lines:
        yield f"{heading:{_INDENT}}{line}"
        heading = ""


def _installation(here: dict[str, Any]) -> Iterator[str]:
    if here:
        git = f" ({here['git'][:10]})" if here["git"] else ""
        yield f"starbucks_retrieval {here['starbucks_retrieval']}{git}, Python {here['python']}, {here['platform']}"
        yield f"in {here['folder']}"


def _packages(found: Checkup) -> Iterator[str]:
    versions = {need.name: need.version for need in found.required if need.version}
    first = [f"{name} {versions[name]}" for name in _SPEED if name in versions]
    faiss = [f"{name} {version}" for name, version in (found.facts.get("faiss") or {}).items()]
    yield ", ".join([*first, *faiss]) or "none"
    built = found.imports.get("faiss") or {}
    if built.get("ok"):
        gpus = f", {built['gpus']} GPUs" if built["gpus"] else ""
        yield f"FAISS is built for {built['options']}{gpus}"


def _devices(facts: dict[str, Any], torch: dict[str, Any]) -> Iterator[str]:
    for number, gpu in enumerate(torch.get("gpus") or []):
        bf16 = ", bf16" if torch["gpu_bf16"] else ""
        yield f"GPU {number}: {gpu['name']}, {_gb(gpu['free_bytes'])} of {_gb(gpu['bytes'])} free, capability {gpu['capability']}{bf16}"
    if torch.get("mps"):
        yield "GPU: Apple's, through MPS"
    elif torch.get("ok") and not torch["gpus"]:
        yield "no GPU that PyTorch sees"
    cpu = facts.get("processor")
    if cpu:
        usable = f", {cpu['usable']:g} usable" if cpu["usable"] != cpu["cores"] else ""
        able = ", ".join(_SHOWN[flag] for flag in cpu["flags"])
        yield f"CPU: {cpu['name']}, {cpu['cores']} cores{usable}" + (f"; {able}" if able else "")
    if torch.get("ok"):
        yield f"bf16 multiplies {torch['bf16_speedup']:.1f} times as fast as fp32 on this CPU: --dtype auto takes {torch['dtype']}"


def _memory(memory: dict[str, Any]) -> Iterator[str]:
    if memory:
        free = "" if memory["free_bytes"] is None else f", {_gb(memory['free_bytes'])} free"
        yield f"{_gb(memory['bytes'])}{free}"


def _disks(disks: dict[str, Any]) -> Iterator[str]:
    for name, disk in disks.items():
        yield f"{_gb(disk['free_bytes'])} free at {disk['path']} ({name})"


def _hub(hub: dict[str, Any]) -> Iterator[str]:
    if hub:
        state = (
            "offline: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
            if hub["offline"]
            else f"online by setting ({hub['endpoint']})"
        )
        tried = {None: "not tried (--online tries)", True: "answers", False: "does not answer"}[hub["reachable"]]
        yield f"{state}; network {tried}"
        token = "a token" if hub["token"] else "no token (public models need none)"
        yield f"{hub['cached_models']} models in the cache, {token}"


def _java(java: dict[str, Any]) -> Iterator[str]:
    if java.get("version"):
        yield f"{java['version']} at {java['path']}: {'fit for' if java['fits'] else 'not enough for'} pyserini, which needs a JDK 21"
    else:
        yield "none; only pyserini needs it"


def _extras(found: Checkup) -> Iterator[str]:
    width = max((len(extra.name) for extra in found.extras), default=0)
    for extra in found.extras:
        yield f"{extra.name:{width}}  {extra.state:9}  {extra.gives}"
        if extra.missing:
            lacks = f"   # lacks {', '.join(need.name for need in extra.missing)}" if extra.state == "partly" else ""
            yield f"{'':{width}}  {'':9}  {extra.command}{lacks}"


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
