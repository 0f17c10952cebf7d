"""fit(): fit projections of a model on texts, and write it as a model folder with the sizes that serve best."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_path, atomic_writer, write_json
from starbucks_retrieval.fit import FitArguments
from starbucks_retrieval.fit.plan import CHECKPOINT, FitPlan, check_output, plan_fit
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.models import NestedEncoder, config, projections
from starbucks_retrieval.models.fit_report import RECORD, FitReport
from starbucks_retrieval.models.fitter import CHUNK, Fitter, chunks
from starbucks_retrieval.models.fitting import unit
from starbucks_retrieval.models.modules_json import model_file
from starbucks_retrieval.models.saving import save_tokenizer
from starbucks_retrieval.models.sentence_modules import module_files, remove_modules, save_modules
from starbucks_retrieval.models.texts import mixed, token_rows
from starbucks_retrieval.models.weight_files import copy_weights
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

_CONFIG = "config.json"
_CHECKPOINT_SECONDS = 30.0  # between two checkpoints
# Flags that do not change the result, or only where it is written.
_NOT_RECORDED = ("output_dir", "overwrite_output_dir", "device", "max_texts")


def fit(arguments: FitArguments) -> dict[str, Any]:
    """Fit the projections of a model on texts without labels, and write the model with them.

    The texts are read once. A rerun of the same command continues from the last checkpoint and gives the same bytes.

    Args:
        arguments: The flags of `starbucks fit`.

    Returns:
        Figures: output, sizes, max_texts, texts, held_out, seconds, texts_per_second, ridges, half_agreement, `sources`,
        a list of {"name", "kind", "texts"}, and `grid`, a list of {"size", "cosine_before", "cosine", "top10_before",
        "top10"} for every layer and dim.

    Raises:
        UserError: The model or the texts cannot be read, there are too few texts, the model's embeddings are constant or
            not finite, or the output folder holds another job or is being written.

    Example:
        >>> fit(FitArguments("my-model", "my-model-fitted", dataset_path=["corpus.jsonl"]))  # doctest: +SKIP
    """
    plan = plan_fit(arguments)
    with _locked(plan.output) as lock:
        check_output(plan.output, arguments)  # another process may have written it since
        return _fit(plan, lock)


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[FolderLock]:
    """Create and lock a folder; if nothing is written, it is removed again."""
    existed = output.is_dir()
    output.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(output)
    try:
        yield lock
    finally:
        lock.release()
        if not existed and not any(output.iterdir()):
            output.rmdir()


def _fit(plan: FitPlan, lock: FolderLock) -> dict[str, Any]:
    began = now()
    arguments, output = plan.arguments, plan.output
    encoder = NestedEncoder.from_pretrained(arguments.model_name_or_path, device=plan.device)
    encoder.config, encoder.projections = plan.config, None
    fitter = Fitter(encoder, plan.layers, arguments.concat_layers, arguments.table_input)
    job = {
        "settings": _settings(arguments),
        "model": encoder.backbone_fingerprint(encoder.num_layers),
        "counts": [source.count for source in plan.sources],
    }
    state = _load_checkpoint(plan, job)
    max_texts = state.max_texts if state else plan.max_texts
    shares = plan.shares(max_texts)
    plan.tell(max_texts)
    agreement, baseline = half_agreement(encoder, [text for text, _ in plan.probe])
    if agreement < baseline:
        log.warning(
            "the full embedding of this model finds the other half of a text for %.0f %% of the texts, the mean of its "
            "token vectors for %.0f %%: small sizes can be no better; train the model first (starbucks train)",
            *(100 * agreement, 100 * baseline),
        )
    if state:
        fitter.load_state(state.arrays)
        log.info("continuing after %d texts", fitter.seen)
    done, counts = fitter.seen, [0] * len(shares)
    texts = itertools.islice(mixed(plan.sources, shares, counts), done, None)
    saved = now()
    for chunk in chunks(progress(texts, sum(shares) - done, "texts", "fitting"), CHUNK):
        fitter.add(token_rows(encoder, chunk), plan.max_tokens, plan.dtype)
        if seconds_since(saved) > _CHECKPOINT_SECONDS:
            _save_checkpoint(output, job, max_texts, fitter)
            saved = now()
    encoder.projections, report = fitter.finish()
    fitted = dataclasses.replace(plan.config, projected_layers=encoder.projections.layers)
    encoder.config = dataclasses.replace(fitted, sizes=plan.sizes or report.recommended())
    seconds = seconds_since(began)
    figures: dict[str, Any] = {
        "output": str(output),
        "sizes": [str(size) for size in encoder.sizes],
        "max_texts": max_texts,
        "texts": report.texts,
        "held_out": report.held_out,
        "sources": [
            {"name": source.name, "kind": source.kind, "texts": count} for source, count in zip(plan.sources, counts)
        ],
        "half_agreement": {"full": round(agreement, 4), "token_means": round(baseline, 4)},
        "ridges": {str(layer): ridge for layer, ridge in report.ridges.items()},
        "grid": grid_cells(report),
        "seconds": round(seconds, 3),
        "texts_per_second": round((fitter.seen - done) / seconds, 1),
    }
    _save_checkpoint(output, job, max_texts, fitter)  # a rerun finishes what a kill in the next lines leaves
    _write_model(output, encoder, arguments, figures)
    lock.announce(output / RECORD)
    (output / CHECKPOINT).unlink()
    return figures


def half_agreement(encoder: NestedEncoder, texts: Sequence[str]) -> tuple[float, float]:
    """Return how often the nearest second half of the first half of a text is its own.

    An encoder that is good at similarity finds it more often than the mean of its token vectors does, which only counts
    common words; a masked language model less often.

    Args:
        encoder: The encoder.
        texts: Those of fewer than eight words are left out.

    Returns:
        Shares from 0 to 1: by the full embedding, and by the mean of the token vectors. (1, 0) for fewer than two texts.

    Raises:
        UserError: An embedding is not finite.
    """
    words = [found for text in texts if len(found := text.split()) >= 8]
    if len(words) < 2:
        return 1.0, 0.0
    halves = [" ".join(found[: len(found) // 2]) for found in words]
    halves += [" ".join(found[len(found) // 2 :]) for found in words]
    rows = encoder.tokenize(halves, encoder.max_length(False))
    full = Size(encoder.num_layers, encoder.hidden_size)
    weights = encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()
    means = np.stack([weights[row].mean(axis=0) for row in rows])
    vectors = encoder.embed(rows, Sizes([full]))[full]
    if not np.isfinite(vectors).all():
        raise UserError("the model's embeddings of these texts are not finite", "check the weights of the model")
    return _own_half(vectors), _own_half(unit(means))


def _own_half(vectors: np.ndarray) -> float:
    count = len(vectors) // 2
    scores = vectors[:count].astype(np.float64) @ vectors[count:].T
    return float((scores.argmax(axis=1) == np.arange(count)).mean())


def grid_cells(report: FitReport) -> list[dict[str, Any]]:
    """Return the measured grid, JSON-ready.

    Args:
        report: The report of the fit.

    Returns:
        For each size: size (text), cosine and top10 as in `Quality`, and cosine_before and top10_before, those of the
        model's own outputs, cut. Four decimals.
    """
    return [
        {
            "size": str(size),
            "cosine_before": round(report.before[size].cosine, 4),
            "cosine": round(found.cosine, 4),
            "top10_before": round(report.before[size].top10, 4),
            "top10": round(found.top10, 4),
        }
        for size, found in report.after.items()
    ]


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    max_texts: int
    arrays: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Files:
    files: list[str]


def _settings(arguments: FitArguments) -> dict[str, Any]:
    settings = dataclasses.asdict(arguments)
    return {name: value for name, value in settings.items() if name not in _NOT_RECORDED}


def _save_checkpoint(output: Path, job: dict[str, Any], max_texts: int, fitter: Fitter) -> None:
    from safetensors.numpy import save

    described = {"job": json.dumps(job, sort_keys=True), "max_texts": str(max_texts)}
    with atomic_writer(output / CHECKPOINT) as file:
        file.write(save(fitter.state(), described))


def _load_checkpoint(plan: FitPlan, job: dict[str, Any]) -> _Checkpoint | None:
    from safetensors import SafetensorError, safe_open

    arguments, path = plan.arguments, plan.output / CHECKPOINT
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            described = file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = _Checkpoint(int(described["max_texts"]), arrays)
            same = described["job"] == json.dumps(job, sort_keys=True)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        log.warning("%s is damaged; the fit starts over", path)
        return None
    if same and (arguments.max_texts is None or plan.max_texts == found.max_texts):
        return found
    if arguments.overwrite_output_dir:
        log.info("replacing an unfinished fit with other settings, of another model or of other texts")
        return None
    raise UserError(
        f"{plan.output} holds an unfinished fit with other settings, of another model or of other texts",
        "use the same command again, add --overwrite_output_dir, or name another folder",
    )


def _write_model(output: Path, encoder: NestedEncoder, arguments: FitArguments, figures: dict[str, Any]) -> None:
    """Write the model folder. Without config.json, which comes last, no program reads it as a model."""
    from starbucks_retrieval.fit.card import CARD, write_card

    _remove_model(output)
    weights = copy_weights(arguments.model_name_or_path, output)
    tokenizer, head = save_tokenizer(encoder.tokenizer, output), []
    if encoder.head is not None:
        head = encoder.head.save(output)
        encoder.config = dataclasses.replace(encoder.config, head=encoder.head.folders)
    assert encoder.projections is not None
    encoder.projections.save(output)
    encoder.config.save(output)
    save_modules(output, encoder, encoder.max_length(False))
    write_card(output, encoder, arguments, figures)
    kept = {name: value for name, value in figures.items() if name not in ("output", "seconds", "texts_per_second")}
    files = [*weights, *tokenizer, projections.FILE, config.FILE, *dict.fromkeys([*head, *module_files(output)]), CARD]
    write_json(output / RECORD, describe(_settings(arguments)) | kept | {"files": files})
    source = model_file(arguments.model_name_or_path, _CONFIG)
    assert source is not None  # the model was loaded from it
    with atomic_path(output / _CONFIG) as temporary:
        shutil.copyfile(source, temporary)


def _remove_model(output: Path) -> None:
    """Remove the files of an earlier fit, and those that a killed process left; config.json first."""
    (output / _CONFIG).unlink(missing_ok=True)
    remove_modules(output)
    try:
        files = read_json(output / RECORD, _Files).files
    except (OSError, UserError):  # there is no earlier fit that can be recognised
        files = []
    for name in [*files, RECORD]:
        if ".." not in Path(name).parts:
            (output / Path(name).relative_to(Path(name).anchor)).unlink(missing_ok=True)
