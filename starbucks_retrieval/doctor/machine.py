"""The machine as this process may use it: processor, memory, disks, Java, and what the hub's own libraries will do."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_JAVA = 21  # what pyserini needs
_VECTORS = "jdk.incubator.vector"
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")


def processor() -> dict[str, Any]:
    """The processor's name, its cores, those that this process may use, and the instructions that matter here."""
    text = _read("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = named[1].strip() if named else _said("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    there = set(flags[1].split()) if flags else set()
    return {
        "name": name or platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable": usable_cores(),
        "flags": [flag for flag in _FLAGS if flag in there],
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def usable_cores() -> float:
    """Cores that affinity and the container's quota leave to this process."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, int(quota[0]) / int(quota[1]))
    return round(cores, 2)


def memory() -> dict[str, int | None]:
    """Bytes there are, under the container's limit if there is one, and bytes free."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    free = int(found[1]) * 1024 if found else None
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        used = _read("/sys/fs/cgroup/memory.current").strip()
        left = total - int(used) if used.isdigit() else total
        free = left if free is None else min(free, left)
    return {"bytes": total, "free_bytes": free}


def disks() -> dict[str, dict[str, Any]]:
    """Free space where results are written and where the hub's libraries keep what they fetch."""
    return {"current folder": _disk(Path.cwd()), "hub cache": _disk(hub_cache())}


def _disk(folder: Path) -> dict[str, Any]:
    there = folder
    while not there.exists():
        there = there.parent
    space = shutil.disk_usage(there)
    return {"path": str(folder), "bytes": space.total, "free_bytes": space.free, "writable": os.access(there, os.W_OK)}


def hub_cache() -> Path:
    """Where the hub's libraries keep models, by the rules of huggingface_hub, without importing it."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def java() -> dict[str, Any]:
    """The Java that pyserini would find, and whether that is one it can use."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not program or not Path(program).exists():
        return {"path": program, "version": None, "fits": False}
    told = _said(program, "-version", errors=True)
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', told)
    modules = _said(program, "--list-modules") if version and int(version[2]) >= _JAVA else ""
    fits = version is not None and int(version[2]) >= _JAVA and _VECTORS in modules
    return {"path": program, "version": version[1] if version else None, "fits": fits}


def hub(online: bool) -> dict[str, Any]:
    """What the hub's libraries will do, by the environment; the network is tried only if `online`."""
    cache = hub_cache()
    models = sorted(path.name for path in cache.glob("models--*")) if cache.is_dir() else []
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return {
        "offline": any(_on(os.environ.get(name)) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
        "endpoint": endpoint,
        "cached_models": len(models),
        "token": bool(os.environ.get("HF_TOKEN")) or (cache.parent / "token").is_file(),
        "reachable": _reachable(endpoint) if online else None,
    }


def nvidia() -> str | None:
    """The NVIDIA GPUs that the driver names, whatever torch sees; None without driver."""
    return _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or None


def _reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=3):
            return True
    except urllib.error.HTTPError:  # somebody is there
        return True
    except (OSError, ValueError):
        return False


def _on(text: str | None) -> bool:
    return (text or "").upper() in ("1", "ON", "YES", "TRUE")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _said(program: str, *words: str, errors: bool = False) -> str:
    """What a program prints, or nothing if it fails."""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, errors="replace", timeout=4)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + (done.stderr if errors else "")).strip() if done.returncode == 0 else ""
