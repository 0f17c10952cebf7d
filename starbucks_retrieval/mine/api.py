"""Mine hard negatives: check flags and data, then print the plan (`--dry_run`) or write training rows with negatives."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import Group, Passage, Records, join_text, read_run, scan
from starbucks_retrieval.data.records import RecordCount, count_records
from starbucks_retrieval.data.run_reader import read_tag
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.leftovers import remove
from starbucks_retrieval.locks import OutputLock, left_by_killed_run, lock_of
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.bm25 import LUCENE, bm25_engine
from starbucks_retrieval.mine.candidates import (
    CandidateSource,
    candidates_folder,
    candidates_from_run,
    load_candidates,
    save_candidates,
)
from starbucks_retrieval.mine.rows import write_rows
from starbucks_retrieval.mine.topics import Docids, read_topics
from starbucks_retrieval.sizes import Sizes

log = logging.getLogger(__name__)

_SAMPLE = 200  # groups and passages whose lengths are averaged
_CANDIDATE_BYTES = 8  # a row number and a score


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
        UserError: Bad data or flags, an output that exists or that another process writes, or no group with a positive in
            the corpus.

    Example:
        >>> mine(MineArguments(dataset_path="groups.jsonl", corpus_path="corpus.jsonl",
        ...                    bm25=True, output_path="negatives.jsonl"))  # doctest: +SKIP
        {'output': 'negatives.jsonl', 'engine': 'bm25s', ...}
    """
    if seed < 0:
        raise UserError(f"--seed {seed} is below 0", "give 0 or more")
    plan = plan_mining(arguments)
    with OutputLock(arguments.output) as lock:
        _check_output(arguments)  # another process may have written it since
        return _mine(plan, seed, lock)


def _mine(plan: MinePlan, seed: int, lock: OutputLock) -> dict[str, Any]:
    arguments, began = plan.arguments, time.monotonic()
    for left in plan.cache_folder.glob(f"{LUCENE}*"):  # by a run that was killed; the lock keeps others out
        remove(left)
    # Missing models and packages are reported before the corpus is read, which can take an hour.
    source = plan.source()
    teacher = None
    if arguments.teacher_name_or_path:
        from starbucks_retrieval.mine.teacher import load_teacher

        teacher = load_teacher(arguments)
    run = read_run(arguments.run) if arguments.run else {}
    group_scan, corpus_scan = scan(plan.groups, "groups"), scan(plan.corpus)
    docids = Docids(plan.corpus, corpus_scan)
    topics = read_topics(plan.groups, docids)
    depth = min(arguments.depth, len(docids))
    if depth < arguments.depth:
        log.warning("depth %d exceeds the %d passages of the corpus: each query gets all", arguments.depth, depth)

    searching = time.monotonic()
    reused = False
    if source is None:
        candidates, engine_name = candidates_from_run(run, topics, docids, depth), "run"
    else:
        engine_name = source.identity["engine"]
        identity = source.identity | {"depth": depth, "corpus": corpus_scan.digest, "groups": group_scan.digest}
        cached = load_candidates(plan.cache_folder, identity)
        reused = cached is not None
        candidates = cached or source.search(topics, plan.corpus, docids, depth)
        if not reused:
            flags = dataclasses.asdict(arguments).items()
            settings = {name: value for name, value in flags if name not in ("output_path", "overwrite")}
            save_candidates(plan.cache_folder, candidates, identity, settings)
    del source  # a teacher may need the memory of its model
    choosing = time.monotonic()
    rows = (plan.groups, plan.corpus, topics, candidates, len(docids), teacher)
    counts, dropped = write_rows(arguments, seed, *rows, before_rename=lock.announce)
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


def _log_counts(arguments: MineArguments, counts: Counter[str]) -> None:
    """Log the warnings that the counts of `write_rows` give reason for."""
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


