"""Claim: the smallest size of a trained model mines hard negatives several times faster than its full size; are they as good?

A model is trained with in-batch negatives, then mines negatives for the same queries at its smallest and at its full
size; two models are trained with these, all else equal, and a third without any. All through the commands. Time is
measured in interleaved rounds; the quality is that of single runs. Needs a BEIR folder with train and test judgements.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import common

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.data import open_groups, read_qrels
from starbucks_retrieval.demo.api import minilm


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--dataset", default="scifact", help="BEIR folder, or its name in the shared data")
    flags.add_argument("--passages", type=int, default=2000, help="of the corpus, the judged ones first")
    flags.add_argument("--model", default=None, help="backbone (default: all-MiniLM-L6-v2 of the demo's package)")
    flags.add_argument("--steps", type=int, default=60, help="training steps of every model")
    flags.add_argument("--queries", type=int, default=16, help="queries of a step")
    flags.add_argument("--group", type=int, default=3, help="passages of a query, in the second round")
    flags.add_argument("--passage_max_len", type=int, default=128, help="tokens of a passage")
    settings = flags.parse_args()
    dataset = beir_folder(settings.dataset)
    with tempfile.TemporaryDirectory() as name:
        part = part_of(dataset, Path(name) / "part", settings.passages, settings.seed)
        _study(Path(name), part, settings.model or str(minilm()), settings)


def _study(folder: Path, dataset: Path, model: str, settings: Any) -> None:
    report = common.Report("mine_sizes", settings)
    _train(folder / "first", model, dataset, settings, "--train_group_size", "1")
    sizes = NestedEncoder.from_pretrained(folder / "first").sizes
    contenders = {"smallest": sizes[0], "full": sizes.full}

    def mine(which: str, number: int) -> None:
        words = ["--dataset_path", dataset, "--model_name_or_path", folder / "first", "--size", contenders[which]]
        words += ["--range", "10:100", "--depth", "200", "--num_negatives", "15", "--overwrite"]
        _run("mine", *words, "--output_path", folder / f"{which}-{number}.jsonl")

    seconds = common.interleaved({which: partial(mine, which) for which in contenders}, settings.rounds)
    report.line(
        "mining time, full over smallest",
        f"seconds of `mine` at {contenders['full']} / at {contenders['smallest']}, start included; higher is better",
        **common.ratio(seconds["full"], seconds["smallest"]),
        seconds={which: round(statistics.median(laps), 1) for which, laps in seconds.items()},
    )
    mined = {
        which: {g.query_id: set(g.negative_ids) for g in open_groups(str(folder / f"{which}-0.jsonl"))}
        for which in contenders
    }
    shared = [
        len(found & mined["full"][query]) / max(1, len(found | mined["full"][query]))
        for query, found in mined["smallest"].items()
    ]
    scores = {"first": _evaluate(folder / "first", dataset, folder)}
    for which in contenders:
        words = ("--train_group_size", str(settings.group))
        _train(folder / which, model, folder / f"{which}-0.jsonl", settings, *words)
        scores[which] = _evaluate(folder / which, dataset, folder)
        print(which, scores[which], file=sys.stderr)
    report.line(
        "quality after mining",
        "nDCG@10 on the test queries at every size: trained without mined negatives (first), with those of the smallest "
        "and of the full size; single runs",
        ndcg10=scores,
        mean_jaccard_of_negatives=round(statistics.mean(shared), 3),
        dataset=settings.dataset,
    )


def beir_folder(name: str) -> Path:
    """A BEIR folder by its path, or by its name in the shared data. Ends the benchmark where there is none."""
    shared = Path(os.environ.get("STARBUCKS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    for folder in (Path(name), shared / "data" / name):
        if folder.is_dir():
            return folder
    print(f"no folder {name}, give --dataset: nothing measured", file=sys.stderr)
    sys.exit()


def part_of(dataset: Path, folder: Path, passages: int, seed: int) -> Path:
    """A BEIR folder like `dataset` with its judged passages and others up to a number, chosen by seed."""
    shutil.copytree(dataset / "qrels", folder / "qrels")
    shutil.copy(dataset / "queries.jsonl", folder)
    judged = {
        docid
        for split in ("train", "test")
        for grades in read_qrels(str(dataset), split=split).values()
        for docid in grades
    }
    with open(dataset / "corpus.jsonl", encoding="utf-8") as file:
        lines = {str(json.loads(line)["_id"]): line for line in file}
    others = sorted(lines.keys() - judged)
    random.Random(seed).shuffle(others)
    kept = {*judged, *others[: max(0, passages - len(judged))]}
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        file.writelines(line for docid, line in lines.items() if docid in kept)
    return folder


def _train(output: Path, model: str, data: Path, settings: Any, *more: str) -> None:
    fixed = f"--max_steps {settings.steps} --per_device_train_batch_size {settings.queries} --learning_rate 1e-4"
    fixed += f" --dropout 0 --anchor_weight 5 --passage_max_len {settings.passage_max_len} --query_max_len 48"
    words = ("--model_name_or_path", model, "--dataset_path", data, "--output_dir", output, "--save_strategy", "no")
    _run("train", *words, *fixed.split(), *more)


def _evaluate(model: Path, dataset: Path, folder: Path) -> dict[str, float]:
    """nDCG@10 at every size."""
    reps = folder / f"reps-{model.name}"
    common_words = ("--model_name_or_path", model, "--dataset_path", dataset)
    _run("encode", *common_words, "--encode_output_path", reps / "p")
    _run("encode", *common_words, "--encode_output_path", reps / "q", "--encode_is_query")
    found = {}
    for size in NestedEncoder.from_pretrained(model).sizes:
        run = reps / f"{size.layer}-{size.dim}.trec"
        _run(
            "search",
            "--query_reps",
            reps / "q",
            "--passage_reps",
            reps / "p",
            "--size",
            size,
            "--depth",
            "100",
            "--save_ranking_to",
            run,
        )
        printed = _run("evaluate", "--run", run, "--qrels", dataset, "--measures", "nDCG@10", "--json")
        found[str(size)] = round(_ndcg(json.loads(printed)), 4)
    return found


def _ndcg(figures: dict[str, Any]) -> float:
    (run,) = figures["runs"]
    return run["measures"]["nDCG@10"]


def _run(stage: str, *words: Any) -> str:
    command = [sys.executable, "-m", f"starbucks_retrieval.{stage}", *map(str, words), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
