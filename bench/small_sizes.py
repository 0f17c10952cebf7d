"""Small sizes of one encoder, made in every way that a user could choose: nDCG@10 on test queries, minutes and memory.

Each row is a model folder under --work, made in a process of its own and kept, so that the comparison resumes. Rows that
train get --minutes of wall time each, so run them on an idle machine. Texts are fitted and distilled on --texts, which are
not of the test sets; rows whose name ends in "(own texts)" use the corpus of the first test set instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

SIZES = "1:16,2:32,3:64,4:128,5:256,6:384"
LAYER_0 = "0:128"
PROBE = 6  # steps whose duration sets the number of steps


@dataclasses.dataclass(frozen=True)
class Context:
    """What every row is made from."""

    model: str
    texts: list[str]
    queries: list[str]
    train: str
    minutes: float
    max_texts: int
    work: Path

    def fitted(self, own: bool = False) -> Path:
        """Return the folder of the fitted model, which several rows begin with."""
        return self.work / ("fitted (own texts)" if own else "fitted") / "model"


def starbucks(*flags: str) -> dict[str, Any]:
    """Run a command and return its figures."""
    command = [sys.executable, "-m", "starbucks_retrieval", *flags, "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def cut(context: Context, output: Path) -> dict[str, Any]:
    """The model as it is."""
    output.symlink_to(Path(context.model).resolve(), target_is_directory=True)
    return {}


def fit(context: Context, output: Path, own: bool = False) -> dict[str, Any]:
    """A linear map per layer, without labels."""
    sources = ["--dataset_path", *([context.train] if own else context.texts)]
    files = [context.train] if own else context.queries
    queries = ["--query_path", *files, "--query_split", "train"] if files else []
    named = ["--model_name_or_path", context.model, "--output_dir", str(output)]
    figures = starbucks("fit", *named, *sources, *queries, "--max_texts", str(context.max_texts))
    return {"texts": figures["texts"]}


def train(context: Context, output: Path, start: str, *flags: str) -> dict[str, Any]:
    """Train for --minutes: a few steps are timed first, since `train` counts steps."""
    shared = ["--model_name_or_path", start, "--learning_rate", "1e-4", "--save_strategy", "no", *flags]
    seconds = []
    for steps in (PROBE, 3 * PROBE):
        began = time.perf_counter()
        starbucks("train", *shared, "--output_dir", str(output.with_name(f"probe-{steps}")), "--max_steps", str(steps))
        seconds.append(time.perf_counter() - began)
    each = max(1e-3, (seconds[1] - seconds[0]) / (2 * PROBE))
    steps = max(PROBE, int(60 * context.minutes / each))
    figures = starbucks("train", *shared, "--output_dir", str(output), "--max_steps", str(steps))
    return {"steps": figures["steps"]}


def srl(context: Context, output: Path, start: str | None = None, *flags: str) -> dict[str, Any]:
    """SRL on labelled pairs, as the demonstration trains."""
    batch = ["--per_device_train_batch_size", "32", "--train_group_size", "1", "--anchor_weight", "5"]
    data = ["--dataset_path", context.train, "--sizes", SIZES]
    return train(context, output, start or context.model, *batch, *data, *flags)


def distil(context: Context, output: Path) -> dict[str, Any]:
    """The fitted model, distilled further without labels."""
    data = ["--objective", "distil", "--dataset_path", *context.texts, "--sizes", f"{LAYER_0},{SIZES}"]
    return train(context, output, str(context.fitted()), *data, "--per_device_train_batch_size", "48")


def peer(context: Context, output: Path, loss: str) -> dict[str, Any]:
    """sentence-transformers with one of its own losses over layers, on the same labelled pairs."""
    import itertools

    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses
    from sentence_transformers.training_args import SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    from starbucks_retrieval.data import open_corpus, open_groups

    class Stop(TrainerCallback):
        began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = time.perf_counter() - self.began > 60 * context.minutes

    passages = {one.docid: f"{one.title} {one.text}".strip() for one in open_corpus(context.train)}
    pairs = [(group.query, passages[docid]) for group in open_groups(context.train) for docid in group.positive_ids]
    data = Dataset.from_dict({"anchor": [q for q, _ in pairs], "positive": [p for _, p in pairs]})
    model = SentenceTransformer(context.model, device="cpu")
    inner = losses.MultipleNegativesRankingLoss(model)
    dims = [int(size.split(":")[1]) for size in reversed(SIZES.split(","))]
    wrapped = (
        losses.Matryoshka2dLoss(model, inner, dims)
        if loss == "Matryoshka2dLoss"
        else losses.AdaptiveLayerLoss(model, inner)
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(output.with_name("checkpoints")),
        max_steps=10**6,
        per_device_train_batch_size=32,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        seed=0,
    )
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=wrapped, callbacks=[Stop()])
    trainer.train()
    model.save(str(output))
    assert list(itertools.islice(output.iterdir(), 1))
    return {"steps": trainer.state.global_step}


ROWS: dict[str, Callable[[Context, Path], dict[str, Any]]] = {
    "cut": cut,
    "fitted": fit,
    "fitted (own texts)": lambda context, output: fit(context, output, own=True),
    "fitted, distilled": distil,
    "SRL, labels": srl,
    "fitted, SRL, labels": lambda context, output: srl(context, output, str(context.fitted())),
    "sentence-transformers Matryoshka2dLoss, labels": lambda c, output: peer(c, output, "Matryoshka2dLoss"),
    "sentence-transformers AdaptiveLayerLoss, labels": lambda c, output: peer(c, output, "AdaptiveLayerLoss"),
}


def score(model: Path, sets: list[str], folder: Path) -> dict[str, dict[str, float]]:
    """Return {set: {size: nDCG@10}} on the test queries, layer 0 and asymmetric sizes included where there are maps."""
    from starbucks_retrieval.models.config import find_config

    projected = 0 in find_config(str(model), 6, 384).projected_layers
    sizes = [LAYER_0, *SIZES.split(",")] if projected else SIZES.split(",")
    searches = [["--size", size] for size in sizes]
    if projected:
        searches += [["--query_size", query, "--size", "6:128"] for query in (LAYER_0, "1:128")]
        sizes = [LAYER_0, "1:16", "1:128", *sizes[2:-1], "6:128", "6:384"]
    found = {}
    for name in sets:
        stores = {}
        for kind, flags in {"queries": ["--encode_is_query", "--dataset_split", "test"], "passages": []}.items():
            stores[kind] = str(folder / Path(name).name / kind)
            starbucks(
                *("encode", "--model_name_or_path", str(model), "--dataset_path", name, "--sizes", ",".join(sizes)),
                *("--encode_output_path", stores[kind], *flags, "--override", "--passage_max_len", "256"),
            )
        values = {}
        for search in searches:
            run = str(folder / "run.trec")
            starbucks(
                *("search", "--query_reps", stores["queries"], "--passage_reps", stores["passages"]),
                *("--depth", "100", "--save_ranking_to", run, *search),
            )
            label = "/".join(search[1::2])
            result = starbucks("evaluate", "--run", run, "--qrels", name, "--measures", "nDCG@10")
            values[label] = result["cells"][0]["value"]
        found[Path(name).name] = values
    return found


def main() -> None:
    """Make, score and report the rows."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--model", required=True, help="a folder of 6 layers x 384, such as all-MiniLM-L6-v2")
    parser.add_argument(
        "--texts", nargs="+", required=True, help="corpora or .txt files that are fitted and distilled on"
    )
    parser.add_argument("--queries", nargs="*", default=[], help="query files or BEIR folders, of which train is read")
    parser.add_argument(
        "--sets", nargs="+", required=True, help="BEIR folders; the first one's train split is trained on"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each row that trains")
    parser.add_argument("--max_texts", type=int, default=10000, help="texts of a fit")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS), help="rows to make")
    parser.add_argument("--work", default="small-sizes", help="folder for models and embeddings")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    context = Context(
        *(settings.model, settings.texts, settings.queries, settings.sets[0]),
        *(settings.minutes, settings.max_texts, Path(settings.work)),
    )
    if settings.row:
        print(json.dumps(ROWS[settings.row](context, context.work / settings.row / "model")))
        return
    report = common.Report("small_sizes", settings)
    for name in settings.only:
        folder = context.work / name
        record = folder / "row.json"
        if not record.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            began = time.perf_counter()
            made = subprocess.run([*sys.orig_argv, "--row", name], check=True, stdout=subprocess.PIPE, text=True)
            seconds = time.perf_counter() - began
            peak = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
            figures = json.loads(made.stdout.splitlines()[-1])
            scores = score(folder / "model", settings.sets, folder)
            record.write_text(json.dumps({"minutes": seconds / 60, "peak_mib": peak / 1024, **figures, "ndcg": scores}))
        report.line(name, "nDCG@10 on test queries by set and size; higher is better", **json.loads(record.read_text()))


if __name__ == "__main__":
    main()
