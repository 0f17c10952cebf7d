"""Decide from the flags and the data what `mine` will do; `--dry_run` prints the plan, otherwise `mine` runs it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import Group, Passage, Records, join_text, open_corpus, open_groups
from starbucks_retrieval.data.records import RecordCount, count_records
from starbucks_retrieval.data.run_reader import read_tag
from starbucks_retrieval.data.sources import beir_folder, find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.mine.bm25 import Bm25sEngine, PyseriniEngine, pyserini_works
from starbucks_retrieval.mine.candidates import CandidateSource, candidates_folder

log = logging.getLogger(__name__)

_SAMPLE = 200  # groups and passages whose lengths are averaged
_CANDIDATE_BYTES = 8  # a row number and a score


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

    def source(self) -> CandidateSource:
        """Return the model or the BM25 index that ranks passages; not defined for `--run`, which ranks nothing."""
        if self.arguments.model_name_or_path:
            from starbucks_retrieval.mine.dense import DenseEngine

            return DenseEngine(self.arguments)
        return bm25_engine(self.arguments)

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
        passage_bytes = sum(map(_json_bytes, passages)) / len(passages)
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
        import torch

        from starbucks_retrieval.devices import resolve_device
        from starbucks_retrieval.models.info import model_info
        from starbucks_retrieval.models.precision import autocast_dtype
        from starbucks_retrieval.sizes import check_size

        model = model_info(arguments.model_name_or_path or "")
        size = arguments.model_size or model.sizes.full
        check_size(size, model.num_layers, model.hidden_size)
        name = f"{arguments.model_name_or_path} at {size}"
        if queries.number is None or documents.number is None:
            return name, None
        config = model.config
        query_texts = [(config.query_prefix + group.query).strip() for group in groups]
        passage_texts = [join_text(one, config.passage_field_separator, config.passage_prefix) for one in passages]
        device: torch.device = resolve_device(arguments.device)
        dtype, budget = autocast_dtype(arguments.dtype, device), arguments.token_budget(device.type)
        seconds = 0.0
        for number, texts, length in (
            (queries.number, query_texts, config.query_max_len),
            (documents.number, passage_texts, config.passage_max_len),
        ):
            tokens = model.mean_tokens(texts, length or model.token_limit)
            layer_seconds = model.layer_seconds(max(3, round(tokens)), budget, str(device), dtype)
            seconds += number * tokens * size.layer * layer_seconds
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
    _check_output(arguments.output, arguments.overwrite)
    return MinePlan(arguments, *_open_data(arguments), candidates_folder(arguments.output))


def bm25_engine(arguments: MineArguments) -> CandidateSource:
    """Return the BM25 engine of `--bm25_backend`; auto prefers Pyserini where its Java works.

    Raises:
        UserError: The package is not installed.
    """
    backend = arguments.bm25_backend
    if backend == "auto":
        backend = "pyserini" if pyserini_works() else "bm25s"
        log.info("BM25 by %s", backend)
    if backend == "pyserini":
        return PyseriniEngine(arguments.bm25_k1, arguments.bm25_b, arguments.output.parent)
    return Bm25sEngine(arguments.bm25_k1, arguments.bm25_b)


def _check_output(output: Path, overwrite: bool) -> None:
    """Raise UserError unless the output may be written."""
    if output.is_dir():
        raise UserError(f"{output} is a folder", "name a file with --output_path")
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists", "add --overwrite, or name another --output_path")
    parent = next(parent for parent in output.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{output} cannot be written: {parent} is not a writable folder", "name another --output_path")


def _open_data(arguments: MineArguments) -> tuple[Records[Group], Records[Passage]]:
    """Open training groups and the corpus. Raises UserError where there is no corpus, or two."""
    name, split = arguments.collection, arguments.dataset_split
    groups = open_groups(name, config=arguments.dataset_config, split=split)
    named = [c for c in (arguments.corpus_path, arguments.corpus_name) if c]
    if len(named) > 1:
        raise UserError("--corpus_path and --corpus_name name two corpora", "give one of them")
    # A BEIR folder contains its corpus, and so does a data set of ir_datasets.
    if not named and (beir_folder(name) or find_ir(name, split)):
        named = [name]
    if not named:
        raise UserError("no corpus to take negatives from", "name it with --corpus_path")
    return groups, open_corpus(named[0])


def _json_bytes(passage: Passage) -> int:
    return len(json.dumps(dataclasses.asdict(passage), ensure_ascii=False).encode()) + len(", ")