@dataclasses.dataclass(frozen=True)
class MinePlan:
    """Inputs and outputs of one call of `mine`, checked as far as opening the files tells.

    Attributes:
        arguments: The flags.
        groups: Training groups: queries with their positives.
        corpus: Passages that negatives are taken from.
        cache_folder: Folder that keeps the candidates for later calls.
    """

    arguments: MineArguments
    groups: Records[Group]
    corpus: Records[Passage]
    cache_folder: Path

    def source(self) -> CandidateSource | None:
        """Open the model or the BM25 index that ranks passages; None for `--run`, which holds a ranking already.

        Raises:
            UserError: The model cannot be read, or the BM25 package is missing.
        """
        if self.arguments.model_name_or_path:
            from starbucks_retrieval.mine.dense import BiEncoder

            return BiEncoder(self.arguments.model_name_or_path, self.arguments.model_size, self.arguments)
        return bm25_engine(self.arguments) if self.arguments.bm25 else None

    def preview(self) -> Preview:
        """Return the lines and figures of `--dry_run`; nothing is written and no weights are read.

        Bytes are those of full lists; filters only reduce them. The time covers the encoding by a model; BM25, a run
        and a teacher are not timed.

        Raises:
            UserError: The groups or the corpus are empty, or the model, the run or the BM25 package is missing.
        """
        arguments, groups, corpus = self.arguments, self.groups, self.corpus
        first_groups = list(itertools.islice(groups, _SAMPLE))
        passages = list(itertools.islice(corpus, _SAMPLE))
        for kind, found, name in (("groups", first_groups, groups.name), ("passages", passages, corpus.name)):
            if not found:
                raise UserError(f"{name} holds no {kind}", "check the file and the split")
        queries, documents = count_records(groups), count_records(corpus)
        depth = arguments.depth if documents.number is None else min(arguments.depth, documents.number)
        texts = [json.dumps(dataclasses.asdict(passage), ensure_ascii=False) + ", " for passage in passages]
        passage_bytes = sum(len(text.encode()) for text in texts) / len(texts)
        positives = sum(len(group.positive_ids) for group in first_groups) / len(first_groups)
        row_bytes = passage_bytes * (positives + min(arguments.num_negatives, depth))
        source, seconds = self._source_and_seconds(first_groups, passages, queries, documents)
        figures: dict[str, Any] = {
            "groups": queries.number,
            "groups_exact": queries.exact,
            "passages": documents.number,
            "passages_exact": documents.exact,
            "candidates_from": source,
            "depth": depth,
            "candidate_bytes": None if queries.number is None else queries.number * depth * _CANDIDATE_BYTES,
            "bytes": None if queries.number is None else round(queries.number * row_bytes),
            "output": str(arguments.output),
            "exists": arguments.output.exists(),
            "candidates_there": (self.cache_folder / "manifest.json").is_file(),
            "teacher": arguments.teacher_name_or_path,
            "seconds": seconds,
            "free_bytes": free_bytes(arguments.output),
        }
        return Preview(self._lines(queries, documents, figures), figures)

    def _lines(self, queries: RecordCount, documents: RecordCount, figures: dict[str, Any]) -> list[tuple[str, str]]:
        output, folder = self.arguments.output, self.cache_folder
        lines = [
            ("groups", f"{queries} in {self.groups.source}"),
            ("corpus", f"{documents} passages in {self.corpus.source}"),
            ("candidates", f"{figures['depth']} a query, from {figures['candidates_from']}"),
        ]
        if figures["candidates_there"]:
            lines.append(("cache", f"candidates in {folder}, used again if they come from the same search"))
        if figures["teacher"]:
            lines.append(("teacher", f"{figures['teacher']} scores the chosen passages; that is not timed"))
        if figures["bytes"] is not None:
            packed = " before gzip" if output.suffix == ".gz" else ""
            free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
            replaced = ", which is replaced" if figures["exists"] else ""
            lines.append(("writes", f"up to {readable(figures['bytes'])}{packed} to {output}{replaced}"))
            lines.append(("beside it", f"{readable(figures['candidate_bytes'])} of candidates in {folder}{free}"))
        return [*lines, ("time", duration(figures["seconds"]))]

    def _source_and_seconds(
        self, groups: list[Group], passages: list[Passage], queries: RecordCount, documents: RecordCount
    ) -> tuple[str, float | None]:
        """Where candidates come from, and the seconds that takes; None where it is not estimated."""
        arguments = self.arguments
        if arguments.run:
            read_tag(arguments.run)  # refuses a file that is not a run
            return f"the run {arguments.run}", None
        if arguments.bm25:
            return f"BM25 by {bm25_engine(arguments).identity['engine']}", None
        from starbucks_retrieval.models.info import model_info
        from starbucks_retrieval.models.precision import autocast_dtype, weights_dtype

        model = model_info(arguments.model_name_or_path or "")
        size = arguments.model_size or model.sizes.full
        model.check(Sizes([size]))
        name = f"{arguments.model_name_or_path} at {size}"
        if queries.number is None or documents.number is None:
            return name, None
        config = model.config
        query_texts = [(config.query_prefix + group.query).strip() for group in groups]
        passage_texts = [join_text(one, config.passage_field_separator, config.passage_prefix) for one in passages]
        device = resolve_device(arguments.device)
        weights = weights_dtype(arguments.weights_dtype, arguments.dtype, device)
        dtype, budget = autocast_dtype(arguments.dtype, device, weights), arguments.token_budget(device.type)
        seconds = 0.0
        for number, texts, length in (
            (queries.number, query_texts, config.query_max_len),
            (documents.number, passage_texts, config.passage_max_len),
        ):
            longest = length or model.token_limit
            seconds += number * model.seconds_per_text(size.layer, texts, longest, budget, str(device), dtype)
        return name, seconds


def plan_mining(arguments: MineArguments) -> MinePlan:
    """Check the output and open the data.

    Args:
        arguments: The flags of `starbucks mine`.

    Returns:
        The flags, the training groups, the corpus, and the folder that caches candidates.

    Raises:
        UserError: The output exists or cannot be written, a file has the name of the cache folder, or there is no
            corpus, or more than one.
    """
    _check_output(arguments)
    return MinePlan(arguments, *arguments.open_data(), candidates_folder(arguments.output))


def _check_output(arguments: MineArguments) -> None:
    """Raise UserError unless the output may be written; one that a killed run left may exist."""
    output = arguments.output
    if output.is_dir():
        raise UserError(f"{output} is a folder", "name a file with --output_path")
    if output.exists() and not arguments.overwrite and not left_by_killed_run(output, lock_of(output)):
        raise UserError(f"{output} exists", "add --overwrite, or name another --output_path")
    parent = next(parent for parent in output.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{output} cannot be written: {parent} is not a writable folder", "name another --output_path")
