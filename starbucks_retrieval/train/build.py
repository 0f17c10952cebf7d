"""Build the parts of a training run from its plan: the data, the encoder, the module, and the collator."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.models.config import model_file
from starbucks_retrieval.models.fit_report import RECORD
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.train.options import own_in_batch
from starbucks_retrieval.train.plan import TrainPlan, count_texts, open_collection, open_texts, texts_of_fit
from starbucks_retrieval.trainer import START
from starbucks_retrieval.trainer.distributed import first_process

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.models.projections import Projections
    from starbucks_retrieval.train.arguments import TrainArguments
    from starbucks_retrieval.train.data import TrainingSet
    from starbucks_retrieval.train.distil import TeacherMap
    from starbucks_retrieval.train.examples import Collator, TextCollator, TextSet
    from starbucks_retrieval.train.module import Chunks, TrainingModule
    from starbucks_retrieval.train.teacher import Teacher

log = logging.getLogger(__name__)


def fit_record(plan: TrainPlan) -> dict[str, Any]:
    """Return what training.json says about the fit that the projections started from: texts, and λ of each layer.

    Args:
        plan: The plan of the run.

    Returns:
        {} without such a fit, or if the model's folder no longer has its record.
    """
    record: str | Path | None = None
    if plan.projections == "fit":
        record = plan.output / START / RECORD
    elif plan.projections == "kept":
        record = model_file(plan.arguments.model_name_or_path, RECORD)
    if record is None or not Path(record).is_file():
        return {}
    found = read_json(record)
    return {"fit": {name: found[name] for name in ("texts", "ridges") if name in found}}


@contextlib.contextmanager
def unsharded_loading(settings: TrainingArguments) -> Iterator[None]:
    """Load whole weights under ZeRO 3, which would shard each weight when it is created; its engine shards them later.

    Args:
        settings: transformers' settings. With `--deepspeed`, ZeRO 3 is set to gather whole weights when it saves.
    """
    if not settings.deepspeed:
        yield
        return
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    # Without this setting ZeRO 3 saves its shards only, and no model folder.
    zero = settings.hf_deepspeed_config.config.setdefault("zero_optimization", {})
    zero["stage3_gather_16bit_weights_on_model_save"] = True
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(settings.hf_deepspeed_config)


def load_encoder(
    plan: TrainPlan, data: TrainingSet | TextSet, resume: bool
) -> tuple[NestedEncoder, Projections | None]:
    """Load the encoder that is trained, with the projections that it starts from.

    Args:
        plan: The plan of the run.
        data: The training data, whose texts a fit needs.
        resume: Whether the run is resumed.

    Returns:
        The encoder, and the projections of the start model: those of the encoder, and without labels that of the last
        layer too, whether a size uses it or not.
    """
    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.train.projections import new_projections

    depth = None if plan.objective.depth == plan.model.num_layers else max(1, plan.objective.depth)
    if depth is not None:
        log.info("layers above %d are not loaded: no size uses them", depth)
    name, dropout = plan.arguments.model_name_or_path, plan.arguments.dropout
    encoder = NestedEncoder.from_pretrained(name, layers=depth, device="cpu", dropout=dropout)
    layers, found = plan.config.projected_layers, encoder.projections
    encoder.projections = start = None
    if plan.projections == "kept":
        assert found is not None
        encoder.projections = start = found.subset(layers)
    elif plan.projections != "none":
        fitted = layers if plan.labelled else tuple(sorted({*layers, plan.model.num_layers}))
        start = new_projections(plan, fitted, data.sample_texts, resume)
        encoder.projections = start.subset(layers)
    if set(model_layers := plan.model.config.projected_layers) - set(layers) and plan.projections == "kept":
        left = ", ".join(str(layer) for layer in model_layers if layer not in layers)
        log.info("the maps of the layers %s are dropped: no size of this run uses them", left)
    encoder.config = plan.config
    if plan.objective.depth == 0:
        for frozen in (encoder.backbone, encoder.head):  # only the token table is trained
            if frozen is not None:
                frozen.requires_grad_(False)
    return encoder, start


def load_anchor(plan: TrainPlan, encoder: NestedEncoder, start: Projections | None) -> NestedEncoder | None:
    """Load the frozen copy of the start model, None if the run has none.

    Args:
        plan: The plan of the run.
        encoder: The encoder that is trained.
        start: The projections of the start model.
    """
    from starbucks_retrieval.models import NestedEncoder

    if plan.labelled and not plan.anchor_weight > 0:
        return None
    layers = plan.objective.largest.layer if plan.labelled else None
    anchor = NestedEncoder.from_pretrained(plan.arguments.model_name_or_path, layers=layers, device="cpu")
    if plan.projections == "kept" and anchor.projections is not None and not plan.labelled:
        anchor.projections.requires_grad_(False)  # the model's own, with the last layer's whatever the sizes are
    else:
        anchor.projections = None if start is None else copy.deepcopy(start).requires_grad_(False)
    anchor.config = encoder.config
    if anchor.projections is not None:
        anchor.config = dataclasses.replace(encoder.config, projected_layers=anchor.projections.layers)
    return anchor


def teacher_map(
    plan: TrainPlan, data: TrainingSet | TextSet, teacher: Teacher, anchor: NestedEncoder, resume: bool
) -> TeacherMap:
    """Return the map of another teacher's embeddings, equal in every process.

    The first process fits it and keeps it in the output folder, so that a resumed run goes on with the same bits.

    Args:
        plan: The plan of the run.
        data: Texts.
        teacher: The teacher.
        anchor: The frozen start model.
        resume: Whether the run is resumed.

    Raises:
        UserError: There are too few texts, or the teacher's embeddings cannot be used.
    """
    from starbucks_retrieval.train.distil import TeacherMap, fit_map, map_path
    from starbucks_retrieval.train.examples import TextSet

    assert isinstance(data, TextSet)
    path = map_path(plan.output)
    texts = data

    def fit() -> None:
        for encoder in (anchor, teacher.encoder):
            if encoder is not None:
                encoder.to(plan.settings.device)
        fit_map(teacher, anchor, texts.sample(texts_of_fit(plan)), plan.lengths).save(path)

    if not (resume and path.is_file()):
        first_process(fit)
    return TeacherMap.load(path)


def training_module(
    plan: TrainPlan,
    encoder: NestedEncoder,
    anchor: NestedEncoder | None,
    teacher: tuple[Teacher, TeacherMap] | None,
    guide: Teacher | None,
) -> TrainingModule:
    """Return the module that is trained.

    Args:
        plan: The plan of the run.
        encoder: The encoder.
        anchor: The frozen start model, if the run has one.
        teacher: Another teacher and its map, if the run has one.
        guide: The guide of false negatives, if the run has one.
    """
    from starbucks_retrieval.train.distil import DistilModule
    from starbucks_retrieval.train.module import TrainingModule

    arguments, settings = plan.arguments, plan.settings
    parts = (encoder, plan.objective, chunks_of(arguments), anchor, plan.anchor_weight, arguments.negatives_x_device)
    module = TrainingModule(*parts, guide) if plan.labelled else DistilModule(*parts, teacher=teacher)
    if arguments.lora:
        from starbucks_retrieval.train.save import add_lora

        add_lora(module, arguments)
    if settings.torch_compile:
        # Layers are compiled one by one; hooks, chunks of many lengths and the loss are not compiled.
        encoder.compile_layers()
        settings.torch_compile = False
    elif settings.device.type == "cpu":
        # Without padding most steps have new shapes, and oneDNN would keep a thousand kernels, more than a gigabyte. It reads
        # this before its first product. With 64, steps of 128 texts took 14 % longer; with 256 no longer than without.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
        for model in (encoder, anchor):
            if model is not None:
                compute_without_padding(model)
    return module


def chunks_of(arguments: TrainArguments) -> Chunks:
    """Return the chunks that the flags ask for."""
    from starbucks_retrieval.train.module import Chunks

    rows = arguments.gc_q_chunk_size, arguments.gc_p_chunk_size
    return Chunks(arguments.max_tokens_per_chunk, *rows, arguments.grad_cache)


def compute_without_padding(encoder: NestedEncoder) -> None:
    """Let an encoder on a CPU compute no padding in training, where its architecture can, in place."""
    from starbucks_retrieval.models import unpadded

    if unpadded.is_supported(encoder.backbone):
        unpadded.enable(encoder.backbone)


def collator(
    plan: TrainPlan, encoder: NestedEncoder, teacher: Teacher | None, guide: Teacher | None
) -> Collator | TextCollator:
    """Return what makes token ids of a batch; arguments as of `training_module`."""
    from starbucks_retrieval.train.examples import Collator, TextCollator

    if plan.labelled:
        return Collator(encoder, plan.arguments.false_negatives == "mask", guide.inputs if guide else None)
    return TextCollator(encoder, plan.lengths, teacher.inputs if teacher else None)


def training_set(plan: TrainPlan, cache: Path) -> TrainingSet | TextSet:
    """Read the training data, once for all processes of a machine.

    Args:
        plan: The plan of the run.
        cache: The folder of the files that the processes map.

    Raises:
        UserError: The data are bad, or stored embeddings lack a text.
    """
    from starbucks_retrieval.train.data import TrainingSet
    from starbucks_retrieval.train.examples import TextSet
    from starbucks_retrieval.train.teacher import row_finder

    settings = plan.settings
    if not plan.labelled:
        with settings.main_process_first(local=True, desc="reading the texts"):
            if settings.local_process_index == 0:
                find_row = row_finder(plan.teacher) if plan.teacher and plan.teacher.stores else None
                sources = open_texts(plan, dataclasses.replace(plan.config, query_prefix="", passage_prefix=""))
                TextSet.write(sources, count_texts(plan), cache, find_row)
            return TextSet(cache, plan.config)
    config = plan.config
    affixes = (config.passage_field_separator, config.query_prefix, config.passage_prefix)
    data = TrainingSet(
        plan.group_size,
        settings.seed,
        *affixes,
        with_scores=plan.with_scores,
        in_batch=own_in_batch(plan.arguments),
        with_plain=plan.guide is not None,
    )
    with settings.main_process_first(local=True, desc="reading the training data"):
        read = settings.local_process_index == 0
        for one in plan.arguments.data_sets:
            rows, corpus = open_collection(one, plan)
            data.add(one.name, rows, corpus, cache, plan.scored_pairs, read, one)
    return data
