"""The projections that training starts from: those of the model, fitted in closed form, or random."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from starbucks_retrieval.files import write_json
from starbucks_retrieval.models.fit_report import RECORD
from starbucks_retrieval.models.layer_maps import LayerMap
from starbucks_retrieval.models.projections import FILE, Projections
from starbucks_retrieval.train.options import TEXTS_PER_DIM
from starbucks_retrieval.trainer import START
from starbucks_retrieval.trainer.distributed import first_process

if TYPE_CHECKING:
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.train.plan import TrainPlan

log = logging.getLogger(__name__)


def new_projections(
    plan: TrainPlan, layers: Sequence[int], texts: Callable[[int], Iterable[tuple[str, bool]]], resume: bool
) -> Projections:
    """Return the projections that a run starts from where the model brings none, equal in every process.

    A fit is made in the first process and kept in the output folder, so that a resumed run starts from the same bits.

    Args:
        plan: The plan of the run, whose projections are "fit" or "random".
        layers: The layers that training uses.
        texts: Called with a number, returns that many (text, whether it is a query) of the training data.
        resume: Whether the run is resumed.

    Raises:
        UserError: There are too few texts for a fit.
    """
    if plan.projections == "random":
        return random_projections(_whole(plan), layers, plan.settings.seed)
    path = plan.output / START / FILE
    if not (resume and path.is_file()):
        first_process(lambda: _fit(plan, layers, texts, path.parent))
    return Projections.load(path)


def _whole(plan: TrainPlan) -> NestedEncoder:
    """Load the encoder with all its layers and the configuration that will be trained."""
    from starbucks_retrieval.models import NestedEncoder

    encoder = NestedEncoder.from_pretrained(plan.arguments.model_name_or_path, device=plan.settings.device)
    encoder.config = plan.config
    return encoder


def _fit(
    plan: TrainPlan, layers: Sequence[int], texts: Callable[[int], Iterable[tuple[str, bool]]], folder: Path
) -> None:
    from starbucks_retrieval.models.fitter import Fitter, chunks
    from starbucks_retrieval.models.texts import token_rows

    encoder = _whole(plan)
    fitter = Fitter(encoder, {0, *layers})  # the table is an input of the maps, even if layer 0 is not trained
    for chunk in chunks(texts(TEXTS_PER_DIM * encoder.hidden_size)):
        fitter.add(token_rows(encoder, chunk, plan.lengths))
    found, report = fitter.finish()
    names = ", ".join(map(str, layers))
    log.info("projections of layers %s fitted on %d texts of the training data", names, report.texts)
    folder.mkdir(parents=True, exist_ok=True)
    found.subset(layers).save(folder)
    ridges = {str(layer): report.ridges[layer] for layer in layers if layer in report.ridges}
    write_json(folder / RECORD, {"texts": report.texts, "ridges": ridges})


def random_projections(encoder: NestedEncoder, layers: Sequence[int], seed: int) -> Projections:
    """Return random rotations of the layers' outputs, the identity at the last layer.

    Args:
        encoder: The encoder.
        layers: Its layers that get a map; 0 gets a token table: a rotation of the output of the embedding layer.
        seed: The seed.
    """
    from starbucks_retrieval.models.table_fitter import token_states, token_table

    hidden = encoder.hidden_size
    maps, table = {}, None
    for layer in layers:
        if layer == encoder.num_layers:
            maps[layer] = LayerMap(torch.eye(hidden), None, (layer,), normalize=False)
            continue
        width = hidden if layer else int(encoder.backbone.config.hidden_size)
        square = np.random.default_rng([seed, layer]).normal(size=(max(width, hidden), max(width, hidden)))
        rotation = torch.from_numpy(np.linalg.qr(square)[0]).float()
        if layer:
            maps[layer] = LayerMap(rotation, torch.zeros(hidden), (layer,), normalize=True)
            continue
        rows = token_states(encoder) @ rotation[:width, :hidden].numpy()
        table = token_table(rows, encoder.tokenizer.all_special_ids)
    fingerprints = {layer: encoder.backbone_fingerprint(layer) for layer in range(encoder.num_layers + 1)}
    found = Projections(maps, table, fingerprints, "")
    found.space = found.identity()
    return found
