"""fit(): fit projections of a model on texts, and write it as a model folder with the sizes that serve best."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer, write_json
from starbucks_retrieval.fit.arguments import FitArguments
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.fitter import FitReport, Fitter
from starbucks_retrieval.models.fitting import unit
from starbucks_retrieval.models.loading import copy_weights
from starbucks_retrieval.models.precision import autocast_dtype
from starbucks_retrieval.models.texts import TextSource, mixed, open_sources, quotas, token_rows
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

RECORD = "fit.json"
CHECKPOINT = "fit-checkpoint.safetensors"
_CHUNK = 1024  # texts whose embeddings are held at once
_CHECKPOINT_EVERY = 4  # chunks
_SECONDS = 120.0  # that the default number of texts takes
_PROBE = 128  # texts whose speed is measured
# Flags that do not change the result, or only where it is written.
_NOT_RECORDED = ("output_dir", "overwrite_output_dir", "device", "max_texts")


def fit(arguments: FitArguments) -> dict[str, Any]:
    """Fit the projections of a model on texts without labels, and write the model with them.

    The texts are read once. A rerun of the same command continues from the last checkpoint and gives the same bytes.

    Args:
        arguments: The flags of `starbucks fit`.

    Returns:
        Figures: output, sizes, texts, held_out, seconds, texts_per_second, ridges, half_agreement, and `grid`, a list of
        {"size", "cosine_before", "cosine", "top10_before", "top10"} for every layer and dim.

    Raises:
        UserError: The model or the texts cannot be read, there are too few texts, or the output folder holds another
            job.

    Example:
        >>> fit(FitArguments("my-model", "my-model-fitted", dataset_path=["corpus.jsonl"]))  # doctest: +SKIP
    """
    began = now()
    output = Path(arguments.output_dir)
    check_output(output, arguments)
    encoder = NestedEncoder.from_pretrained(arguments.model_name_or_path, device=arguments.device)
    config = dataclasses.replace(
        arguments.configured(encoder.config), projected_layers=(), sizes=None, passage_layers=()
    )
    encoder.config, encoder.projections = config, None
    sources = open_sources(arguments.dataset_path, arguments.query_path, config, arguments.query_split)
    if arguments.sizes:
        Sizes.parse(arguments.sizes)
    fitter = Fitter(encoder, arguments.chosen_layers(), arguments.concat_layers)
    probe = [text for text, _ in itertools.islice(mixed(sources, [None] * len(sources)), _PROBE)]
    agreement, baseline = half_agreement(encoder, probe)
    if agreement < baseline:
        log.warning(
            "the full embedding of this model finds the other half of a text for %.0f %% of the texts, the mean of its "
            "token vectors for %.0f %%: small sizes can be no better; train the model first (starbucks train)",
            *(100 * agreement, 100 * baseline),
        )
    job = {"settings": _settings(arguments), "model": encoder.backbone_fingerprint(encoder.num_layers)}
    state = _load_checkpoint(output, job)
    total = state.max_texts if state else (arguments.max_texts or _affordable(encoder, arguments, sources))
    shares = quotas([source.count for source in sources], total)
    done = 0
    if state:
        fitter.load_state(state.arrays)
        done = fitter.seen
        log.info("continuing after %d texts", done)
    output.mkdir(parents=True, exist_ok=True)
    texts = itertools.islice(mixed(sources, shares), done, None)
    expected = sum(share or 0 for share in shares)
    chunks = list_chunks(texts, _CHUNK)
    for number, chunk in enumerate(progress(chunks, -(-(expected - done) // _CHUNK), "chunks", "fitting"), 1):
        fitter.add(token_rows(encoder, chunk), _max_tokens(encoder, arguments), _autocast(encoder, arguments))
        if number % _CHECKPOINT_EVERY == 0:
            _save_checkpoint(output, job, total, fitter)
    projections, report = fitter.finish()
    encoder.projections = projections
    encoder.config = dataclasses.replace(config, projected_layers=projections.layers)
    sizes = encoder.check(
        Sizes.parse(arguments.sizes, report.recommended()) if arguments.sizes else report.recommended()
    )
    encoder.config = dataclasses.replace(encoder.config, sizes=sizes)
    seconds = seconds_since(began)
    figures: dict[str, Any] = {
        "output": str(output),
        "sizes": [str(size) for size in sizes],
        "texts": report.texts,
        "held_out": report.held_out,
        "sources": {source.name: share for source, share in zip(sources, shares)},
        "half_agreement": {"full": round(agreement, 4), "token_means": round(baseline, 4)},
        "ridges": {str(layer): ridge for layer, ridge in report.ridges.items()},
        "grid": grid_cells(report),
        "seconds": round(seconds, 3),
        "texts_per_second": round((fitter.seen - done) / seconds, 1),
    }
    _write_model(output, encoder, arguments, figures)
    return figures


def check_output(output: Path, arguments: FitArguments) -> None:
    """Check that the output folder may be written. Raises UserError if it holds anything else than this fit."""
    model = Path(arguments.model_name_or_path)
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, a folder is needed", "name another --output_dir")
    if model.exists() and output.exists() and output.resolve() == model.resolve():
        raise UserError(f"{output} is the model that is to be fitted", "name another --output_dir")
    if not output.is_dir() or not any(output.iterdir()) or (output / CHECKPOINT).is_file():
        return
    if not (output / RECORD).is_file():
        raise UserError(f"{output} is not empty, and no earlier fit wrote it", "name another --output_dir")
    if not arguments.overwrite_output_dir:
        raise UserError(f"{output} holds an earlier fit", "add --overwrite_output_dir, or name another folder")


def half_agreement(encoder: NestedEncoder, texts: Sequence[str]) -> tuple[float, float]:
    """Return how often the nearest second half of the first half of a text is its own.

    An encoder that is good at similarity finds it more often than the mean of its token vectors does, which only counts
    common words; a masked language model less often.

    Args:
        encoder: The encoder.
        texts: Those of fewer than eight words are left out.

    Returns:
        Shares from 0 to 1: by the full embedding, and by the mean of the token vectors. (1, 0) for fewer than two texts.
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
    return _own_half(encoder.embed(rows, Sizes([full]))[full]), _own_half(unit(means))


