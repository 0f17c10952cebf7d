"""One model through the pipeline: encode all sizes in one pass, search and score each of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.demo.commands import command
from starbucks_retrieval.demo.settings import Settings
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import size_folder

log = logging.getLogger(__name__)
MEASURES = ["RR@10", "nDCG@10"]


def run_file(folder: Path, size: Size) -> Path:
    """Where the run of one size lies under the folder of a measured model."""
    return folder / "runs" / f"{size_folder(size)}.trec"


def measure(folder: Path, data: Path, sizes: Sizes, settings: Settings, model_flags: dict[str, Any]) -> dict[str, Any]:
    """Stores, runs and scores of a model under `folder`, for the test queries of `data`.

    `model_flags` are the flags of encode that name the model and what it does not store about itself. Returns the
    scores by size and the figures of encoding. An interrupted call resumes.
    """
    from starbucks_retrieval.encode.api import encode
    from starbucks_retrieval.encode.arguments import EncodeArguments
    from starbucks_retrieval.evaluate.api import evaluate
    from starbucks_retrieval.search.api import search

    shared = {**model_flags, "sizes": str(sizes), "dataset_path": str(data)}
    passages: dict[str, Any] = {
        **shared,
        "encode_output_path": str(folder / "passages"),
        "shard_size": settings.shard_size,
    }
    queries: dict[str, Any] = {
        **shared,
        "dataset_split": "test",
        "encode_is_query": True,
        "encode_output_path": str(folder / "queries"),
    }
    figures: dict[str, Any] = {}
    for name, flags in (("passages", passages), ("queries", queries)):
        log.info("$ %s", command("encode", flags))
        figures[name] = encode(EncodeArguments(**flags))

    others = ", ".join(map(str, sizes[1:]))
    for size in sizes:
        wanted: dict[str, Any] = {
            "query_reps": str(folder / "queries"),
            "passage_reps": str(folder / "passages"),
            "size": str(size),
            "depth": settings.depth,
            "save_ranking_to": str(run_file(folder, size)),
        }
        if size == sizes[0]:
            log.info("$ %s%s", command("search", wanted), f"    # likewise {others}" if others else "")
        search(**wanted)

    runs = [str(run_file(folder, size)) for size in sizes]
    rest: dict[str, Any] = {"qrels": str(data), "measures": MEASURES, "output": str(folder / "scores.json")}
    log.info("$ %s", command("evaluate", {"run": runs, **rest}))
    with _without_findings():
        evaluation = evaluate(runs, **rest)
    serious = sum(len(run.serious) for run in evaluation.runs)
    notes = sum(len(run.findings) for run in evaluation.runs) - serious
    log.info("preflight: %d serious findings, %d notes, listed in %s", serious, notes, rest["output"])
    scores = {str(size): run.scores.mean for size, run in zip(sizes, evaluation.runs, strict=True)}
    return {"scores": scores, "encode": figures, "serious_findings": serious}


@contextlib.contextmanager
def _without_findings() -> Iterator[None]:
    """Keep the preflight's dozens of lines about a cut backbone, bad as it has to be, out of the log."""
    logger = logging.getLogger("starbucks_retrieval.evaluate.api")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
