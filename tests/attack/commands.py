"""Small runs of every command that writes files, on data made here, for tests that disturb those runs."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import run_command

NAMES = (
    *(
        "encode",
        "search",
        "index",
        "evaluate",
        "fit",
        "train",
        "pretrain",
        "mine",
        "mine-model",
        "grid",
        "sts",
        "transfer",
    ),
    *("report", "browse", "export", "export-again", "convert", "store-npy", "store-parquet", "store-arrow"),
)
PAIRS = ("encode-two", "train-two", "pretrain-two")  # of two processes
# In a run that went on these tell durations; `trajectory` returns what else the first two hold.
RECORDS = ("training.json", "trainer_state.json", "README.md")
_TRAINING = "--max_steps 4 --save_steps 2 --per_device_train_batch_size 4 --logging_steps 1 --quiet"


@dataclasses.dataclass(frozen=True)
class Run:
    """A command line whose outputs are in one folder of its own.

    Attributes:
        command: The module, without the package.
        words: The words, with {out} for the folder.
        rerun: More words of a rerun.
        older: A folder that the output folder is a copy of before the first run.
        launcher: Words between Python and the module, for several processes.
    """

    command: str
    words: str
    rerun: str = ""
    older: Path | None = None
    launcher: str = ""

    def argv(self, out: Path, rerun: bool = False) -> list[str]:
        """The words, with the folder filled in."""
        return f"{self.words} {self.rerun if rerun else ''}".replace("{out}", str(out)).split()

    def prepare(self, out: Path) -> None:
        """Make the output folder of a first run."""
        out.mkdir(parents=True, exist_ok=True)
        if self.older is not None:
            shutil.copytree(self.older, out, dirs_exist_ok=True)

    @property
    def main(self) -> Callable[[Sequence[str]], None]:
        """The command's main function."""
        return importlib.import_module(f"starbucks_retrieval.{self.command}.__main__").main

    def job(self, out: Path) -> list[str]:
        """The words of a process of its own that runs the command, and of a rerun."""
        words = f"{self.launcher} -m starbucks_retrieval.{self.command}".split()
        return [sys.executable, *words, *self.argv(out, rerun=True)]

    def __call__(self, out: Path, rerun: bool = False) -> int:
        """Run the command and return its exit code."""
        return run_command(self.main, self.argv(out, rerun))


