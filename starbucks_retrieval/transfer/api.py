"""transfer(): classification tasks on one model's frozen embeddings, at every size."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.transfer.arguments import TransferArguments
from starbucks_retrieval.transfer.classify import cross_validate, need_sklearn, train_and_test
from starbucks_retrieval.transfer.tasks import Task, open_tasks

if TYPE_CHECKING:
    from starbucks_retrieval.sentences.encoding import SentenceModel

log = logging.getLogger(__name__)

_PLACES = ("output", "device", "keep_texts", "label", "jobs")
_POSITIVE = "1"  # the label of paraphrases, whose F1 is reported


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
