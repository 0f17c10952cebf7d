"""mine(): training groups and a corpus, to training rows with hard negatives."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import Group, Passage, Records, open_corpus, open_groups, read_run, scan
from starbucks_retrieval.data.sources import beir_folder, find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine import cache
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.mine.candidates import Candidates, Engine
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.from_run import from_run
from starbucks_retrieval.mine.rows import write_rows
from starbucks_retrieval.mine.teacher import load_teacher
from starbucks_retrieval.mine.topics import Topics, read_topics

log = logging.getLogger(__name__)


def mine(arguments: MineArguments, seed: int = 42) -> dict[str, Any]:
    """Write Tevatron rows whose negatives are what the asked engine ranks high, after the filters.

    Rows keep the order of the groups. Candidates are kept beside the output, so a second call that differs in its
    filters only does not search again. Returns figures for a summary. Raises UserError for bad data or flags, an output
    that exists, and groups without any positive in the corpus.
    """
    if seed < 0:
        raise UserError(f"--seed {seed} is below 0", "give 0 or more")
    check_output(arguments.output, arguments.overwrite)
    folder = cache.folder_of(arguments.output)
    groups, corpus = open_data(arguments)
    began = time.monotonic()
    # What is missing should not be found out after an hour of reading.
    engine = None if arguments.run else _engine(arguments)
    teacher = load_teacher(arguments) if arguments.teacher_name_or_path else None
    run = read_run(arguments.run) if arguments.run else {}
    of_groups, of_corpus = scan(groups, "groups"), scan(corpus)
    docids = Docids(corpus, of_corpus)
    topics = read_topics(groups, docids)
    _tell(topics)
    depth = min(arguments.depth, len(docids))
    if depth < arguments.depth:
        log.warning("depth %d is more than the %d passages there are: each query gets all", arguments.depth, depth)

    searching = time.monotonic()
    reused = False
    if engine is None:
        candidates, engine_name = from_run(run, topics, docids, depth), "run"
    else:
        engine_name = engine.identity["engine"]
        data = {"depth": depth, "corpus": of_corpus.digest, "groups": of_groups.digest}
        candidates, reused = _candidates(arguments, engine, data, folder, topics, corpus, docids)
    del engine  # a teacher may need the memory of its model
    choosing = time.monotonic()
    counts, dropped = write_rows(arguments, seed, groups, corpus, topics, candidates, len(docids), teacher)
    _tell_counts(arguments, counts)
    done = time.monotonic()
    return {
        "output": str(arguments.output),
        "engine": engine_name,
        "teacher": teacher.kind if teacher else None,
        "depth": depth,
        "reused_candidates": reused,
        "queries": counts["queries"],
        "mean_negatives": round(counts["negatives"] / counts["queries"], 2),
        "without_negatives": counts["without_negatives"],
        "positives_outside_corpus": topics.outside,
        "left_out": counts["left_out"],
        "without_positive_score": counts["without_positive_score"],
        "dropped": {name: dropped[name] for name in ("positives", "range", "margin", "ratio", "duplicates")},
        "seconds": round(done - began, 3),
        "seconds_by_part": {
            "read": round(searching - began, 3),
            "search": round(choosing - searching, 3),
            "choose and write": round(done - choosing, 3),
        },
    }


def check_output(output: Path, overwrite: bool) -> None:
    """Raise UserError unless the output may be written."""
    if output.is_dir():
        raise UserError(f"{output} is a folder", "name a file with --output_path")
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists", "add --overwrite, or name another --output_path")
    summary = next(parent for parent in output.absolute().parents if parent.exists())
    if not summary.is_dir() or not os.access(summary, os.W_OK):
        raise UserError(f"{output} cannot be written: {summary} is no folder to write in", "name another --output_path")


def open_data(arguments: MineArguments) -> tuple[Records[Group], Records[Passage]]:
    """Training groups and the corpus. Raises UserError where there is none, or two."""
    name, split = arguments.collection, arguments.dataset_split
    groups = open_groups(name, config=arguments.dataset_config, split=split)
    named = [c for c in (arguments.corpus_path, arguments.corpus_name) if c]
    if len(named) > 1:
        raise UserError("--corpus_path and --corpus_name name two corpora", "give one of them")
    # A BEIR folder is its own corpus, and so is a data set of ir_datasets.
    if not named and (beir_folder(name) or find_ir(name, split)):
        named = [name]
    if not named:
        raise UserError("no corpus to take negatives from", "name it with --corpus_path")
    return groups, open_corpus(named[0])


def _engine(arguments: MineArguments) -> Engine:
    if arguments.model_name_or_path:
        from starbucks_retrieval.mine.dense import DenseEngine

        return DenseEngine(arguments)
    return bm25_engine(arguments)


def bm25_engine(arguments: MineArguments) -> Engine:
    """The engine of BM25 that is asked for. Raises UserError where it is not installed."""
    from starbucks_retrieval.mine import lucene
    from starbucks_retrieval.mine.bm25 import Bm25sEngine

    backend = arguments.bm25_backend
    if backend == "auto":
        backend = "pyserini" if lucene.works() else "bm25s"
        log.info("BM25 by %s", backend)
    if backend == "pyserini":
        return lucene.PyseriniEngine(arguments.bm25_k1, arguments.bm25_b, arguments.output.parent)
    return Bm25sEngine(arguments.bm25_k1, arguments.bm25_b)


def _candidates(
    arguments: MineArguments,
    engine: Engine,
    data: dict[str, Any],
    folder: Path,
    topics: Topics,
    corpus: Records[Passage],
    docids: Docids,
) -> tuple[Candidates, bool]:
    """The candidates, and whether they were there already."""
    identity = engine.identity | data
    found = cache.load(folder, identity)
    if found is not None:
        return found, True
    found = engine.search(topics, corpus, docids, data["depth"])
    # Where the output lies is no part of how the candidates were made.
    settings = dataclasses.asdict(arguments)
    cache.save(folder, found, identity, {k: v for k, v in settings.items() if k not in ("output_path", "overwrite")})
    return found, False


def _tell(topics: Topics) -> None:
    groups = len(topics.of_group)
    if topics.with_negatives:
        log.info("%d of %d groups have negatives already; mining replaces them", topics.with_negatives, groups)
    if topics.outside:
        log.warning("%d of %d groups have a positive that the corpus lacks", topics.outside, groups)


def _tell_counts(arguments: MineArguments, counts: Counter[str]) -> None:
    if counts["left_out"]:
        log.warning("%d groups are left out: no text is known for any of their positives", counts["left_out"])
    if counts["other_text"]:
        log.warning(
            "%d positives have another text in the corpus than in their group: is it the right corpus?",
            counts["other_text"],
        )
    if counts["without_positive_score"] and (arguments.margin is not None or arguments.ratio is not None):
        log.warning(
            "--margin or --ratio did not apply to %d queries: no positive of theirs has a score (above 0, for --ratio)",
            counts["without_positive_score"],
        )
    if counts["without_negatives"]:
        log.warning("%d queries end without negatives", counts["without_negatives"])
