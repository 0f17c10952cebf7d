"""The plan of a training run, made from flags, the backbone's configuration and the kind of the data.

The options of the objective come from its variant, then the backbone, then the flags.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.data import Records, open_corpus, open_groups, open_pairs
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.models.texts import TextSource, open_sources
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.mixture import DataSet
from starbucks_retrieval.train.options import TEXTS_PER_DIM, Mode, build_options
from starbucks_retrieval.train.teacher import TeacherSource, find_guide, find_teacher
from starbucks_retrieval.trainer.settings import rows_per_step

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.losses.base import Objective
    from starbucks_retrieval.models import EncoderConfig

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """Everything about a training run that is known before weights and data are read. A dry run prints it.

    Attributes:
        arguments: Flags of `train`.
        settings: Flags of transformers.
        model: The backbone's configuration.
        scored_pairs: Whether the data are scored pairs of sentences, instead of training groups.
        objective: The loss over all sizes, with its options.
        config: The configuration that the trained model stores.
        group_size: Passages per query; 0 where the data are texts alone.
        anchor_weight: Weight of the anchor that the training module adds; an objective without labels has its own.
        lengths: Tokens of a query and of a passage at most, in training.
        projections: Where the projections come from that training starts with; "none" trains without.
        teacher: Another teacher of training without labels, or None.
        guide: An encoder whose scores decide which negatives are left out, or None.
    """

    arguments: TrainArguments
    settings: TrainingArguments
    model: ModelInfo
    scored_pairs: bool
    objective: Objective
    config: EncoderConfig
    group_size: int
    anchor_weight: float
    lengths: tuple[int, int]
    projections: Mode = "none"
    teacher: TeacherSource | None = None
    guide: TeacherSource | None = None

    @property
    def output(self) -> Path:
        """The folder of the model."""
        return Path(str(self.settings.output_dir))

    @property
    def with_scores(self) -> bool:
        """Whether the training rows must have a teacher's scores."""
        return self.objective.options.distil_weight > 0

    @property
    def labelled(self) -> bool:
        """Whether the data are queries with their passages, instead of texts alone."""
        return self.objective.options.labelled

    @property
    def projection_parameters(self) -> int:
        """The number of weights of the projections."""
        hidden, layers = self.model.hidden_size, self.config.projected_layers
        return sum(hidden * (hidden + 1 if layer else int(self.model.hf_config.vocab_size)) for layer in layers)


def plan_training(arguments: TrainArguments, settings: TrainingArguments) -> TrainPlan:
    """Return the plan of a training run. No weights are read, and nothing is written.

    Args:
        arguments: Flags of `train`. Without `--train_group_size`, a group has 8 passages for retrieval, 1 for scored
            pairs, and 2 otherwise.
        settings: Flags of transformers, from `settings_of`.

    Raises:
        UserError: The flags contradict each other, the backbone or the data, or a package is missing.
    """
    model = model_info(arguments.model_name_or_path)
    labelled = _labelled(arguments)
    pairs = labelled and _has_scored_pairs(arguments)
    mode = projection_mode(arguments, model)
    model = dataclasses.replace(model, config=with_projections(model, mode))
    sizes = arguments.model_sizes(model.num_layers, model.hidden_size, model.config)
    options = build_options(arguments, model.config, model.num_layers, pairs)
    objective = LOSSES[arguments.objective].objective(sizes, Size(model.num_layers, model.hidden_size), options)
    config = arguments.encoder_config(model.config, sizes, options, model.token_limit)
    if mode != "none":
        model.check(Sizes(Size(layer, 1) for layer in objective.trained_layers))
        config = dataclasses.replace(config, projected_layers=objective.trained_layers)
    lengths = (config.query_max_len or 0, config.passage_max_len or 0)
    for length in lengths:
        check_length(length, model.token_limit)
    if not labelled:  # shorter texts teach as well and faster; the model itself keeps its lengths
        own = model.config
        config = dataclasses.replace(config, query_max_len=own.query_max_len, passage_max_len=own.passage_max_len)
    if arguments.lora and not importlib.util.find_spec("peft"):
        raise UserError("--lora needs peft", "pip install 'starbucks-retrieval[lora]'")
    group_size = arguments.train_group_size or (8 if arguments.task == "retrieval" else 1 if pairs else 2)
    group_size = group_size if labelled else 0
    anchor_weight = arguments.anchor_weight if labelled else 0.0
    teacher = find_teacher(arguments)
    if getattr(options, "full_follows", "own") == "teacher" and teacher is None:
        raise UserError(
            "full_follows=teacher needs another teacher",
            "name it with --teacher_model_name_or_path or --teacher_embeddings, or drop the option",
        )
    if not config.include_prompt:
        _check_prefixes(arguments.data_sets, config)
    guide = find_guide(arguments)
    loss = (objective, config, group_size, anchor_weight)
    return TrainPlan(arguments, settings, model, pairs, *loss, lengths, mode, teacher, guide)


