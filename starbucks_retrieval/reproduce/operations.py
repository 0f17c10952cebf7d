"""Floating-point operations of jobs, from their layers, the number of their texts and the tokens of these."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import join_text, open_corpus
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.reproduce.jobs import LIBRARY, Job
from starbucks_retrieval.reproduce.schema import Scale
from starbucks_retrieval.sizes import Sizes

GPU_DIM = 768  # width of the backbones of a scale that needs GPUs
QUERIES = 4000  # of a set that is searched
_SHORT = 24  # tokens of a query or a sentence, where they cannot be counted
# Forward passes that a step of a training takes: three in theory, and on CPUs with all that is no matrix product, the
# optimiser and checkpoints 3.8 (float32) to 5.8 (bf16), measured on 2026-11-23 with batches of 16 pairs.
_GPU_PASSES, _CPU_PASSES = 3.0, 4.5
_STEPS = 1000  # of a training whose length is not known
_SAMPLE = 200  # texts whose tokens are counted


def _short(scale: Scale) -> int:
    """Return the tokens of a query or a sentence of a pair."""
    return min(_SHORT, scale.tokens)


def forward(scale: Scale, layers: int) -> float:
    """Return the operations of a forward pass for a token: two a weight."""
    return 2.0 * 12 * layers * scale.full.dim**2


def operations(job: Job, scale: Scale) -> float:
    """Return the floating-point operations of a job: two a weight and token in each forward pass, more in a training."""
    return _OPERATIONS.get(job.stage, _none)(job, scale)


def _of_training(job: Job, scale: Scale) -> float:
    flags = job.flags
    task = "pretrain" if job.stage == "pretrain" else "sts" if "sts" in str(flags.get("preset")) else "retrieval"
    steps = int(flags.get("max_steps") or scale.steps.get(task, _STEPS))
    # Queries of a step, and texts of each: the query and its passages.
    default, group = {"pretrain": (512, 1), "retrieval": (128, 9), "sts": (128, 3)}[task]
    if "train_group_size" in flags:
        group = 1 + int(flags["train_group_size"])
    batch = int(flags.get("per_device_train_batch_size") or default)
    if task == "pretrain":
        tokens = int(flags.get("max_length") or 512)
    else:
        passage = scale.tokens if task == "retrieval" else _short(scale)
        tokens = _short(scale) + (group - 1) * passage
    passes = _GPU_PASSES if scale.full.dim >= GPU_DIM else _CPU_PASSES
    return passes * forward(scale, _layers(job, scale)) * steps * batch * tokens


def _of_library(job: Job, scale: Scale) -> float:
    return operations(job.flags["as_long_as"], scale) if "as_long_as" in job.flags else 0.0


def _of_search(job: Job, scale: Scale) -> float:
    dims = sum(size.dim for size in Sizes.parse(str(job.flags["sizes"])))
    return 2.0 * dims * QUERIES * texts_of(job.flags["passage_reps"], scale)


def _of_embeddings(job: Job, scale: Scale) -> float:
    return forward(scale, _layers(job, scale)) * texts_of(job, scale) * _tokens(job, scale)


def _none(job: Job, scale: Scale) -> float:
    return 0.0


_OPERATIONS: dict[str, Callable[[Job, Scale], float]] = {
    "pretrain": _of_training,
    "train": _of_training,
    LIBRARY: _of_library,
    "search": _of_search,
    **dict.fromkeys(("fit", "grid", "encode", "sts"), _of_embeddings),
}


def _layers(job: Job, scale: Scale) -> int:
    """Return the layers that a job computes."""
    return max(map(int, job.flags["layers"].split(","))) if "layers" in job.flags else scale.full.layer


def _tokens(job: Job, scale: Scale) -> float:
    """Return the mean tokens of a passage or a sentence: of some of them where they can be read here, else assumed."""
    pairs = "data" in job.flags
    assumed = _short(scale) if pairs else scale.tokens
    local = [
        str(word) for word in words_of(job.flags.get("data" if pairs else "dataset_path")) if Path(str(word)).exists()
    ]
    backbone = _backbone(job)
    if not local or backbone is None or not scale.child or scale.full.dim >= GPU_DIM:
        return assumed
    limit = job.flags.get("passage_max_len") or job.flags.get("max_length")
    return _mean_tokens(backbone, local[0], limit, pairs) or assumed


def _backbone(job: Job) -> str | None:
    """Return the folder or hub name of the backbone that a job, or those before it, begins with."""
    model = job.flags.get("model_name_or_path")
    return _backbone(model) if isinstance(model, Job) else model


@cache
def _mean_tokens(backbone: str, path: str, limit: int | None, pairs: bool) -> float | None:
    """Return the mean tokens of the first passages of a collection, or of sentences of pairs; None where they cannot be read."""
    from starbucks_retrieval.models.info import model_info
    from starbucks_retrieval.sentences.tasks import open_pair_sets

    try:
        model = model_info(backbone)
        if pairs:
            # From all parts of the set: they differ in length.
            texts = [text for side in open_pair_sets([path])[0].sentences for text in side[:: 1 + len(side) // _SAMPLE]]
        else:
            texts = [join_text(passage) for passage in itertools.islice(open_corpus(path), _SAMPLE)]
    except UserError:  # the job tells
        return None
    longest = min(limit or model.config.passage_max_len or model.token_limit, model.token_limit)
    return model.mean_tokens(texts, longest) if texts else None


def texts_of(job: Job, scale: Scale) -> int:
    """Return how many texts a job embeds: those of its set, else of its flags."""
    named = [str(word) for key in ("dataset_path", "data") for word in words_of(job.flags.get(key))]
    for one in scale.sets.values():
        if any(fnmatch(word, f"*{one.path.removeprefix('./')}") for word in named):
            return one.texts or 100
    return int(job.flags.get("max_texts") or 5000)


def words_of(value: Any) -> list[Any]:
    """Return the words of a flag: none, one or several."""
    return value if isinstance(value, list) else [] if value is None else [value]