def make_inputs(folder: Path, model: Path, names: Sequence[str] = NAMES) -> dict[str, Run]:
    """Write the inputs of commands into a folder, of all or of those named, and return one run of each command."""
    rng = np.random.default_rng(3)
    texts = [" ".join(f"w{k}" for k in rng.integers(0, 95, 8)) for _ in range(60)]
    beir = folder / "set"
    (beir / "qrels").mkdir(parents=True)
    passages = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": " ".join(text.split()[:4])} for i, text in enumerate(texts[:24])]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (beir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, numbers in (("train", range(16)), ("test", range(16, 24))):
        judged = "".join(f"q{i}\td{i}\t1\n" for i in numbers)
        (beir / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    ranked = "".join(f"q{i} Q0 d{k} {k + 1} {90 - k} x\n" for i in range(16) for k in range(20))
    (folder / "train.trec").write_text(ranked)
    (folder / "text.txt").write_text("\n".join(texts) + "\n")
    scored = "".join(f"{i % 5}\t{one}\t{two}\n" for i, (one, two) in enumerate(itertools.pairwise(texts[:20])))
    (folder / "pairs.tsv").write_text(scored)
    labels = "".join(f"{i % 2}\t{text}\n" for i, text in enumerate(texts[:20]))
    (folder / "labels.tsv").write_text("label\ttext\n" + labels)

    encode = f"--model_name_or_path {model} --dataset_path {beir} --sizes 2:8,4:32 --shard_size 20 --quiet"
    stores = f"--query_reps {folder}/q --passage_reps {folder}/p --size 4:32 --quiet"
    both = f"--model_name_or_path {model} --dataset_path {beir}"
    mine = f"--dataset_path {beir} --output_path {{out}}/new/n.jsonl --num_negatives 4 --quiet"
    export = f"--model_name_or_path {model} --to sentence-transformers --quiet"
    runs = {
        "encode": Run("encode", f"{encode} --encode_output_path {{out}}/p"),
        "search": Run("search", f"{stores} --save_ranking_to {{out}}/run.trec"),
        "index": Run("search", f"{stores} --index HNSW8 --save_index {{out}}/index --save_ranking_to {{out}}/run.trec"),
        "evaluate": Run("evaluate", f"--run {folder}/run.trec --qrels {beir} --output {{out}}/scores.json --quiet"),
        "fit": Run("fit", f"{both} --output_dir {{out}}/fitted --quiet"),
        "train": Run(
            "train",
            f"{both} --output_dir {{out}}/model --train_group_size 1 --sizes 2:8,4:32 {_TRAINING}",
            "--resume_from_checkpoint true",
        ),
        "pretrain": Run(
            "pretrain",
            f"--model_name_or_path {model} --dataset_path {folder}/text.txt --output_dir {{out}}/model {_TRAINING}",
            "--resume_from_checkpoint true",
        ),
        "mine": Run("mine", f"{mine} --run {folder}/train.trec"),
        "mine-model": Run("mine", f"{mine} --model_name_or_path {model} --size 4:32 --depth 20"),
        "grid": Run("grid", f"{both} --layers 2,4 --dims 8,32 --output {{out}}/grid.json --work_dir {{out}}/w --quiet"),
        "sts": Run("sts", f"--model_name_or_path {model} --data {folder}/pairs.tsv --output {{out}}/s.json --quiet"),
        "transfer": Run(
            "transfer", f"--model_name_or_path {model} --data {folder}/labels.tsv --output {{out}}/t.json --quiet"
        ),
        "report": Run("report", f"--input {folder}/scores.json --output_dir {{out}}/report --quiet"),
        "browse": Run("browse", f"{folder}/run.trec --corpus {beir} --output {{out}}/b.html --quiet"),
        "export": Run("export", f"{export} --size 2:8 --output_dir {{out}}/e"),
        "export-again": Run(
            "export", f"{export} --size 2:8 --output_dir {{out}}/e --overwrite_output_dir", older=folder / "older"
        ),
        "convert": Run("convert", f"--model_name_or_path {model} --output_dir {{out}}/c --sizes 2:8,4:32 --quiet"),
    }
    runs["encode-two"] = dataclasses.replace(runs["encode"], words=f"{runs['encode'].words} --num_processes 2")
    two = "-m torch.distributed.run --standalone --nproc_per_node 2"
    runs |= {f"{name}-two": dataclasses.replace(runs[name], launcher=two) for name in ("train", "pretrain")}
    for kind in ("npy", "parquet", "arrow"):
        runs[f"store-{kind}"] = Run("store", f"export {folder}/p/L4-D32 {{out}}/{kind} --to {kind} --quiet")
    readers = {  # of what other commands write
        Run("encode", f"{encode} --encode_output_path {folder}/p"): "search index store browse evaluate report",
        Run(
            "encode", f"{encode} --encode_output_path {folder}/q --encode_is_query"
        ): "search index browse evaluate report",
        Run("search", f"{stores} --save_ranking_to {folder}/run.trec"): "browse evaluate report",
        Run("export", f"{export} --size 1:8 --output_dir {folder}/older/e"): "export-again",
        Run("evaluate", f"--run {folder}/run.trec --qrels {beir} --output {folder}/scores.json --quiet"): "report",
    }
    for writes, read_by in readers.items():
        if any(name.startswith(tuple(read_by.split())) for name in names):
            assert writes(folder) == 0
    return runs


def digests(folder: Path) -> dict[str, str]:
    """Return {path: SHA-256} of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def trajectory(path: Path) -> list[dict[str, Any]]:
    """Return the logged values of each step of a run, from one of its RECORDS in JSON.

    Durations are left out, and `train_loss`, the mean over the steps since the run was last resumed.
    """
    content = json.loads(path.read_text())
    history = content.get("history") or content.get("log_history")
    other = ("runtime", "per_second", "seconds", "train_loss")
    return [{name: value for name, value in entry.items() if not name.endswith(other)} for entry in history]
