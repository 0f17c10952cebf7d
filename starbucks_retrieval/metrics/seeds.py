"""The standard error of a difference of two methods that were both trained with several seeds.

Model. Method m, trained with seed s, scores query q as

    y[m, s, q] = mean[m] + b[m, q] + a[m, s] + e[m, s, q].

Queries and seeds are both random: another test set has other queries (b), another training is another model (a), and a
model is better on some queries and worse on others than its method is on average (e, the interaction of seeds and queries).
Queries are crossed with methods and with seeds. Seeds are nested in methods: two methods have no training in common, so
their order does not matter. With words for seeds and subjects for queries, this is the design of Clark (Journal of Verbal
Learning and Verbal Behavior 12, 1973). Where two methods are measured on the same trained models, seeds are crossed with
methods too, and y is the difference of both.

Estimate. The mean difference over Q queries and S[m] seeds has the variance

    sum over m of (var a[m] / S[m] + var e[m] / (S[m] Q)) + var(b[1] - b[2]) / Q.

Its estimate without bias is the sum over m of V[m] / S[m], where V is the variance of the means of seeds, plus W / Q, where W
is the variance over queries of the difference of their means, less the sum over m of R[m] / (S[m] Q), where R is the mean
square of the interaction, which the other two both contain. Where the interaction exceeds one of these, the estimate of its
component would be below 0: then the larger of the two remains. The degrees of freedom are those of Satterthwaite (Biometrics
Bulletin 2, 1946), with S - 1, Q - 1 and (S - 1)(Q - 1) of the parts.

Error rates. Simulated with 100 queries and normal effects of many ratios, a test at 0.05 rejects a true hypothesis with
probability 0.03 to 0.05 if both methods have three seeds, and 0.02 to 0.07 with two; with three seeds it is up to 0.013 at
0.005. With three seeds of one method against one without training, or of the same models, only two degrees of freedom
inform about seeds, and the probabilities are 0.03 to 0.08, and up to 0.035; with two seeds, up to 0.13. Correlated seeds of
two methods, as by the same order of the data, make the test more careful.

Correlations. A pair of sentences stands for a query, and its score is the correlation plus the influence of the pair on
it, whose mean over the pairs is the correlation (the infinitesimal jackknife). For Pearson's correlation see Devlin,
Gnanadesikan and Kettenring (Biometrika 62, 1975), for Spearman's Croux and Dehon (Statistical Methods & Applications 19,
2010), here with mid-ranks for ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def seeds_error(methods: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the standard error of the sum of means over random seeds and queries, and its degrees of freedom.

    Args:
        methods: Scores [seeds, queries] of one method and the negative ones of the other, or the differences of both if
            their models are the same; two seeds and queries or more.

    Example:
        >>> values = np.array([[0.5, 0.75, 0.25], [0.5, 1.0, 0.75]])
        >>> [round(number, 3) for number in seeds_error([values])]
        [0.161, 1.786]
    """
    count = methods[0].shape[1]
    of_seeds, rest = list[tuple[float, int]](), list[tuple[float, int]]()
    for scores in methods:
        seeds = len(scores)
        by_seed, by_query = scores.mean(1, keepdims=True), scores.mean(0, keepdims=True)
        freedom = (seeds - 1) * (count - 1)
        interaction = ((scores - by_seed - by_query + scores.mean()) ** 2).sum() / freedom
        of_seeds.append((float(by_seed.var(ddof=1)) / seeds, seeds - 1))
        rest.append((-float(interaction) / scores.size, freedom))
    between = np.sum([scores.mean(0) for scores in methods], axis=0)
    of_queries = [(float(between.var(ddof=1)) / count, count - 1)]
    # Where the interaction exceeds a part, that component counts for nothing and the other part remains.
    square, freedom = max(map(sum_of_squares, ([*of_seeds, *of_queries, *rest], of_seeds, of_queries)))
    scale = max(float(np.abs(scores).max()) for scores in methods)
    return (math.sqrt(square), freedom) if square > (1e-12 * scale) ** 2 else (0.0, float(count - 1))


def sum_of_squares(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the sum of squared standard errors with their degrees of freedom, and Satterthwaite's degrees of freedom.

    Example:
        >>> sum_of_squares([(0.5, 2), (0.5, 2)])
        (1.0, 4.0)
    """
    total = math.fsum(square for square, _ in parts)
    divisor = math.fsum(square**2 / freedom for square, freedom in parts)
    return total, total**2 / divisor if divisor else math.inf


def correlation_values(gold: ArrayLike, scores: ArrayLike, *, pearson: bool = False) -> np.ndarray:
    """Return the correlation of scores with gold scores plus the influence of each pair on it: [pairs].

    Args:
        gold, scores: Both scores of each pair [pairs], neither of them all equal.
        pearson: Of Pearson's correlation instead of Spearman's.

    Example:
        >>> round(float(correlation_values([1, 2, 3, 4], [1, 3, 2, 4]).mean()), 3)
        0.8
    """
    columns = [np.asarray(column, dtype=np.float64) for column in (gold, scores)]
    if pearson:
        first, second = ((column - column.mean()) / column.std() for column in columns)
        correlation = (first * second).mean()
        return correlation + first * second - correlation * (first**2 + second**2) / 2
    # Spearman's correlation is Pearson's of the shares of pairs below, equal ones counted half. A pair has influence by its
    # own shares and by those of the pairs above it.
    first, second = (_shares(column) - 0.5 for column in columns)
    influences = []
    for one, other in ((first, second), (first, first), (second, second)):
        above = _mean_above(one, other) + _mean_above(other, one)
        influences.append(one * other + above - 3 * (one * other).mean())
    product, *squares = influences
    variances = (first**2).mean(), (second**2).mean()
    correlation = (first * second).mean() / math.sqrt(variances[0] * variances[1])
    relative = sum(square / variance for square, variance in zip(squares, variances))
    return correlation + product / math.sqrt(variances[0] * variances[1]) - correlation * relative / 2


def _shares(column: np.ndarray) -> np.ndarray:
    """Return the share of the values below each value; equal values count half."""
    from scipy.stats import rankdata

    return (rankdata(column) - 0.5) / len(column)


def _mean_above(column: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return, for each value of a column, the sum of the weights of larger values over the number of all values.

    Weights of equal values count half.
    """
    values, at = np.unique(column, return_inverse=True)
    sums = np.bincount(at, weights, len(values))
    above = sums.sum() - np.cumsum(sums)
    return ((above + sums / 2) / len(column))[at]
