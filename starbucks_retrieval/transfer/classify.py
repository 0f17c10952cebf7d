"""Logistic regression as SentEval uses it: the strength of its regularisation is chosen on training texts alone.

Source: SentEval (arXiv 1803.05449) and its code. Accuracy under cross-validation is over all texts at once, where that
code averages the folds' accuracies, which are of nearly equal size.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError

# The inverse strengths that SentEval tries: with the first it cross-validates and validates, with the second it chooses
# by folds for a test set.
STRENGTHS = tuple(2.0**power for power in range(-2, 4))
STRENGTHS_FOR_TEST = tuple(2.0**power for power in range(-1, 6))
_ITERATIONS = 1000


def cross_validate(features: np.ndarray, targets: np.ndarray, folds: int, seed: int, jobs: int = 1) -> np.ndarray:
    """The class [texts] told for each text by a classifier that was trained on the other folds' texts.

    features [texts, numbers], targets [texts]. The strength is chosen in each fold anew, by as many folds of its
    training texts. Raises UserError where a class has fewer texts than folds.
    """
    from joblib import Parallel, delayed

    _check(targets, folds)
    found = np.empty_like(targets)
    parts = list(_folds(folds, seed).split(features, targets))
    told = Parallel(n_jobs=jobs)(
        delayed(_choose_and_tell)(features, targets, train, test, STRENGTHS, folds, seed) for train, test in parts
    )
    for (_, test), classes in zip(parts, told):
        found[test] = classes
    return found


def train_and_test(
    features: np.ndarray,
    targets: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray,
    test: np.ndarray,
    folds: int,
    seed: int,
) -> np.ndarray:
    """The class [test] told for each text of `test` by a classifier trained on `train`, all positions of texts.

    The strength is chosen by the accuracy on `dev`, or by folds of `train` if there are no such texts.
    """
    if len(dev):
        scores = _scores(features, targets, train, dev, STRENGTHS)
        return _fit(features[train], targets[train], STRENGTHS[int(np.argmax(scores))]).predict(features[test])
    _check(targets[train], folds)
    return _choose_and_tell(features, targets, train, test, STRENGTHS_FOR_TEST, folds, seed)


def _choose_and_tell(
    features: np.ndarray,
    targets: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    strengths: Sequence[float],
    folds: int,
    seed: int,
) -> np.ndarray:
    smallest = int(np.bincount(targets[train])[np.unique(targets[train])].min())
    inner = _folds(max(2, min(folds, smallest)), seed).split(features[train], targets[train])
    scores = [_scores(features, targets, train[some], train[others], strengths) for some, others in inner]
    best = strengths[int(np.argmax(np.mean(scores, axis=0)))]
    return _fit(features[train], targets[train], best).predict(features[test])


def _scores(
    features: np.ndarray, targets: np.ndarray, train: np.ndarray, test: np.ndarray, strengths: Sequence[float]
) -> list[float]:
    """Accuracy on `test` under each strength; every fit starts from the last one's weights."""
    model = _model(strengths[0], warm_start=True)
    return [
        float(
            _quiet_fit(model.set_params(C=strength), features[train], targets[train]).score(
                features[test], targets[test]
            )
        )
        for strength in strengths
    ]


def _fit(features: np.ndarray, targets: np.ndarray, strength: float) -> Any:
    return _quiet_fit(_model(strength), features, targets)


def _quiet_fit(model: Any, features: np.ndarray, targets: np.ndarray) -> Any:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Classes that can be told apart perfectly have no finite optimum; the last step tells them apart, too.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, targets)


def _model(strength: float, **options: Any) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=_ITERATIONS, **options)


def _folds(folds: int, seed: int) -> Any:
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(folds, shuffle=True, random_state=seed)


def _check(targets: np.ndarray, folds: int) -> None:
    counts = np.bincount(targets)
    smallest = int(counts[counts > 0].min())
    if smallest < folds:
        raise UserError(f"a class has {smallest} texts to train on, too few for {folds} folds", "lower --folds")


def need_sklearn() -> None:
    """Raise UserError unless scikit-learn is there."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise UserError("the package scikit-learn is not installed", "pip install scikit-learn") from None
