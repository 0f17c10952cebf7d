"""Commands to kill, on small inputs, and the moments to do it. A process of its own, so that nothing of it is forked twice.

`python -m attack.stages STAGE FOLDER SEED MOMENTS`, with tests/ on the path and one thread for torch, prints a JSON line: the number of moments that were tried and the
problems that were found. MOMENTS is a number, or `all` for every operation.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from attack.killing import contents, problems
from small_stores import write_store

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.locks import release_kept

Command = Callable[[Path], Callable[[], int]]


def typed(main: Callable[[Sequence[str]], None], *words: object) -> Callable[[], int]:
    """Return a run of a command line, as if this process had been started for it."""

    def work() -> int:
        sys.argv[1:] = list(map(str, words))
        status = run_command(main)
        if status == 0:
            release_kept()  # as at the end of a process
        return status

    return work


def _texts(folder: Path, count: int = 90) -> Path:
    rng = np.random.default_rng(3)
    rows = [{"_id": f"d{i}", "text": " ".join(f"w{k}" for k in rng.integers(0, 90, 12))} for i in range(count)]
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _store(folder: Path, name: str = "store", kind: str = "passages", count: int = 90) -> Path:
    vectors = np.random.default_rng(len(name)).standard_normal((count, 8)).astype(np.float32)
    return write_store(folder / name, [f"{kind[0]}{row}" for row in range(count)], vectors, shard_size=40, kind=kind)


def _model(folder: Path) -> Path:
    from conftest import save_model, save_tokenizer

    model = save_model(folder / "model")
    save_tokenizer(model)
    return model


def store_export(to: str) -> Callable[[Path], Command]:
    """`starbucks store export`."""

    def stage(inputs: Path) -> Command:
        from starbucks_retrieval.store.__main__ import main

        store = _store(inputs)
        return lambda folder: typed(main, "export", store, folder / "out", "--to", to, "--quiet")

    return stage


def mine(inputs: Path) -> Command:
    """`starbucks mine --run`."""
    from starbucks_retrieval.mine.__main__ import main

    corpus, groups, run = _texts(inputs), inputs / "groups.jsonl", inputs / "run.trec"
    rows = [
        {"query_id": f"q{i}", "query_text": f"w{i}", "positive_document_ids": [f"d{i}"], "negative_document_ids": []}
        for i in range(9)
    ]
    groups.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.write_text("".join(f"q{i} Q0 d{k} {k + 1} {90 - k} x\n" for i in range(9) for k in range(20)))
    data = ("--dataset_path", groups, "--corpus_path", corpus)
    return lambda folder: typed(main, *data, "--run", run, "--output_path", folder / "new" / "mined.jsonl", "--quiet")


def mine_model(inputs: Path) -> Command:
    """`starbucks mine` with a model, whose candidates are kept in a folder."""
    from starbucks_retrieval.mine.__main__ import main

    mine(inputs)
    words = ("--dataset_path", inputs / "groups.jsonl", "--corpus_path", inputs / "corpus.jsonl", "--quiet")
    ranked = ("--model_name_or_path", _model(inputs), "--size", "2:16", "--depth", "20")
    return lambda folder: typed(main, *words, *ranked, "--output_path", folder / "mined.jsonl")


def export(inputs: Path) -> Command:
    """`starbucks export`."""
    from starbucks_retrieval.export.__main__ import main

    flags = ("--model_name_or_path", _model(inputs), "--size", "2:16", "--to", "sentence-transformers", "--quiet")
    return lambda folder: typed(main, *flags, "--output_dir", folder / "out")


def export_again(inputs: Path) -> Command:
    """`starbucks export --overwrite_output_dir` over an older export, which another command wrote."""
    from starbucks_retrieval.export.__main__ import main

    flags = ("--model_name_or_path", _model(inputs), "--to", "sentence-transformers", "--quiet")

    assert typed(main, *flags, "--size", "1:8", "--output_dir", inputs / "older")() == 0

    def command(folder: Path) -> Callable[[], int]:
        if not any(folder.iterdir()):
            shutil.copytree(inputs / "older", folder / "out")
        return typed(main, *flags, "--size", "2:16", "--output_dir", folder / "out", "--overwrite_output_dir")

    return command


def convert(inputs: Path) -> Command:
    """`starbucks convert`."""
    from starbucks_retrieval.convert.__main__ import main

    flags = ("--model_name_or_path", _model(inputs), "--sizes", "1:8,2:16", "--pooling", "mean", "--quiet")
    return lambda folder: typed(main, *flags, "--output_dir", folder / "out")


def fit(inputs: Path) -> Command:
    """`starbucks fit`."""
    from starbucks_retrieval.fit.__main__ import main

    flags = ("--model_name_or_path", _model(inputs), "--dataset_path", _texts(inputs, 900), "--quiet")
    return lambda folder: typed(main, *flags, "--max_texts", "900", "--dtype", "fp32", "--output_dir", folder / "out")


def encode(inputs: Path) -> Command:
    """`starbucks encode` at two sizes."""
    from starbucks_retrieval.encode.__main__ import main

    flags = ("--model_name_or_path", _model(inputs), "--dataset_path", _texts(inputs), "--sizes", "1:8,2:16")
    more = ("--shard_size", "40", "--dtype", "fp32", "--quiet")
    return lambda folder: typed(main, *flags, *more, "--encode_output_path", folder / "out")


def index(inputs: Path) -> Command:
    """`starbucks search --save_index`, with a run file."""
    from starbucks_retrieval.search.__main__ import main

    reps = ("--query_reps", _store(inputs, "queries", "queries", 5), "--passage_reps", _store(inputs), "--quiet")
    flags = ("--index", "IVF4,Flat", "--train_sample", "90", "--depth", "5")
    return lambda folder: typed(
        main, *reps, *flags, "--save_index", folder / "index", "--save_ranking_to", folder / "run.trec"
    )


STAGES: dict[str, Callable[[Path], Command]] = {
    "store-export-npy": store_export("npy"),
    "store-export-parquet": store_export("parquet"),
    "store-export-arrow": store_export("arrow"),
    "mine": mine,
    "mine-model": mine_model,
    "export": export,
    "export-again": export_again,
    "convert": convert,
    "fit": fit,
    "encode": encode,
    "index": index,
}


def moments(seed: int, wanted: str) -> Callable[[int], list[tuple[int, ...]]]:
    """Return a function that draws the operations at which runs are killed, from their number."""

    def draw(count: int) -> list[tuple[int, ...]]:
        every = [(at,) for at in range(1, count + 1)]
        if wanted == "all":
            return every
        rng = np.random.default_rng(seed)
        # The rerun is killed too, at another moment; it has fewer operations, where something was kept.
        pairs = [tuple(map(int, rng.integers(1, count + 1, 2))) for _ in range(int(wanted))]
        return [*every, *dict.fromkeys(pairs)] if int(wanted) > count else list(dict.fromkeys(pairs))

    return draw


def main() -> None:
    """Run one stage."""
    name, root, seed, wanted = sys.argv[1:]
    sys.argv[1:] = []
    logging.disable(logging.WARNING)
    inputs = Path(root) / "inputs"
    inputs.mkdir(parents=True)
    command = STAGES[name](inputs)
    tried, found = problems(command, Path(root) / "runs", moments(int(seed), wanted), contents)
    print(json.dumps({"tried": tried, "problems": found}))


if __name__ == "__main__":
    main()
