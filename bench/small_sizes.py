"""Small sizes of one encoder, made in every way that a user could choose: nDCG@10 on test queries, minutes and memory.

Each row is a model folder under --work, made in a process of its own and kept, so that the comparison resumes. Rows that
train get --minutes of processor time each, of all cores together, so that other work on the machine favours none of them.
Texts are fitted and distilled on --texts, which are not of the test sets; rows whose name ends in "(own texts)" use the
corpus of the first test set instead. model2vec is needed for its row only: pip install model2vec skeletoken.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

LAYER_0 = "0:128"
PROBE = 6  # steps whose duration sets the number of steps


@dataclasses.dataclass(frozen=True)
class Context:
    """What every row is made from."""

    model: str
    texts: list[str]
    queries: list[str]
    train: str
    sizes: str
    minutes: float
    max_texts: int
    dtype: str
    work: Path
    sets: list[str]

    @property
    def precision(self) -> list[str]:
        """Flags of fit and encode."""
        return ["--dtype", self.dtype]

    @property
    def query_flags(self) -> list[str]:
        """Flags of distillation."""
        return ["--query_path", *self.queries] if self.queries else []

    @property
    def full(self) -> tuple[int, int]:
        """The layers of the model, and its width."""
        layers, dim = self.sizes.split(",")[-1].split(":")
        return int(layers), int(dim)

    def fitted(self, own: bool = False) -> Path:
        """Return the folder of the fitted model, which several rows begin with."""
        return self.work / ("fitted (own texts)" if own else "fitted") / "model"


def starbucks(*flags: str) -> dict[str, Any]:
    """Run a command and return its figures."""
    command = [sys.executable, "-m", "starbucks_retrieval", *flags, "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def processor_seconds() -> float:
    """Return the processor time of all child processes that have ended, on all cores together."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    figures = starbucks("fit", *named, *sources, *queries, "--max_texts", str(context.max_texts), *context.precision)
    return {"texts": figures["texts"]}


def train(context: Context, output: Path, start: str, *flags: str) -> dict[str, Any]:
    """Train for --minutes of processor time: a few steps are timed first, since `train` counts steps."""
    shared = ["--model_name_or_path", start, "--save_strategy", "no", "--overwrite_output_dir", *flags]
    shared += ["--bf16", "true"] if context.dtype == "bf16" else []
    seconds = []
    for steps in (PROBE, 3 * PROBE):
        began = processor_seconds()
        starbucks("train", *shared, "--output_dir", str(output.with_name(f"probe-{steps}")), "--max_steps", str(steps))
        seconds.append(processor_seconds() - began)
    each = max(1e-3, (seconds[1] - seconds[0]) / (2 * PROBE))
    steps = max(PROBE, int(60 * context.minutes / each))
    figures = starbucks("train", *shared, "--output_dir", str(output), "--max_steps", str(steps))
    return {"steps": figures["steps"]}


def srl(context: Context, output: Path, start: str | None = None, *flags: str) -> dict[str, Any]:
    """SRL on labelled pairs, as the demonstration trains."""
    batch = ["--per_device_train_batch_size", "32", "--train_group_size", "1", "--anchor_weight", "5"]
    data = ["--dataset_path", context.train, "--sizes", context.sizes, "--learning_rate", "1e-4"]
    return train(context, output, start or context.model, *batch, *data, *flags)


def distil(context: Context, output: Path) -> dict[str, Any]:
    """The fitted model, distilled further without labels, with the settings of the preset."""
    data = ["--preset", "distil", "--dataset_path", *context.texts, "--sizes", f"{LAYER_0},{context.sizes}"]
    return train(context, output, str(context.fitted()), *data, *context.query_flags)


