"""Claim: two processes share the work of a training step.

Steps a second of `torchrun --nproc_per_node 2 … starbucks_retrieval.train` with half the batch each, over one process
with the whole batch on as many threads as both have together. Both see the same negatives and follow the same losses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--queries", type=int, default=8, help="queries of a step, over all processes")
    flags.add_argument("--group", type=int, default=4, help="passages of a query")
    flags.add_argument("--steps", type=int, default=6, help="steps of a run")
    flags.add_argument("--layers", type=int, default=6, help="layers of the model")
    flags.add_argument("--width", type=int, default=384, help="width of the model")
    settings = flags.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common.save_bert(folder / "model", settings.layers, settings.width, settings.seed)
        source = _write_rows(folder / "rows.jsonl", settings)
        runs: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}
        for number in range(settings.rounds):
            runs["one"].append(_run(folder, settings, 1, cores, number))
            runs["two"].append(_run(folder, settings, 2, max(1, cores // 2), number))
            print(f"round {number + 1}: {[run[-1]['seconds'] for run in runs.values()]} s a step", file=sys.stderr)
    for one, two in zip(runs["one"], runs["two"]):
        if abs(one["loss"] - two["loss"]) > 1e-3 * abs(one["loss"]):
            sys.exit(f"losses {one['loss']} and {two['loss']}: the contenders do not compute the same")
    report = common.Report("train_processes", settings, texts=source)
    report.line(
        "two processes over one",
        "seconds of a step of one process with all threads / of two with half of them each; above 1 two are faster",
        **common.ratio([run["seconds"] for run in runs["one"]], [run["seconds"] for run in runs["two"]]),
        threads_of_one=cores,
    )


def _write_rows(path: Path, settings: Any) -> str:
    count = settings.queries * settings.steps
    queries, _ = common.queries(count, settings.seed)
    passages, source = common.passages(count * settings.group, settings.seed)
    with open(path, "w", encoding="utf-8") as file:
        for i, query in enumerate(queries):
            own = passages[i * settings.group : (i + 1) * settings.group]
            file.write(json.dumps({"query": query, "positive": own[0], "negative": own[1:]}) + "\n")
    return source


def _run(folder: Path, settings: Any, processes: int, threads: int, number: int) -> dict[str, Any]:
    """Seconds of a step, without what comes before the first, and the last loss."""
    output = folder / f"out-{processes}-{number}"
    flags = {
        "model_name_or_path": folder / "model",
        "dataset_path": folder / "rows.jsonl",
        "output_dir": output,
        "train_group_size": settings.group,
        "per_device_train_batch_size": settings.queries // processes,
        "max_steps": settings.steps,
        "logging_steps": 1,
        "save_strategy": "no",
        "quiet": "true",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    start = [sys.executable, "-m", "starbucks_retrieval.train"]
    if processes > 1:
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={processes}",
            *start[1:],
        ]
    done = subprocess.run(
        [*start, *words],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    record = json.loads((output / "training.json").read_text())
    losses = [entry["loss"] for entry in record["history"] if "loss" in entry]
    (seconds,) = (entry["train_runtime"] for entry in record["history"] if "train_runtime" in entry)
    return {"seconds": seconds / settings.steps, "loss": losses[-1]}


if __name__ == "__main__":
    main()
