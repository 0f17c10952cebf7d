"""Facts about the installation and the machine. Large packages are imported in a child process only."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from starbucks_retrieval.models.modules_json import reachable
from starbucks_retrieval.provenance import git_revision, version_of
from starbucks_retrieval.version import __version__

PACKAGE = "starbucks-retrieval"
FAISS_BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "faiss")  # the last as conda names its builds
JAVA = 21  # the version that pyserini needs
_CPU_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
# Where the module has another name than the package.
_MODULES = dict.fromkeys(FAISS_BUILDS, "faiss") | {
    "PyYAML": "yaml",
    "scikit-learn": "sklearn",
    "universal_pathlib": "upath",
}


class Dependency(NamedTuple):
    """A required package.

    Attributes:
        name: Its name, with extras in brackets.
        specifier: The versions that fit, as pip writes them.
        version: The installed version, or None.
        fits: Whether the installed version fits.
    """

    name: str
    specifier: str
    version: str | None
    fits: bool

    @property
    def module(self) -> str:
        """The name of its module."""
        return _MODULES.get(self.name, self.name.partition("[")[0].replace("-", "_"))


def dependencies() -> dict[str, list[Dependency]]:
    """Return the requirements of every extra, from the installed metadata.

    Returns:
        Extra → its packages, with those of the package itself under ""; empty if the package is not installed.
    """
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    by_extra: dict[str, list[Dependency]] = {}
    for line in lines:
        need = Requirement(line)
        named = re.search(r"""extra\s*==\s*["']([^"']+)["']""", str(need.marker or ""))
        extra = named[1] if named else ""
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        if need.name == "faiss-gpu" and version_of("faiss-gpu-cuvs"):  # may take its place
            need.name = "faiss-gpu-cuvs"
        version = version_of(need.name)
        fits = version is not None and need.specifier.contains(version, prereleases=True)
        inside = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
        by_extra.setdefault(extra, []).append(Dependency(need.name + inside, str(need.specifier), version, fits))
    return by_extra


def install_command(extra: str = "") -> str:
    """Return the pip command that installs this package again, from its source folder if it came from one.

    Args:
        extra: An extra in brackets, such as `[cpu]`; empty for the package alone.
    """
    try:
        url = json.loads(importlib.metadata.distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except importlib.metadata.PackageNotFoundError:
        url = {"url": Path(__file__).resolve().parents[2].as_uri(), "dir_info": {"editable": True}}
    source = unquote(urlsplit(url["url"]).path) if "dir_info" in url else PACKAGE
    source = "." if source == str(Path.cwd()) else source
    ours = Path(shutil.which("pip") or "").parent == Path(sys.executable).parent
    pip = "pip" if ours else f"{shlex.quote(sys.executable)} -m pip"
    editable = "--editable " if url.get("dir_info", {}).get("editable") else ""
    return f"{pip} install {editable}{shlex.quote(source + extra)}"


def installation() -> dict[str, Any]:
    """Return versions and folders of this package and of Python, and the platform."""
    return {
        "starbucks_retrieval": __version__,
        "git": git_revision(),
        "folder": str(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
    }


def processor() -> dict[str, Any]:
    """Return the name, the cores, those usable under affinity and container quota, and vector instructions."""
    text = _read("/proc/cpuinfo")
    name, flags = (re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE) for key in ("model name", "flags"))
    cores = os.cpu_count() or 1
    usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores)
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        usable = min(usable, int(quota[0]) / int(quota[1]))
    return {
        "name": name[1] if name else platform.processor() or platform.machine(),
        "cores": cores,
        "usable": round(usable, 2),
        "flags": [flag for flag in _CPU_FLAGS if flags and flag in flags[1].split()],
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def memory() -> dict[str, int | None]:
    """Return the bytes of memory and the free bytes, within the container's limit if there is one."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    free = int(available[1]) * 1024 if available else None
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        left = total - int(used or 0)
        free = left if free is None else min(free, left)
    return {"bytes": total, "free_bytes": free}