def distil_alone(context: Context, output: Path) -> dict[str, Any]:
    """The first layers of the model, two thirds of them, as a model of their own that learns the whole one's embeddings."""
    layers, dim = context.full
    student = output.with_name("student")
    size = f"{2 * layers // 3}:{dim}"
    named = ["--model_name_or_path", context.model, "--output_dir", str(student)]
    starbucks("export", *named, "--size", size, "--to", "sentence-transformers", "--overwrite_output_dir")
    data = ["--preset", "distil", "--dataset_path", *context.texts, "--sizes", f"{2 * layers // 3}:{dim // 3},{size}"]
    teacher = ["--teacher_model_name_or_path", context.model, "--objective_options", "full_follows=teacher"]
    return train(context, output, str(student), *data, *context.query_flags, *teacher, "--projections", "none")


def model2vec(context: Context, output: Path) -> dict[str, Any]:
    """Static token vectors of model2vec, from the same model."""
    from model2vec.distill import distill
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    made = distill(context.model, pca_dims=context.full[1], device="cpu")
    SentenceTransformer(modules=[StaticEmbedding(made.tokenizer, embedding_weights=made.embedding)]).save(str(output))
    return {}


def peer(context: Context, output: Path, loss: Any) -> dict[str, Any]:
    """sentence-transformers with one of its own losses over layers, on the same labelled pairs."""
    from starbucks_retrieval.reproduce.sentence_transformers import SentenceTransformersArguments
    from starbucks_retrieval.reproduce.sentence_transformers import train as train_peer

    dims = ",".join(size.split(":")[1] for size in context.sizes.split(","))
    data: dict[str, Any] = {"dataset_path": [context.train], "passage_max_len": 256, "bf16": context.dtype == "bf16"}
    chosen = SentenceTransformersArguments(
        context.model, str(output), loss, minutes=context.minutes, train_dims=dims, **data
    )
    return {"steps": train_peer(chosen)["steps"]}


ROWS: dict[str, Callable[[Context, Path], dict[str, Any]]] = {
    "cut": cut,
    "fitted": fit,
    "fitted (own texts)": lambda context, output: fit(context, output, own=True),
    "fitted, distilled": distil,
    "first layers alone, distilled": distil_alone,
    "model2vec": model2vec,
    "SRL, labels": srl,
    "fitted, SRL, labels": lambda context, output: srl(context, output, str(context.fitted())),
    "fitted (own texts), SRL, labels": lambda context, output: srl(context, output, str(context.fitted(own=True))),
    "sentence-transformers Matryoshka2dLoss, labels": lambda c, output: peer(c, output, "Matryoshka2dLoss"),
    "sentence-transformers AdaptiveLayerLoss, labels": lambda c, output: peer(c, output, "AdaptiveLayerLoss"),
}


