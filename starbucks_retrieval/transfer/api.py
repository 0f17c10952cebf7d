"""Measure how well a linear classifier reads classes off frozen embeddings, at every size."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sentences import SentenceArguments
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.transfer.tasks import TASKS, Task, open_tasks

if TYPE_CHECKING:
    from starbucks_retrieval.sentences.encoding import SentenceModel

log = logging.getLogger(__name__)

_PLACES = ("output", "device", "keep_texts", "label", "jobs")
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
    folds: int = flag(10, "folds of cross-validation, and of the choice of regularisation inside each")
    jobs: int = flag(1, "classifiers trained at a time (-1: one a core)")
    output: str | None = flag(None, "JSON to write: figures and what made them")
    keep_texts: bool = flag(
        False, "write for every text whether it was told right, too, for paired tests of significance"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds < 2:
            raise UserError(f"--folds {self.folds} is below 2", "SentEval's is 10")


def transfer(arguments: TransferArguments, seed: int = 42) -> Results:
    """Accuracy of logistic regression on every task at every size; a task's texts are encoded once for all sizes.

    A single text's features are its embedding [dim]; a pair's are |u - v| and u * v [2 dim], and its tasks of classes 0
    and 1 also get the F1 of class 1. `seed` draws the folds. Raises UserError for data, models and sizes that do not
    fit, and without scikit-learn. Source: SentEval (arXiv 1803.05449).
    """
    need_sklearn()
    if arguments.output and Path(arguments.output).is_dir():
        raise UserError(f"{arguments.output} is a folder, a file is needed", "name a file with --output")
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
        "data": {task.name: _parts(task) for task in tasks},
        "provenance": describe(
            {k: v for k, v in dataclasses.asdict(arguments).items() if k not in _PLACES} | {"seed": seed}
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
        told, tested = cross_validate(features, task.targets, folds, seed, arguments.jobs), task.train
    else:
        told = train_and_test(features, task.targets, task.train, task.dev, task.test, folds, seed)
        tested = task.test
    right = told == task.targets[tested]
    values = dict(zip(map(str, tested.tolist()), right.astype(float).tolist())) if arguments.keep_texts else None
    cells = [Cell(task.name, "accuracy", size, float(right.mean()), len(right), values=values)]
    if task.seconds is not None and task.classes == ["0", _POSITIVE]:
        from sklearn.metrics import f1_score

        score = float(f1_score(task.targets[tested], told, zero_division=0))
        cells.append(Cell(task.name, "f1", size, score, len(right)))
    return cells


def _parts(task: Task) -> dict[str, object]:
    if task.cross_validated:
        return {"source": task.source, "classes": task.classes, "texts": len(task.train)}
    sizes = {"train": len(task.train), "dev": len(task.dev), "test": len(task.test)}
    return {"source": task.source, "classes": task.classes, **sizes}


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