def disks() -> dict[str, dict[str, Any]]:
    """Return the space in the current folder and in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    spaces = {}
    for name, folder in {"current folder": Path.cwd(), "hub cache": Path(HF_HUB_CACHE)}.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        space, writable = shutil.disk_usage(existing), os.access(existing, os.W_OK)
        spaces[name] = {"path": str(folder), "bytes": space.total, "free_bytes": space.free, "writable": writable}
    return spaces


def java() -> dict[str, Any]:
    """Return the `path` and `version` of the Java that pyserini would use, None without one, and whether it `fits`."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', _output(program, "-version") if program else "")
    fits = version is not None and int(version[2]) >= JAVA
    return {"path": program, "version": version[1] if version else None, "fits": fits}


def hub(online: bool = False) -> dict[str, Any]:
    """Return the settings of the hub's libraries, without tokens.

    Args:
        online: Contact the hub; otherwise `reachable` is None, and no network is used.
    """
    from huggingface_hub import constants

    return {
        "offline": constants.HF_HUB_OFFLINE,
        "endpoint": constants.ENDPOINT,
        "cached_models": len(list(Path(constants.HF_HUB_CACHE).glob("models--*"))),
        "token": bool(os.environ.get("HF_TOKEN")) or Path(constants.HF_TOKEN_PATH).is_file(),
        "reachable": reachable(constants.ENDPOINT) if online else None,
    }


def nvidia() -> str | None:
    """Return the GPUs that NVIDIA's driver lists, or None without a driver."""
    return _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or None


def faiss() -> dict[str, str]:
    """Return the installed builds of FAISS with their versions."""
    return {name: version for name in FAISS_BUILDS if (version := version_of(name))}


def try_imports(modules: Sequence[str], timeout: int = 60) -> dict[str, dict[str, Any]]:
    """Import modules in a child process, so that a package that crashes or hangs does not stop the report.

    Args:
        modules: Their dotted names. After one that ends the process, another process imports the others.
        timeout: Seconds after which an import counts as failed.

    Returns:
        By name `{"ok": True, …}` with facts about torch and FAISS, or `{"ok": False, "error": …}`.
    """
    found: dict[str, dict[str, Any]] = {}
    while left := [module for module in modules if module not in found]:
        code = f"from {__name__} import print_imports; print_imports({left!r}, {timeout})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace")  # noqa: S603 - this interpreter
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"ok":')]  # libraries may print others
        found |= zip(left, map(json.loads, lines))
        if len(lines) < len(left):
            status = done.returncode
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"
            ended = ": ".join([f"the import ended Python ({name})", *done.stderr.splitlines()[-1:]])
            error = f"the import took more than {timeout} s" if status == -signal.SIGALRM else ended
            found[left[len(lines)]] = {"ok": False, "error": error}
    return found


def print_imports(modules: Sequence[str], timeout: int) -> None:
    """Import modules, print a JSON line about each, and end the process. Called in the child process."""
    for module in modules:
        signal.alarm(timeout)  # ends the process
        try:
            answer = {"ok": True, **_describe(importlib.import_module(module))}
        except (Exception, SystemExit) as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}
        print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # a normal exit may wait for threads of a library


def _describe(module: Any) -> dict[str, Any]:
    """Return facts that need the imported module."""
    if module.__name__ == "faiss":
        return {"gpus": module.get_num_gpus(), "options": str(module.get_compile_options()).strip()}
    if module.__name__ != "torch":
        return {}
    torch = module
    from starbucks_retrieval.models import precision

    gpus = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        capability = f"{about.major}.{about.minor}"
        gpus.append({"name": about.name, "bytes": total, "free_bytes": free, "capability": capability})
    return {
        "cuda": torch.version.cuda or torch.version.hip,
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
        "bf16_speedup": round(precision.bf16_speedup(), 2),
        "dtype": precision.dtype_name(precision.autocast_dtype("auto", torch.device("cpu"))),
        "gpu_bf16": bool(gpus) and torch.cuda.is_bf16_supported(False),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(program: str, *words: str) -> str:
    """Return the output of a program, or nothing if it fails or hangs."""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, errors="replace", timeout=4)  # noqa: S603 - names in this file
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""
