"""sts(): scored pairs through one model, a correlation for every set at every size."""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.sts.arguments import StsArguments
from starbucks_retrieval.sts.baseline import compare, open_baseline
from starbucks_retrieval.sts.cosines import nested_cosines
from starbucks_retrieval.sts.sets import PairSet, open_sets

log = logging.getLogger(__name__)

# Where the figures go and on what they are computed, not what they are.
_PLACES = ("output", "device", "baseline", "test", "correction", "keep_pairs", "label")


def sts(arguments: StsArguments, seed: int = 42) -> Results:
    """The correlation of cosines with scores, for every set at every size, from one pass over the distinct sentences.

    All subsets of a set are ranked together, the papers' "all" setting; equal values share their average rank. Cells
    come set by set, sizes ascending. A size at which all cosines of a set are one has no correlation: its value is NaN.
    With `baseline`, `more["comparison"]` holds the differences from it; `seed` is of the bootstrap among its tests.
    Raises UserError for data, models and sizes that do not fit, before anything is written.
    Source: Starbucks (arXiv 2410.13230), section 4; correlations are scipy's.
    """
    if arguments.output and Path(arguments.output).is_dir():
        raise UserError(f"{arguments.output} is a folder, a file is needed", "name a file with --output")
    baseline = open_baseline(arguments.baseline, arguments.test) if arguments.baseline else None
    keep = arguments.keep_pairs or baseline is not None
    sets = open_sets(arguments.data, arguments.split)
    from starbucks_retrieval.sentences.encoding import SentenceModel, distinct

    model = SentenceModel(arguments)
    texts, positions = distinct(text for one in sets for side in one.sentences for text in side)
    pairs = sum(len(one.numbers) for one in sets)
    log.info("%d sets, %d pairs, %d distinct sentences", len(sets), pairs, len(texts))
    vectors = model.embed(texts, model.widest)
    rows = [[np.array([positions[text] for text in side]) for side in one.sentences] for one in sets]
    cells = []
    for one, (first, second) in zip(sets, rows):
        for widest, found in vectors.items():
            dims = [size.dim for size in model.sizes if size.layer == widest.layer]
            for dim, cosines in nested_cosines(found, first, second, dims):
                cells.append(_cell(one, Size(widest.layer, dim), cosines, arguments.measure, keep))
    more = {
        **model.describe(),
        "data": {one.name: {"source": one.source, "pairs": len(one.numbers), "blake2b": one.digest} for one in sets},
        "provenance": describe({k: v for k, v in dataclasses.asdict(arguments).items() if k not in _PLACES}),
    }
    if keep:
        more["gold"] = {one.name: dict(zip(map(str, one.numbers), one.scores.tolist())) for one in sets}
    results = Results("sts", arguments.name, cells, more, "grid" if arguments.is_grid else "list")
    if baseline:
        more["comparison"] = compare(results, baseline, arguments.test, arguments.correction, seed)
    if not arguments.keep_pairs:
        more.pop("gold", None)
        results = dataclasses.replace(results, cells=[dataclasses.replace(cell, values=None) for cell in cells])
    if arguments.output:
        write_results(arguments.output, results)
    return results


def _cell(one: PairSet, size: Size, cosines: np.ndarray, measure: str, keep: bool) -> Cell:
    value = correlation(cosines, one.scores, measure)
    if math.isnan(value):
        log.warning("%s at %s: all cosines are one, so there is no correlation", one.name, size)
    kept = dict(zip(map(str, one.numbers), cosines.tolist())) if keep else None
    return Cell(one.name, measure, size, value, len(one.numbers), values=kept)


def correlation(found: np.ndarray, wanted: np.ndarray, measure: str) -> float:
    """Spearman's (ties share their average rank) or Pearson's correlation; NaN where one side is constant."""
    from scipy import stats

    if np.ptp(found) == 0 or np.ptp(wanted) == 0:
        return math.nan
    return float((stats.spearmanr if measure == "spearman" else stats.pearsonr)(found, wanted).statistic)