def score(context: Context, model: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Return {set: {size: nDCG@10}} on the test queries, layer 0 and asymmetric sizes included where there are maps."""
    from starbucks_retrieval.models.config import find_config
    from starbucks_retrieval.sizes import Size

    layers, dim = context.full
    if not (model / "config.json").is_file():  # a model of static token vectors
        return {Path(name).name: score_static(model, name, (128, dim)) for name in context.sets}
    own = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    small = context.sizes.split(",")[:-1] if own == layers else [f"{own}:{dim // 3}"]
    searches = [[size] for size in [*small, f"{own}:{dim}"]]
    sizes = [*small, f"{own}:{dim}"]
    projected = find_config(str(model), layers, dim).projected_layers
    if 0 in projected:
        deep, shallow = f"{layers}:128", [LAYER_0, *(["1:128"] if 1 in projected else [])]
        searches += [[f"0:{dim}"], [deep], *([size] for size in shallow), *([deep, size] for size in shallow)]
        sizes = [f"0:{dim}", *shallow, *sizes, deep]
    sizes = [str(size) for size in sorted({Size.parse(size) for size in sizes})]
    found = {}
    for name in context.sets:
        stores = {}
        for kind, flags in {"queries": ["--encode_is_query", "--dataset_split", "test"], "passages": []}.items():
            stores[kind] = str(folder / Path(name).name / kind)
            starbucks(
                *("encode", "--model_name_or_path", str(model), "--dataset_path", name, "--sizes", ",".join(sizes)),
                *("--encode_output_path", stores[kind], *flags, "--override", "--passage_max_len", "256"),
                *context.precision,
            )
        values = {}
        for passages, *queries in searches:
            run = str(folder / "run.trec")
            starbucks(
                *(
                    "search",
                    "--query_reps",
                    stores["queries"],
                    "--passage_reps",
                    stores["passages"],
                    "--size",
                    passages,
                ),
                *("--depth", "100", "--save_ranking_to", run, *(["--query_size", *queries] if queries else [])),
            )
            result = starbucks("evaluate", "--run", run, "--qrels", name, "--measures", "nDCG@10")
            values["/".join([*queries, passages])] = result["cells"][0]["value"]
        found[Path(name).name] = values
    return found


def score_static(model: Path, name: str, dims: Sequence[int]) -> dict[str, float]:
    """Return {"0:dim": nDCG@10} of a model of static token vectors."""
    import torch
    from sentence_transformers import SentenceTransformer

    from starbucks_retrieval.data import open_corpus, open_queries
    from starbucks_retrieval.evaluate import evaluate_run
    from starbucks_retrieval.search import search_vectors

    passages = {one.docid: f"{one.title} {one.text}".strip() for one in open_corpus(name)}
    queries = {one.query_id: one.text for one in open_queries(name, split="test")}
    encoder = SentenceTransformer(str(model), device="cpu")
    sides = [torch.from_numpy(encoder.encode(list(texts.values()))) for texts in (queries, passages)]
    values = {}
    for dim in dims:
        asked, found = (torch.nn.functional.normalize(side[:, :dim], dim=1) for side in sides)
        run = search_vectors(asked, found, k=100, query_ids=list(queries), passage_ids=list(passages))
        values[f"0:{dim}"] = evaluate_run(run, name, "nDCG@10").mean["nDCG@10"]
    return values


def main() -> None:
    """Make, score and report the rows."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--model", required=True, help="the model, a folder")
    parser.add_argument(
        "--texts", nargs="+", required=True, help="corpora or .txt files that are fitted and distilled on"
    )
    parser.add_argument("--queries", nargs="*", default=[], help="query files or BEIR folders, of which train is read")
    parser.add_argument(
        "--sets", nargs="+", required=True, help="BEIR folders; the first one's train split is trained on"
    )
    parser.add_argument(
        "--sizes", default="1:16,2:32,3:64,4:128,5:256,6:384", help="sizes to compare, the full one last"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of processor time, for each row that trains")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="precision of all forward passes")
    parser.add_argument("--max_texts", type=int, default=10000, help="texts of a fit")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS), help="rows to make")
    parser.add_argument("--work", default="small-sizes", help="folder for models and embeddings")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    context = Context(
        *(settings.model, settings.texts, settings.queries, settings.sets[0], settings.sizes),
        *(settings.minutes, settings.max_texts, settings.dtype, Path(settings.work), settings.sets),
    )
    if settings.row:
        print(json.dumps(ROWS[settings.row](context, context.work / settings.row / "model")))
        return
    report = common.Report("small_sizes", settings)
    for name in settings.only:
        folder = context.work / name
        record = folder / "row.json"
        if not record.is_file():
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run left
            folder.mkdir(parents=True)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            began = processor_seconds()
            made = subprocess.run([*sys.orig_argv, "--row", name], check=True, stdout=subprocess.PIPE, text=True)
            seconds = processor_seconds() - began
            peak = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
            figures = json.loads(made.stdout.splitlines()[-1])
            scores = score(context, folder / "model", folder)
            cost = {"processor_minutes": seconds / 60, "peak_mib": peak / 1024}
            record.write_text(json.dumps({**cost, **figures, "ndcg": scores}))
        report.line(name, "nDCG@10 on test queries by set and size; higher is better", **json.loads(record.read_text()))


if __name__ == "__main__":
    main()