def _check_prefixes(data_sets: Iterable[DataSet], config: EncoderConfig) -> None:
    """Raise UserError for a prefix of a data set whose tokens a model that leaves prompts out would not leave out."""
    for one in data_sets:
        for prefix in (one.query_prefix, one.passage_prefix):
            if prefix not in (None, "", config.query_prefix, config.passage_prefix):
                raise UserError(
                    f"{one.name} has the prefix {prefix!r}, and this model leaves its own prompts out of the mean only "
                    "(include_prompt is false)",
                    "set --query_prefix and --passage_prefix for all data sets",
                )


def projection_mode(arguments: TrainArguments, model: ModelInfo) -> Mode:
    """Return where the projections come from: `--projections`, else the model's own, else there are none.

    Training without labels fits them by default: without them a size has no part in the space that it learns.

    Args:
        arguments: The flags.
        model: The configuration of the model.
    """
    if arguments.projections is None:
        return "kept" if model.config.projected_layers else "none" if _labelled(arguments) else "fit"
    if arguments.projections == "none" and model.config.projected_layers:
        log.warning("the projections of %s are dropped: --projections none", arguments.model_name_or_path)
    return arguments.projections


def with_projections(model: ModelInfo, mode: Mode) -> EncoderConfig:
    """Return the model's configuration with the layers that projections can have.

    Args:
        model: The configuration of the model.
        mode: What `projection_mode` returned. Sizes with layer 0 are forgotten if projections are dropped.
    """
    config = model.config
    if mode == "kept":
        return config
    if mode != "none":
        return dataclasses.replace(config, projected_layers=tuple(range(model.num_layers + 1)))
    stored = None if config.sizes is not None and 0 in config.sizes.layers else config.sizes
    return dataclasses.replace(config, projected_layers=(), sizes=stored)


def _labelled(arguments: TrainArguments) -> bool:
    """Return whether the objective needs labelled data. Raises UserError for flags that do not belong to it."""
    labelled = LOSSES[arguments.objective].labelled
    arguments.check_texts(labelled)
    arguments.check_mixture(arguments.data_sets, labelled)
    if not labelled and arguments.task != "retrieval":
        raise UserError(f"--objective {arguments.objective} has no --task {arguments.task}", "drop --task")
    if not labelled and arguments.train_group_size:
        raise UserError(f"--objective {arguments.objective} has no groups of passages", "drop --train_group_size")
    return labelled


def open_collection(one: DataSet, plan: TrainPlan) -> tuple[Records, Records | None]:
    """Open a training collection.

    Args:
        one: The data set.
        plan: The plan of the run, whose flags name the split and the corpus of a data set that names none.

    Returns:
        The rows, and the corpus that they refer to, or None.
    """
    arguments = plan.arguments
    source = _source_of(one, arguments)
    if plan.scored_pairs:
        return open_pairs(one.name, **source), None
    groups = open_groups(one.name, **source)
    corpus = one.corpus_path or arguments.corpus_path or arguments.corpus_name
    if corpus:
        return groups, open_corpus(corpus)
    # A BEIR folder contains its corpus.
    return groups, open_corpus(one.name) if Path(one.name).is_dir() else None


def _source_of(one: DataSet, arguments: TrainArguments) -> dict[str, Any]:
    return {"config": arguments.dataset_config, "split": one.dataset_split or arguments.dataset_split}


def open_texts(plan: TrainPlan, config: EncoderConfig) -> list[TextSource]:
    """Open the texts of training without labels: `--dataset_path` and `--dataset_name` as passages, and `--query_path`.

    Args:
        plan: The plan of the run.
        config: Has the prefixes.

    Raises:
        UserError: No source is named, or one is missing, empty or unreadable.
    """
    arguments = plan.arguments
    queries = arguments.query_path or []
    passages = [name for name in arguments.collections if name not in queries]
    with_ids = arguments.teacher_embeddings is not None
    return open_sources(passages, queries, config, arguments.dataset_split, with_ids)


def count_texts(plan: TrainPlan) -> int | None:
    """Return how many texts are read: `--max_texts`, else what the steps and a fit need, None for all."""
    settings = plan.settings
    if plan.arguments.max_texts or settings.max_steps <= 0:
        return plan.arguments.max_texts
    fit = TEXTS_PER_DIM * plan.model.hidden_size if plan.projections == "fit" else 0
    return max(fit, texts_of_fit(plan), settings.max_steps * rows_per_step(settings))


def texts_of_fit(plan: TrainPlan) -> int:
    """Return how many texts the map of another teacher is fitted on, if there are as many; 0 without one."""
    return 0 if plan.teacher is None else TEXTS_PER_DIM * plan.teacher.width


def _has_scored_pairs(arguments: TrainArguments) -> bool:
    """Return whether the first collection holds scored pairs. Raises UserError if a similarity task has no usable rows."""
    if arguments.task != "sts":
        return False
    first = arguments.data_sets[0]
    name, source = first.name, _source_of(first, arguments)
    try:
        return any(True for _ in itertools.islice(open_pairs(name, **source), 1))
    except UserError as error:
        try:
            next(iter(open_groups(name, **source)), None)
        except UserError:
            raise error from None
        return False
