"""Run as a child process: imports the modules named, one after the other, and prints a JSON line for each."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main(modules: list[str]) -> None:
    """Import each module and say how it went, and for torch what devices it sees."""
    for name in modules:
        answer: dict[str, Any] = {"module": name}
        try:
            module = importlib.import_module(name)
            answer |= {"ok": True} | _about(name, module)
        except (Exception, SystemExit) as error:
            said = " ".join(str(error).split())
            answer |= {"ok": False, "error": f"{type(error).__name__}: {said}"[:500]}
        print("\n" + json.dumps(answer), flush=True)


def _about(name: str, module: Any) -> dict[str, Any]:
    if name == "torch":
        return _torch(module)
    if name == "faiss":
        return {
            "gpus": int(getattr(module, "get_num_gpus", lambda: 0)()),
            "options": str(module.get_compile_options()).strip(),
        }
    return {}


def _torch(torch: Any) -> dict[str, Any]:
    gpus = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            free, total = torch.cuda.mem_get_info(number)
            gpus.append(
                {"name": about.name, "bytes": total, "free_bytes": free, "capability": f"{about.major}.{about.minor}"}
            )
    from starbucks_retrieval.models import precision

    cpu = torch.device("cpu")
    return {
        "cuda": torch.version.cuda or torch.version.hip,
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
        "capabilities": sorted(key for key, able in torch.cpu.get_capabilities().items() if able is True),
        "bf16_speedup": round(precision.speedup(), 2),
        "dtype": precision.name_of(precision.choose("auto", cpu)),
        "gpu_bf16": bool(gpus) and torch.cuda.is_bf16_supported(False),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
