"""What `mine` would do: groups, corpus, source of candidates, bytes at most, and for a model about how long."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.data.run_reader import read_tag
from starbucks_retrieval.data.scan import RecordCount, count_records
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine import cache
from starbucks_retrieval.mine.api import bm25_engine, check_output, open_data
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.store.info import readable

_SAMPLE = 200  # groups and passages whose length is looked at
_CANDIDATE = 8  # bytes of one: row and score


def preview(arguments: MineArguments) -> Preview:
    """Say what `mine` would do with the same flags; nothing is written, and no weights are read.

    Bytes are those of full lists: filters only make them fewer. The time is that of a model's encoding; BM25, a run
    and a teacher are not timed. Raises UserError as `mine` would for flags, model and data that a look can tell are
    wrong.
    """
    check_output(arguments.output, arguments.overwrite)
    folder = cache.folder_of(arguments.output)
    groups, corpus = open_data(arguments)
    some, passages = list(itertools.islice(groups, _SAMPLE)), list(itertools.islice(corpus, _SAMPLE))
    for what, found, name in (("groups", some, groups.name), ("passages", passages, corpus.name)):
        if not found:
            raise UserError(f"{name} holds no {what}", "check the file and the split")
    queries, documents = count_records(groups), count_records(corpus)
    depth = arguments.depth if documents.number is None else min(arguments.depth, documents.number)
    each = sum(map(_bytes, passages)) / len(passages)
    positives = sum(len(group.positive_ids) for group in some) / len(some)
    written = each * (positives + min(arguments.num_negatives, depth))
    source, seconds = _source(arguments, some, passages, queries, documents)
    figures: dict[str, Any] = {
        "groups": queries.number,
        "groups_exact": queries.exact,
        "passages": documents.number,
        "passages_exact": documents.exact,
        "candidates_from": source,
        "depth": depth,
        "candidate_bytes": None if queries.number is None else queries.number * depth * _CANDIDATE,
        "bytes": None if queries.number is None else round(queries.number * written),
        "output": str(arguments.output),
        "exists": arguments.output.exists(),
        "candidates_there": (folder / "manifest.json").is_file(),
        "teacher": arguments.teacher_name_or_path,
        "seconds": seconds,
        "free_bytes": free_bytes(arguments.output),
    }
    lines = [
        ("groups", f"{queries} in {groups.source}"),
        ("corpus", f"{documents} passages in {corpus.source}"),
        ("candidates", f"{depth} a query, from {source}"),
    ]
    if figures["candidates_there"]:
        lines.append(("there", f"candidates in {folder}: used again if they are of this search"))
    if arguments.teacher_name_or_path:
        lines.append(("teacher", f"{arguments.teacher_name_or_path} scores what is chosen; that is not timed"))
    if figures["bytes"] is not None:
        packed = " before gzip" if arguments.output.suffix == ".gz" else ""
        free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
        there = ", which is replaced" if figures["exists"] else ""
        lines.append(("writes", f"up to {readable(figures['bytes'])}{packed} to {arguments.output}{there}"))
        lines.append(("beside it", f"{readable(figures['candidate_bytes'])} of candidates in {folder}{free}"))
    return Preview([*lines, ("time", duration(seconds))], figures)


def _bytes(passage: Passage) -> int:
    return len(json.dumps(dataclasses.asdict(passage), ensure_ascii=False).encode()) + len(", ")


def _source(
    arguments: MineArguments, groups: list[Any], passages: list[Passage], queries: RecordCount, documents: RecordCount
) -> tuple[str, float | None]:
    """Where candidates come from, and the seconds that takes, None where it is not estimated."""
    if arguments.run:
        read_tag(arguments.run)  # a file that is no run is refused
        return f"the run {arguments.run}", None
    if arguments.bm25:
        return f"BM25 by {bm25_engine(arguments).identity['engine']}", None
    import torch

    from starbucks_retrieval.models.info import model_info
    from starbucks_retrieval.models.precision import choose
    from starbucks_retrieval.sizes import check_size

    model = model_info(arguments.model_name_or_path or "")
    size = arguments.asked_size or model.sizes.full
    check_size(size, model.num_layers, model.hidden_size)
    name = f"{arguments.model_name_or_path} at {size}"
    if queries.number is None or documents.number is None:
        return name, None
    config = model.config
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    texts = (
        (queries.number, [(config.query_prefix + group.query).strip() for group in groups], config.query_max_len),
        (
            documents.number,
            [join_text(one, config.passage_field_separator, config.passage_prefix) for one in passages],
            config.passage_max_len,
        ),
    )
    seconds = 0.0
    dtype = choose(arguments.dtype, torch.device(device))
    for number, sample, length in texts:
        tokens = model.mean_tokens(sample, length or model.token_limit)
        budget = arguments.token_budget(torch.device(device).type)
        seconds += number * tokens * size.layer * model.layer_seconds(max(3, round(tokens)), budget, device, dtype)
    return name, seconds