def _own_half(vectors: np.ndarray) -> float:
    count = len(vectors) // 2
    scores = vectors[:count].astype(np.float64) @ vectors[count:].T
    return float((scores.argmax(axis=1) == np.arange(count)).mean())


def list_chunks(texts: Iterator[tuple[str, bool]], size: int) -> Iterator[list[tuple[str, bool]]]:
    """Yield lists of `size` texts; the last may be shorter."""
    while chunk := list(itertools.islice(texts, size)):
        yield chunk


def grid_cells(report: FitReport) -> list[dict[str, Any]]:
    """Return the measured grid, JSON-ready."""
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


def _settings(arguments: FitArguments) -> dict[str, Any]:
    settings = dataclasses.asdict(arguments)
    return {name: value for name, value in settings.items() if name not in _NOT_RECORDED}


def _save_checkpoint(output: Path, job: dict[str, Any], max_texts: int, fitter: Fitter) -> None:
    from safetensors.numpy import save

    described = {"job": json.dumps(job, sort_keys=True), "max_texts": str(max_texts)}
    with atomic_writer(output / CHECKPOINT) as file:
        file.write(save(fitter.state(), described))


def _load_checkpoint(output: Path, job: dict[str, Any]) -> _Checkpoint | None:
    from safetensors import SafetensorError, safe_open

    path = output / CHECKPOINT
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
    if not same:
        raise UserError(
            f"{output} holds an unfinished fit with other settings or another model",
            "use the same command again, or another --output_dir",
        )
    return found


def _affordable(encoder: NestedEncoder, arguments: FitArguments, sources: Sequence[TextSource]) -> int:
    """Return the number of texts that take about two minutes here, at least ten for each number of an embedding."""
    probe = list(itertools.islice(mixed(sources, [None] * len(sources)), _PROBE))
    rows = token_rows(encoder, probe)
    measured = Fitter(encoder, arguments.chosen_layers(), arguments.concat_layers)
    began = now()
    measured.add(rows, _max_tokens(encoder, arguments), _autocast(encoder, arguments))
    each = seconds_since(began) / len(probe)
    found = max(10 * encoder.hidden_size, round(_SECONDS / each, -3))
    log.info("--max_texts %d: about two minutes at %.0f texts/s; more texts fit a little better", found, 1 / each)
    return int(found)


def _max_tokens(encoder: NestedEncoder, arguments: FitArguments) -> int:
    return arguments.max_tokens_per_batch or (65536 if encoder.device.type == "cuda" else 4096)


def _autocast(encoder: NestedEncoder, arguments: FitArguments) -> Any:
    return autocast_dtype(arguments.dtype, encoder.device)


def _write_model(output: Path, encoder: NestedEncoder, arguments: FitArguments, figures: dict[str, Any]) -> None:
    from starbucks_retrieval.fit.card import write_card

    copy_weights(arguments.model_name_or_path, output)
    encoder.backbone.config.save_pretrained(output)
    encoder.tokenizer.save_pretrained(output)
    assert encoder.projections is not None
    encoder.projections.save(output)
    encoder.config.save(output)
    write_card(output, encoder, arguments, figures)
    kept = {name: value for name, value in figures.items() if name not in ("output", "seconds", "texts_per_second")}
    write_json(output / RECORD, describe(_settings(arguments)) | kept)
    (output / CHECKPOINT).unlink(missing_ok=True)
