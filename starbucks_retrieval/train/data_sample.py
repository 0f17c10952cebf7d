"""The first rows of a training collection, checked as training would check them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.data import Group, Passage, Records, ScoredPair
from starbucks_retrieval.data.records import SMALL_FILE, RecordCount, count_records
from starbucks_retrieval.data.sources import beir_folder, find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.train.arrow_shard import check_first, check_inline, unknown_document
from starbucks_retrieval.train.data import MissingCounts, check_rows
from starbucks_retrieval.train.mixture import DataSet
from starbucks_retrieval.train.plan import TrainPlan, open_collection

SAMPLE = 100  # training rows, and passages of a corpus, that are read from a large collection


@dataclass(frozen=True)
class DataSample:
    """A training collection and its first rows.

    Attributes:
        count: The number of rows.
        first: The first rows.
        corpus: The corpus that they refer to, or None.
        no_negatives: Training needs hard negatives, and no row that was read has any; later rows may have.
    """

    count: RecordCount
    first: list[Group | ScoredPair]
    corpus: Records[Passage] | None
    no_negatives: bool


def sample_data(one: DataSet, plan: TrainPlan) -> DataSample:
    """Read all rows of a small collection, or the first rows of a large one.

    Args:
        one: The data set.
        plan: The plan of the run: its kind of data, its group size, and whether it needs a teacher's scores.

    Raises:
        UserError: `train` would refuse a row that was read.
    """
    name, split = one.name, one.dataset_split or plan.arguments.dataset_split or "train"
    group_size = one.train_group_size or plan.group_size
    rows, corpus = open_collection(one, plan)
    judged = not plan.scored_pairs and (beir_folder(name) or find_ir(name, split))
    complete = bool(judged) or is_small(rows.source)  # an opened collection of judgements is in memory
    stream = iter(rows if complete else itertools.islice(rows, SAMPLE))
    first = list(itertools.islice(stream, SAMPLE))
    if plan.scored_pairs:
        if not first:
            raise UserError(f"{name} holds no scored pairs", "check the path and the split")
        missing = MissingCounts(len(first) + sum(1 for _ in stream), 0, 0)
    else:
        missing = _check_groups(name, itertools.chain(first, stream), corpus, complete)
        check_rows(name, missing, group_size, plan.with_scores, complete)
    count = RecordCount(missing.rows, True) if complete else count_records(rows)
    no_negatives = group_size > 1 and not plan.scored_pairs and missing.negatives == missing.rows
    return DataSample(count, first, corpus, no_negatives)


def is_small(source: str) -> bool:
    """Return whether a collection is a local file that is read in seconds.

    Args:
        source: The path of a file, in which ~ is expanded, or any other source, which is not small.

    Returns:
        True for a file of up to 64 MiB, or 16 MiB if its name ends in .gz.
    """
    path = Path(source).expanduser()
    return path.is_file() and path.stat().st_size <= (SMALL_FILE // 4 if path.suffix == ".gz" else SMALL_FILE)


def _check_groups(name: str, groups: Iterable[Group], corpus: Records[Passage] | None, complete: bool) -> MissingCounts:
    rows = negatives = scores = 0
    inline, docids = False, None
    for group in groups:
        if not rows:
            inline = check_first(name, group, corpus).passages is not None
            if not inline and corpus is not None and complete and is_small(corpus.source):
                docids = {passage.docid for passage in corpus}
        rows += 1
        negatives += not group.negative_ids
        scores += group.scores is None
        if inline:
            check_inline(name, group)
        elif docids is not None:
            for docid in (*group.positive_ids, *group.negative_ids):
                if docid not in docids:
                    raise unknown_document(group, docid, corpus)
    if not rows:
        check_first(name, None, corpus)
    return MissingCounts(rows, negatives, scores)
