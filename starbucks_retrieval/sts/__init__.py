"""Semantic textual similarity: correlate cosines with human scores at every size, from one encoding pass."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError, refuse_folder
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.metrics.results import Cell, Results, read_results, write_results
from starbucks_retrieval.metrics.significance import TEST_NAMES, Correction, adjust, compare_correlations, fisher_z
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sentences import SentenceArguments, size_table
from starbucks_retrieval.sentences.tasks import SETS, PairSet, open_pair_sets
from starbucks_retrieval.sizes import Size

__all__ = ["StsArguments", "nested_cosines", "sts"]
__dir__ = public_names(__name__)
log = logging.getLogger(__name__)

_CHUNK = 4096  # pairs multiplied at once
# Flags that do not affect the correlations.
_NOT_RECORDED = ("output", "device", "baseline", "test", "correction", "keep_pairs", "label")
ALPHA = 0.05
Test = Literal["auto", "williams", "bootstrap", "fisher"]
_Chosen = Literal["williams", "bootstrap", "fisher"]


@dataclasses.dataclass
class StsArguments(SentenceArguments):
    """Semantic textual similarity."""

    data: list[str] = flag(
        help="sets of scored pairs: names, files, hub names, or NAME=file", factory=lambda: list(SETS)
    )
    split: str | None = flag(None, "split of the sets that have splits (default: test)")
    measure: Literal["spearman", "pearson"] = flag("spearman", "which correlation")
    output: str | None = flag(None, "JSON to write: figures and what made them")
    keep_pairs: bool = flag(
        False, "write every pair's cosine and score, too, for paired tests of significance", rare=True
    )
    baseline: str | None = flag(None, "result file of another model: adds a table of the differences from it")
    test: Test = flag(
        "auto", "against the baseline: auto is williams where both keep their pairs, else fisher (published)"
    )
    correction: Correction = flag("none", "of p over all sets and sizes compared", rare=True)


def nested_cosines(
    vectors: np.ndarray, first: np.ndarray, second: np.ndarray, dims: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the cosines of pairs at growing dims of one layer.

    Inner products and squared lengths add up dim by dim, so nothing is multiplied twice. A vector of zeros has cosine
    0 with every other.

    Args:
        vectors: [texts, width], a layer's embeddings at the largest dim, normalised or not.
        first: int [pairs], rows of the first sentences.
        second: int [pairs], rows of the second sentences.
        dims: Ascending.

    Yields:
        (dim, cosines float64 [pairs]).

    Example:
        >>> vectors = np.array([[1.0, 0.0], [1.0, 1.0]])
        >>> [(dim, found.round(4).tolist()) for dim, found in nested_cosines(vectors, np.array([0]), np.array([1]), [1, 2])]
        [(1, [1.0]), (2, [0.7071])]
    """
    products = np.zeros(len(first))
    squares = np.zeros(len(vectors))
    start = 0
    for dim in dims:
        block = vectors[:, start:dim].astype(np.float64)
        squares += np.einsum("ij,ij->i", block, block)
        for begin in range(0, len(first), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            products[part] += np.einsum("ij,ij->i", block[first[part]], block[second[part]])
        lengths = np.sqrt(squares)
        lengths = lengths[first] * lengths[second]
        cosines = np.divide(products, lengths, out=np.zeros(len(first)), where=lengths > 0)
        cosines[first == second] = 1.0  # rounding would rank pairs of equal sentences among themselves
        yield dim, np.clip(cosines, -1, 1)
        start = dim


def sts(arguments: StsArguments, seed: int = 42) -> Results:
    """Correlate cosines with human scores, for every set at every size, from one pass over the distinct sentences.

    All subsets of a set are ranked together, the papers' "all" setting; equal values share their average rank.
    Correlations are scipy's. Source: Starbucks (arXiv 2410.13230), section 4.

    Args:
        arguments: The flags of the command.
        seed: Seeds the bootstrap test against the baseline.

    Returns:
        Cells set by set, sizes ascending. The value is NaN where all cosines of a set are equal. With a baseline,
        `more["comparison"]` holds the differences from it.

    Raises:
        UserError: The data, the model or the sizes do not fit; nothing is written.

    Example:
        >>> results = sts(StsArguments("model", sizes="2:32,6:128", data=["STS-B"]))  # doctest: +SKIP
        >>> [(str(cell.size), cell.value) for cell in results.cells]  # doctest: +SKIP
        [('2:32', 0.78), ('6:128', 0.83)]
    """
    refuse_folder(arguments.output)
    baseline = open_baseline(arguments.baseline, arguments.test) if arguments.baseline else None
    keep = arguments.keep_pairs or baseline is not None
    sets = open_pair_sets(arguments.data, arguments.split)
    from starbucks_retrieval.sentences.encoding import SentenceModel, distinct

    model = SentenceModel(arguments)
    texts, positions = distinct(text for one in sets for side in one.sentences for text in side)
    pairs = sum(len(one.numbers) for one in sets)
    log.info("%d sets, %d pairs, %d distinct sentences", len(sets), pairs, len(texts))
    vectors = model.embed(texts, model.layer_sizes)
    rows = [[np.array([positions[text] for text in side]) for side in one.sentences] for one in sets]
    cells = []
    for one, (first, second) in zip(sets, rows):
        for layer_size, embeddings in vectors.items():
            dims = [size.dim for size in model.sizes if size.layer == layer_size.layer]
            for dim, cosines in nested_cosines(embeddings, first, second, dims):
                cells.append(_cell(one, Size(layer_size.layer, dim), cosines, arguments.measure, keep))
    more = {
        **model.describe(),
        "data": {one.name: {"source": one.source, "pairs": len(one.numbers), "blake2b": one.digest} for one in sets},
        "provenance": describe({k: v for k, v in dataclasses.asdict(arguments).items() if k not in _NOT_RECORDED}),
    }
    if keep:
        more["gold"] = {one.name: dict(zip(map(str, one.numbers), one.scores.tolist())) for one in sets}
    results = Results("sts", arguments.name, cells, more, "grid" if arguments.is_grid else "list")
    if baseline:
        more["comparison"] = compare_with_baseline(results, baseline, arguments.test, arguments.correction, seed)
    if not arguments.keep_pairs:
        more.pop("gold", None)
        results = results.without_values()
    if arguments.output:
        write_results(arguments.output, results)
    return results


def _cell(one: PairSet, size: Size, cosines: np.ndarray, measure: str, keep: bool) -> Cell:
    value = correlation(cosines, one.scores, measure)
    if math.isnan(value):
        log.warning("%s at %s: all cosines are equal, so there is no correlation", one.name, size)
    kept = dict(zip(map(str, one.numbers), cosines.tolist())) if keep else None
    return Cell(one.name, measure, size, value, len(one.numbers), values=kept)


def correlation(values: np.ndarray, targets: np.ndarray, measure: str) -> float:
    """Return Spearman's (ties share their average rank) or Pearson's correlation; NaN if one side is constant.

    Args:
        values: The cosines of the pairs, [pairs].
        targets: Their human scores, [pairs].
        measure: spearman or pearson.

    Example:
        >>> round(correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]), "spearman"), 6)
        1.0
    """
    from scipy import stats

    if np.ptp(values) == 0 or np.ptp(targets) == 0:
        return math.nan
    return float((stats.spearmanr if measure == "spearman" else stats.pearsonr)(values, targets).statistic)


def open_baseline(path: str, test: str) -> Results:
    """Read another model's result file.

    Args:
        path: The file.
        test: auto, williams, bootstrap or fisher.

    Raises:
        UserError: The file is not from sts, or lacks the cosines of pairs that `test` needs.
    """
    baseline = read_results(path)
    if baseline.kind != "sts":
        raise UserError(f"{path} holds results of {baseline.kind}, not of sts", "name a file that sts wrote")
    if test in ("williams", "bootstrap") and not _has_pairs(baseline):
        raise UserError(
            f"--test {test} needs every pair's cosine, which {path} does not hold",
            "measure that model again with --keep_pairs, or take --test fisher",
        )
    return baseline


def compare_with_baseline(
    ours: Results, baseline: Results, test: Test = "auto", correction: Correction = "none", seed: int = 42
) -> dict[str, Any]:
    """Return the differences of correlations, `ours` minus `baseline`, at every set and size of both.

    Args:
        ours: Results of the model.
        baseline: Results of another model.
        test: auto takes Williams' test of dependent correlations if both results keep their pairs, else Fisher's z,
            the published test, which treats the two as independent.
        correction: Of p over all sets and sizes that are compared.
        seed: Seeds the bootstrap.

    Returns:
        A JSON-ready mapping with one cell for each set and size.

    Raises:
        UserError: The results are over other pairs, or share no set and size.
    """
    for name in ours.more["data"].keys() & baseline.more["data"].keys():
        if ours.more["data"][name]["blake2b"] != baseline.more["data"][name]["blake2b"]:
            raise UserError(
                f"{name} is another set of pairs in the results of {baseline.label}", "measure both on the same files"
            )
    theirs = {(cell.dataset, cell.size, cell.measure): cell for cell in baseline.cells}
    both = [(cell, theirs[key]) for cell in ours.cells if (key := (cell.dataset, cell.size, cell.measure)) in theirs]
    both = [(one, other) for one, other in both if math.isfinite(one.value) and math.isfinite(other.value)]
    if not both:
        raise UserError(
            f"the results of {baseline.label} share no set, size and measure with these",
            "measure both at the same sizes on the same sets",
        )
    chosen: _Chosen = (
        ("williams" if _has_pairs(ours) and _has_pairs(baseline) else "fisher") if test == "auto" else test
    )
    p_values = [_p_value(one, other, chosen, ours.more.get("gold", {}), seed) for one, other in both]
    cells = [
        {"dataset": one.dataset, "size": str(one.size), "difference": one.value - other.value, "p": p, "corrected": q}
        for (one, other), p, q in zip(both, p_values, adjust(p_values, correction))
    ]
    return {"baseline": baseline.label, "test": chosen, "correction": correction, "cells": cells}


def difference_table(comparison: dict[str, Any]) -> str:
    """Return a text table of differences, with a legend that names the baseline and the test.

    Args:
        comparison: What `compare_with_baseline` returned.

    Returns:
        One row for each size, one column for each set, and their average if there are several. The difference of a
        set has a * if its corrected p is below 0.05. The legend is the last line.
    """
    rows = comparison["cells"]
    cells = [Cell(row["dataset"], "", Size.parse(row["size"]), row["difference"], 0) for row in rows]
    marked = {(row["dataset"], row["size"]) for row in rows if row["corrected"] < ALPHA}

    def text(cell: Cell) -> str:
        return f"{cell.value:+.4f}" + "*" * ((cell.dataset, str(cell.size)) in marked)

    corrected = "uncorrected" if comparison["correction"] == "none" else f"after {comparison['correction'].title()}"
    legend = f"minus {comparison['baseline']}; * p < {ALPHA}, {TEST_NAMES[comparison['test']]}, two-tailed, {corrected}"
    return f"{size_table(cells, text)}\n{legend}"


def _p_value(one: Cell, other: Cell, test: _Chosen, gold: dict[str, dict[str, float]], seed: int) -> float:
    if test == "fisher":
        return fisher_z(one.value, one.count, other.value, other.count)[1]
    assert one.values is not None and other.values is not None
    scores = gold[one.dataset]
    found, others = ([values[number] for number in scores] for values in (one.values, other.values))
    pearson = one.measure == "pearson"
    return compare_correlations(list(scores.values()), found, others, test, pearson=pearson, seed=seed).p_value


def _has_pairs(results: Results) -> bool:
    return "gold" in results.more and all(cell.values for cell in results.cells)
