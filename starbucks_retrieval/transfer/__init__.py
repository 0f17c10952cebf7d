"""Transfer tasks: classify sentences by logistic regression on frozen embeddings of every size."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError, refuse_folder
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sentences import SentenceArguments
from starbucks_retrieval.sentences.tasks import TASKS, Task, open_tasks
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from starbucks_retrieval.sentences.encoding import SentenceModel

__all__ = ["TransferArguments", "cross_validate", "train_and_test", "transfer"]
__dir__ = public_names(__name__)
log = logging.getLogger(__name__)

_NOT_RECORDED = ("output", "device", "keep_texts", "label", "jobs")
_POSITIVE = "1"  # the label of paraphrases, whose F1 is reported
# The inverse strengths that SentEval tries: with the first it cross-validates and validates, with the second it chooses
# by folds for a test set.
STRENGTHS = tuple(2.0**power for power in range(-2, 4))
STRENGTHS_FOR_TEST = tuple(2.0**power for power in range(-1, 6))
_ITERATIONS = 1000


@dataclasses.dataclass
class TransferArguments(SentenceArguments):
    """Transfer tasks."""

    data: list[str] = flag(
        help="tasks: their names, files, folders, hub names, or NAME=file", factory=lambda: list(TASKS)
    )
    folds: int = flag(10, "folds of cross-validation, and of the choice of regularisation inside each", rare=True)
    jobs: int = flag(1, "classifiers trained at a time (-1: one a core)")
    output: str | None = flag(None, "JSON to write: figures and what made them")
    keep_texts: bool = flag(
        False, "also write for every text whether it was classified correctly, for paired significance tests", rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds < 2:
            raise UserError(f"--folds {self.folds} is below 2", "SentEval's is 10")


def transfer(arguments: TransferArguments, seed: int = 42) -> Results:
    """Measure the accuracy of logistic regression on every task at every size; texts are encoded once for all sizes.

    The features of a text are its embedding [dim]; those of a pair are |u - v| and u * v [2 dim]. Tasks of pairs with
    the classes 0 and 1 also get the F1 of class 1. Source: SentEval (arXiv 1803.05449).

    Args:
        arguments: The flags of the command.
        seed: Seeds the folds.

    Returns:
        Cells task by task, sizes ascending.

    Raises:
        UserError: The data, the model or the sizes do not fit, or scikit-learn is not installed.

    Example:
        >>> results = transfer(TransferArguments("model", data=["MR"]))  # doctest: +SKIP
    """
    require_sklearn()
    refuse_folder(arguments.output)
    tasks = open_tasks(arguments.data)
    from starbucks_retrieval.sentences.encoding import SentenceModel

    model = SentenceModel(arguments)
    cells: list[Cell] = []
    for task in tasks:
        for size, features in _features(task, model).items():
            cells += _cells(task, size, features, arguments, seed)
            log.info(
                "%s at %s: %.4f", task.name, size, next(c for c in reversed(cells) if c.measure == "accuracy").value
            )
    more = {
        **model.describe(),
        "data": {task.name: _task_sizes(task) for task in tasks},
        "provenance": describe(
            {k: v for k, v in dataclasses.asdict(arguments).items() if k not in _NOT_RECORDED} | {"seed": seed}
        ),
    }
    results = Results("transfer", arguments.name, cells, more, "grid" if arguments.is_grid else "list")
    if arguments.output:
        write_results(arguments.output, results)
    return results


def _features(task: Task, model: SentenceModel) -> dict[Size, np.ndarray]:
    from starbucks_retrieval.sentences.encoding import distinct

    texts, positions = distinct([*task.texts, *(task.seconds or ())])
    vectors = model.embed(texts, model.sizes)
    first = [positions[text] for text in task.texts]
    if task.seconds is None:
        return {size: found[first] for size, found in vectors.items()}
    second = [positions[text] for text in task.seconds]
    return {
        size: np.hstack([np.abs(found[first] - found[second]), found[first] * found[second]])
        for size, found in vectors.items()
    }


def _cells(task: Task, size: Size, features: np.ndarray, arguments: TransferArguments, seed: int) -> list[Cell]:
    folds = arguments.folds
    if task.cross_validated:
        predicted, tested = cross_validate(features, task.targets, folds, seed, arguments.jobs), task.train
    else:
        predicted = train_and_test(features, task.targets, task.train, task.dev, task.test, folds, seed)
        tested = task.test
    correct = predicted == task.targets[tested]
    values = dict(zip(map(str, tested.tolist()), correct.astype(float).tolist())) if arguments.keep_texts else None
    cells = [Cell(task.name, "accuracy", size, float(correct.mean()), len(correct), values=values)]
    if task.seconds is not None and task.classes == ["0", _POSITIVE]:
        from sklearn.metrics import f1_score

        score = float(f1_score(task.targets[tested], predicted, zero_division=0))
        cells.append(Cell(task.name, "f1", size, score, len(correct)))
    return cells


def _task_sizes(task: Task) -> dict[str, object]:
    if task.cross_validated:
        return {"source": task.source, "classes": task.classes, "texts": len(task.train)}
    sizes = {"train": len(task.train), "dev": len(task.dev), "test": len(task.test)}
    return {"source": task.source, "classes": task.classes, **sizes}


def cross_validate(features: np.ndarray, targets: np.ndarray, folds: int, seed: int, jobs: int = 1) -> np.ndarray:
    """Predict the class of each text by a classifier trained on the other folds.

    The regularisation is chosen in each fold by cross-validation on its training texts. Accuracy is over all texts at
    once; SentEval's code averages the folds' accuracies, which have nearly equal sizes.

    Args:
        features: [texts, dim].
        targets: int [texts], classes.
        folds: Folds of both the outer and the inner cross-validation.
        seed: Seeds the folds.
        jobs: Classifiers trained at a time.

    Returns:
        The predicted classes, [texts].

    Raises:
        UserError: A class has fewer texts than folds.
    """
    from joblib import Parallel, delayed

    _check(targets, folds)
    predicted = np.empty_like(targets)
    splits = list(_folds(folds, seed).split(features, targets))
    by_fold = Parallel(n_jobs=jobs)(
        delayed(_choose_and_predict)(features, targets, train, test, STRENGTHS, folds, seed) for train, test in splits
    )
    for (_, test), classes in zip(splits, by_fold):
        predicted[test] = classes
    return predicted


def train_and_test(
    features: np.ndarray,
    targets: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray,
    test: np.ndarray,
    folds: int,
    seed: int,
) -> np.ndarray:
    """Predict the classes of `test` by a classifier trained on `train`.

    The regularisation is chosen by the accuracy on `dev`, or by cross-validation on `train` if `dev` is empty.

    Args:
        features: [texts, dim].
        targets: int [texts], classes.
        train: Positions of the training texts.
        dev: Positions of the validation texts, may be empty.
        test: Positions of the test texts.
        folds: Folds of the cross-validation.
        seed: Seeds the folds.

    Returns:
        The predicted classes, [test].

    Raises:
        UserError: `dev` is empty and a class has fewer training texts than folds.
    """
    if len(dev):
        scores = _scores(features, targets, train, dev, STRENGTHS)
        return _fit(features[train], targets[train], STRENGTHS[int(np.argmax(scores))]).predict(features[test])
    _check(targets[train], folds)
    return _choose_and_predict(features, targets, train, test, STRENGTHS_FOR_TEST, folds, seed)


def _choose_and_predict(
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
    scores = [_scores(features, targets, train[fit], train[validate], strengths) for fit, validate in inner]
    best = strengths[int(np.argmax(np.mean(scores, axis=0)))]
    return _fit(features[train], targets[train], best).predict(features[test])


def _scores(
    features: np.ndarray, targets: np.ndarray, train: np.ndarray, test: np.ndarray, strengths: Sequence[float]
) -> list[float]:
    """Accuracy on `test` with each strength; every fit starts from the previous weights."""
    scores, model = [], None
    for strength in strengths:
        model = _fit(features[train], targets[train], strength, model)
        scores.append(float(model.score(features[test], targets[test])))
    return scores


def _fit(features: np.ndarray, targets: np.ndarray, strength: float, start: Any = None) -> Any:
    """Return a classifier; its fit starts from the weights of `start`, which it replaces."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = start or LogisticRegression(max_iter=_ITERATIONS, warm_start=True)
    with warnings.catch_warnings():
        # Separable classes have no finite optimum; the last step separates them too.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.set_params(C=strength).fit(features, targets)


def _folds(folds: int, seed: int) -> Any:
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(folds, shuffle=True, random_state=seed)


def _check(targets: np.ndarray, folds: int) -> None:
    counts = np.bincount(targets)
    smallest = int(counts[counts > 0].min())
    if smallest < folds:
        raise UserError(f"a class has {smallest} texts to train on, too few for {folds} folds", "lower --folds")


def require_sklearn() -> None:
    """Raise UserError unless scikit-learn is installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise UserError("the package scikit-learn is not installed", "pip install scikit-learn") from None
