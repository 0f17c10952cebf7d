"""All figures of a GPU in one call: encoding, an SRL step, and search by FAISS, each compared with the published way.

It runs encode_gpu.py, train_gpu.py and search_gpu.py one after the other, and goes on if one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import common

PARTS = ("encode_gpu.py", "train_gpu.py", "search_gpu.py")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--device", default="cuda", help="cpu tries the parts out")
    flags.add_argument("--output", default="gpu.jsonl", help="file to append the JSON lines to")
    settings = flags.parse_args()
    common.need_gpu(settings.device)
    failed = []
    for part in PARTS:
        command = [sys.executable, str(Path(__file__).with_name(part)), "--device", settings.device]
        print(f"{part} …", file=sys.stderr, flush=True)
        if subprocess.run([*command, "--output", settings.output], check=False).returncode:
            failed.append(part)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the others' lines are in {settings.output}")


if __name__ == "__main__":
    main()
