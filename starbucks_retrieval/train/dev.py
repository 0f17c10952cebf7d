"""Dev sets that are scored at every size during training."""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
import torch

from starbucks_retrieval.data import check_qrels, join_text, open_corpus, open_pairs, open_queries, read_qrels
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.measures import parse_measures, score
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)
_DEPTH = 100


class DevSet(Protocol):
    """A dev set."""

    def score(self, encoder: NestedEncoder, sizes: Sizes, precision: torch.dtype | None = None) -> dict[str, float]:
        """Score an encoder.

        Args:
            encoder: The encoder in training.
            sizes: The sizes to score.
            precision: The type of autocast, or None.

        Returns:
            Every measure's mean over the sizes (`nDCG@10`), and its value at each size (`nDCG@10/6:128`).
        """
        ...


class DevRetrieval:
    """The judged queries of a BEIR folder, searched in its corpus or in a sample of it.

    Args:
        folder: The BEIR folder.
        split: The split of its judgements.
        measures: Measures separated by spaces.
        max_passages: Search only the judged passages and random others up to this number; None means all passages.
        seed: Seed of the sample.

    Raises:
        UserError: No query is judged, or a file cannot be read.
    """

    def __init__(self, folder: str, split: str, measures: str, max_passages: int | None, seed: int) -> None:
        self.measures = parse_measures(measures)
        self.qrels = read_qrels(folder, split=split)
        queries = [query for query in open_queries(folder) if query.query_id in self.qrels]
        if not queries:
            raise UserError(f"no query of {folder} is judged in its {split} qrels", "check --eval_dataset_split")
        self.query_ids = [query.query_id for query in queries]
        self.queries = [query.text for query in queries]
        passages = list(open_corpus(folder))
        check_qrels(self.qrels, None, {passage.docid for passage in passages}, f"{folder}, split {split}")
        if max_passages is not None and max_passages < len(passages):
            judged = {docid for query_id in self.query_ids for docid in self.qrels[query_id]}
            others = [i for i, passage in enumerate(passages) if passage.docid not in judged]
            spare = max(0, max_passages - (len(passages) - len(others)))
            kept = set(np.random.default_rng(seed).permutation(others)[:spare].tolist())
            passages = [p for i, p in enumerate(passages) if p.docid in judged or i in kept]
        # trec_eval ranks equal scores by docid, descending; a stable sort over this order does the same.
        passages.sort(key=lambda passage: passage.docid, reverse=True)
        self.docids = [passage.docid for passage in passages]
        self.passages = passages
        log.info("dev set %s: %d queries, %d passages", folder, len(queries), len(passages))

    def score(self, encoder: NestedEncoder, sizes: Sizes, precision: torch.dtype | None = None) -> dict[str, float]:
        """Implement `DevSet.score`."""
        config = encoder.config
        texts = [join_text(p, config.passage_field_separator, config.passage_prefix) for p in self.passages]
        passage_sizes = Sizes(sorted({config.passage_size(size) for size in sizes}))
        passages = encoder.embed(encoder.tokenize(texts, encoder.max_length(False)), passage_sizes, dtype=precision)
        queries = encoder.encode(self.queries, sizes, is_query=True, dtype=precision)
        values = {
            size: score(self.qrels, self._run(queries[size], passages[config.passage_size(size)]), self.measures).mean
            for size in sizes
        }
        return _with_means(values)

    def _run(self, queries: np.ndarray, passages: np.ndarray) -> dict[str, dict[str, float]]:
        scores = queries @ passages.T  # [queries, passages]
        top = np.argsort(-scores, axis=1, kind="stable")[:, :_DEPTH]
        return {
            query_id: {self.docids[i]: float(scores[row, i]) for i in top[row]}
            for row, query_id in enumerate(self.query_ids)
        }


class DevPairs:
    """Scored pairs: Spearman's correlation of their cosines with their scores.

    Args:
        name: A file, a folder or a name on the hub.
        split: Its split.

    Raises:
        UserError: There are fewer than three pairs.
    """

    def __init__(self, name: str, split: str) -> None:
        pairs = list(open_pairs(name, split=split))
        if len(pairs) < 3:
            raise UserError(f"{name} ({split}) has {len(pairs)} scored pairs", "a correlation needs three or more")
        self.sentences = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
        self.scores = [pair.score for pair in pairs]
        log.info("dev set %s: %d scored pairs", name, len(pairs))

    def score(self, encoder: NestedEncoder, sizes: Sizes, precision: torch.dtype | None = None) -> dict[str, float]:
        """Implement `DevSet.score`."""
        from scipy.stats import spearmanr

        first, second = (encoder.encode(texts, sizes, dtype=precision) for texts in self.sentences)
        values = {}
        for size in sizes:
            a, b = (side[size] / np.linalg.norm(side[size], axis=1, keepdims=True) for side in (first, second))
            values[size] = {"spearman": float(spearmanr((a * b).sum(1), self.scores).statistic)}
        return _with_means(values)


def _with_means(values: dict[Size, dict[str, float]]) -> dict[str, float]:
    names = list(next(iter(values.values())))
    means = {name: float(np.mean([at_size[name] for at_size in values.values()])) for name in names}
    return means | {f"{name}/{size}": at_size[name] for size, at_size in values.items() for name in names}
