"""What a dry run sees of training data: all rows where that is cheap, else the first ones; refused as `train` would."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.data import Group, Passage, Records, ScoredPair
from starbucks_retrieval.data.count import SMALL, RecordCount, count_records
from starbucks_retrieval.data.sources import beir_folder, find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.train.api import open_collection
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.checks import Lacking, check_first, check_inline, check_rows, unknown_document

SAMPLE = 100  # training rows, and passages of a corpus, that are looked at of a large collection


@dataclass(frozen=True)
class DataSample:
    """A collection: its rows, the first of them, and its corpus or None.

    no_negatives: none of the rows looked at has hard negatives, and training asks for some that later rows may have.
    """

    count: RecordCount
    first: list[Group | ScoredPair]
    corpus: Records[Passage] | None
    no_negatives: bool


def sample_data(name: str, arguments: TrainArguments, pairs: bool, group_size: int, with_scores: bool) -> DataSample:
    """Look at a collection. Raises UserError for what `train` would refuse, as far as the rows looked at show it."""
    rows, corpus = open_collection(name, arguments, pairs)
    judged = not pairs and (beir_folder(name) or find_ir(name, arguments.dataset_split or "train"))
    whole = bool(judged) or is_small(rows.source)  # judged rows lie in memory once they are open
    seen = iter(rows if whole else itertools.islice(rows, SAMPLE))
    first = list(itertools.islice(seen, SAMPLE))
    if pairs:
        if not first:
            raise UserError(f"{name} holds no scored pairs", "check the path and the split")
        found = Lacking(len(first) + sum(1 for _ in seen), 0, 0)
    else:
        found = _check(name, itertools.chain(first, seen), corpus, whole)
        check_rows(name, found, group_size, with_scores, whole)
    count = RecordCount(found.rows, True) if whole else count_records(rows)
    return DataSample(count, first, corpus, group_size > 1 and not pairs and found.negatives == found.rows)


def is_small(source: str) -> bool:
    """Whether a local file is read in seconds."""
    path = Path(source).expanduser()
    return path.is_file() and path.stat().st_size <= (SMALL // 4 if path.suffix == ".gz" else SMALL)


def _check(name: str, groups: Iterable[Group], corpus: Records[Passage] | None, whole: bool) -> Lacking:
    rows = negatives = scores = 0
    inline, docids = False, None
    for group in groups:
        if not rows:
            inline = check_first(name, group, corpus).passages is not None
            if not inline and corpus is not None and whole and is_small(corpus.source):
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
    return Lacking(rows, negatives, scores)
