"""Mine hard negatives: from training groups and a corpus to training rows with negatives."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from typing import Any

from starbucks_retrieval.data import read_run, scan
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.mine.candidates import (
    Candidates,
    CandidateSource,
    candidates_from_run,
    load_candidates,
    save_candidates,
)
from starbucks_retrieval.mine.plan import MinePlan, plan_mining
from starbucks_retrieval.mine.rows import write_rows
from starbucks_retrieval.mine.teacher import load_teacher
from starbucks_retrieval.mine.topics import Docids, Topics, read_topics

log = logging.getLogger(__name__)


def mine(arguments: MineArguments, seed: int = 42) -> dict[str, Any]:
    """Write training rows whose negatives a model, BM25 or a run ranks high, after the filters.

    Rows are in Tevatron's format and in the order of the groups. Candidates are cached beside the output, so a second
    call that differs only in its filters does not search again.

    Args:
        arguments: The flags of the command.
        seed: Seeds the random choice of negatives, for each query apart; 0 or more.

    Returns:
        Figures for a summary: counts of queries, negatives and dropped candidates, and seconds by part.

    Raises:
        UserError: Bad data or flags, an output that exists, or no group with a positive in the corpus.

    Example:
        >>> mine(MineArguments(dataset_path="groups.jsonl", corpus_path="corpus.jsonl",
        ...                    bm25=True, output_path="negatives.jsonl"))  # doctest: +SKIP
        {'output': 'negatives.jsonl', 'engine': 'bm25s', ...}
    """
    if seed < 0:
        raise UserError(f"--seed {seed} is below 0", "give 0 or more")
    plan = plan_mining(arguments)
    began = time.monotonic()
    # Missing models and packages are reported before the corpus is read, which can take an hour.
    source = None if arguments.run else plan.source()
    teacher = load_teacher(arguments) if arguments.teacher_name_or_path else None
    run = read_run(arguments.run) if arguments.run else {}
    group_scan, corpus_scan = scan(plan.groups, "groups"), scan(plan.corpus)
    docids = Docids(plan.corpus, corpus_scan)
    topics = read_topics(plan.groups, docids)
    _log_topics(topics)
    depth = min(arguments.depth, len(docids))
    if depth < arguments.depth:
        log.warning("depth %d exceeds the %d passages of the corpus: each query gets all", arguments.depth, depth)

    searching = time.monotonic()
    reused = False
    if source is None:
        candidates, engine_name = candidates_from_run(run, topics, docids, depth), "run"
    else:
        engine_name = source.identity["engine"]
        data = {"depth": depth, "corpus": corpus_scan.digest, "groups": group_scan.digest}
        candidates, reused = _cached_candidates(plan, source, data, topics, docids)
    del source  # a teacher may need the memory of its model
    choosing = time.monotonic()
    counts, dropped = write_rows(arguments, seed, plan.groups, plan.corpus, topics, candidates, len(docids), teacher)
    _log_counts(arguments, counts)
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


def _cached_candidates(
    plan: MinePlan, source: CandidateSource, data: dict[str, Any], topics: Topics, docids: Docids
) -> tuple[Candidates, bool]:
    """The candidates, and whether they came from the cache."""
    identity = source.identity | data
    found = load_candidates(plan.cache_folder, identity)
    if found is not None:
        return found, True
    found = source.search(topics, plan.corpus, docids, data["depth"])
    # The output's path does not affect the candidates.
    settings = dataclasses.asdict(plan.arguments)
    kept = {name: value for name, value in settings.items() if name not in ("output_path", "overwrite")}
    save_candidates(plan.cache_folder, found, identity, kept)
    return found, False


def _log_topics(topics: Topics) -> None:
    groups = len(topics.topic_of_group)
    if topics.with_negatives:
        log.info("%d of %d groups have negatives already; mining replaces them", topics.with_negatives, groups)
    if topics.outside:
        log.warning("%d of %d groups have a positive that the corpus lacks", topics.outside, groups)


def _log_counts(arguments: MineArguments, counts: Counter[str]) -> None:
    if counts["left_out"]:
        log.warning("%d groups are left out: no text is known for any of their positives", counts["left_out"])
    if counts["other_text"]:
        log.warning(
            "%d positives have another text in the corpus than in their group: is it the right corpus?",
            counts["other_text"],
        )
    if counts["without_positive_score"] and (arguments.margin is not None or arguments.ratio is not None):
        log.warning(
            "--margin or --ratio did not apply to %d queries: none of their positives has a score (above 0, for --ratio)",
            counts["without_positive_score"],
        )
    if counts["without_negatives"]:
        log.warning("%d queries end without negatives", counts["without_negatives"])
