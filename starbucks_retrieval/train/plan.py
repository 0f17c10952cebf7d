"""The plan of a training run, made from flags, the backbone's configuration and the kind of the data.

The options of the objective come from its variant, then the backbone, then the flags.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import logging
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.data import Records, open_corpus, open_groups, open_pairs
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train.arguments import TrainArguments, integers

if TYPE_CHECKING:
    from starbucks_retrieval.losses.base import Objective, Options
    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.train.projections import Mode
    from starbucks_retrieval.train.trainer import DevSet

log = logging.getLogger(__name__)

# Flag -> the option that it sets, in every objective that has it.
_FLAGS = {
    **{
        name: name
        for name in ("temperature", "normalize", "kl_weight", "kl_temperature", "train_dim", "full_dim", "pca")
    },
    **{name: name for name in ("contrastive_weight", "angle_weight", "cosent_weight", "pair_temperature")},
    **{name: name for name in ("distil_weight", "distil_temperature")},
    "loss_reduction": "reduction",
    "train_layers": "layers",
    "train_dims": "dims",
    "sub_model_sampling": "sampled",
    "score_align": "align",
    "compare_to_last_layer": "align_with_last",
    "in_batch_negatives": "in_batch",
    "passage_layers": "passage_layers",
}


@dataclasses.dataclass(frozen=True)
class TrainPlan:
    """Everything about a training run that is known before weights and data are read. A dry run prints it.

    Attributes:
        model: The backbone's configuration.
        scored_pairs: Whether the data are scored pairs of sentences, instead of training groups.
        objective: The loss over all sizes, with its options.
        config: The configuration that the trained model stores.
        group_size: Passages per query.
        projections: Where the projections come from that training starts with; "none" trains without.
    """

    model: ModelInfo
    scored_pairs: bool
    objective: Objective
    config: EncoderConfig
    group_size: int
    projections: Mode = "none"

    @property
    def with_scores(self) -> bool:
        """Whether the training rows must have a teacher's scores."""
        return self.objective.options.distil_weight > 0

    @property
    def projection_parameters(self) -> int:
        """The number of weights of the projections."""
        hidden, layers = self.model.hidden_size, self.config.projected_layers
        return sum(hidden * (hidden + 1 if layer else int(self.model.hf_config.vocab_size)) for layer in layers)


def plan_training(arguments: TrainArguments) -> TrainPlan:
    """Return the plan of a training run. No weights are read, and nothing is written.

    Args:
        arguments: Flags of `train`. Without `--train_group_size`, a group has 8 passages for retrieval, 1 for scored
            pairs, and 2 otherwise.

    Raises:
        UserError: The flags contradict each other, the backbone or the data, or a package is missing.
    """
    model = model_info(arguments.model_name_or_path)
    pairs = _has_scored_pairs(arguments)
    mode = projection_mode(arguments, model)
    model = dataclasses.replace(model, config=with_projections(model, mode))
    sizes = arguments.model_sizes(model.num_layers, model.hidden_size, model.config)
    options = build_options(arguments, model.config, model.num_layers, pairs)
    objective = LOSSES[arguments.objective].objective(sizes, Size(model.num_layers, model.hidden_size), options)
    config = arguments.encoder_config(model.config, sizes, options, model.token_limit)
    if mode != "none":
        model.check(Sizes(Size(layer, 1) for layer in objective.trained_layers))
        config = dataclasses.replace(config, projected_layers=objective.trained_layers)
    for length in (config.query_max_len, config.passage_max_len):
        check_length(length or 0, model.token_limit)
    if arguments.lora and not importlib.util.find_spec("peft"):
        raise UserError("--lora needs peft", "pip install 'starbucks-retrieval[lora]'")
    group_size = arguments.train_group_size or (8 if arguments.task == "retrieval" else 1 if pairs else 2)
    return TrainPlan(model, pairs, objective, config, group_size, mode)


def projection_mode(arguments: TrainArguments, model: ModelInfo) -> Mode:
    """Return where the projections come from: `--projections`, else the model's own, else there are none.

    Args:
        arguments: The flags.
        model: The configuration of the model.
    """
    if arguments.projections is None:
        return "kept" if model.config.projected_layers else "none"
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


def build_options(arguments: TrainArguments, config: EncoderConfig, num_layers: int, scored_pairs: bool) -> Options:
    """Return the options of the objective.

    Args:
        arguments: The flags.
        config: The backbone's configuration.
        num_layers: Its layers.
        scored_pairs: Whether the data are scored pairs.

    Raises:
        UserError: The variant is unknown, or a flag is not an option of the objective.
    """
    from starbucks_retrieval.losses.base import Options

    variants = LOSSES[arguments.objective].variants
    name = arguments.variant or next(iter(variants))
    if name not in variants:
        raise UserError(f"--objective {arguments.objective} has no variant {name}", f"it has {', '.join(variants)}")
    chosen = variants[name]
    changes: dict[str, Any] = {}
    for field in ("temperature", "normalize"):
        # A variant that fixes its score (STS) keeps it; the others use the score of the task or of the backbone.
        if getattr(chosen, field) == getattr(Options, field):
            sts = {"temperature": 0.05, "normalize": True}
            changes[field] = sts[field] if arguments.task == "sts" else getattr(config, field)
    if scored_pairs:
        # Scored pairs have no positives; the published low-resource runs use CoSENT.
        changes |= {"contrastive_weight": 0.0}
        if not chosen.angle_weight:
            changes |= {"cosent_weight": 1.0}
    known = {field.name for field in dataclasses.fields(chosen)}
    for flag, option in _FLAGS.items():
        value = getattr(arguments, flag)
        if value is None:
            continue
        if option not in known:
            problem = f"--{flag} is not an option of --objective {arguments.objective}"
            raise UserError(problem, "drop it; train --help names the objectives of each flag")
        changes[option] = _value(flag, value, num_layers)
    if arguments.angle_weight and arguments.cosent_weight is None:
        changes.pop("cosent_weight", None)
    for word in arguments.objective_options or []:
        changes |= _other_option(word, type(chosen))
    options = dataclasses.replace(chosen, **changes)
    if scored_pairs and options.contrastive_weight:
        raise UserError("scored pairs have no positives for a contrastive loss", "set --contrastive_weight 0")
    return options


def _value(flag: str, value: Any, num_layers: int) -> Any:
    if flag == "train_layers" and value == "last":
        return ()
    if flag in ("train_layers", "train_dims"):
        return tuple(integers(value))
    if flag == "score_align":
        return "score" if value else "pca-by-side"
    if flag == "passage_layers":
        return _layer_pairs(value, num_layers)
    return value


def _other_option(word: str, options: type) -> dict[str, Any]:
    """Return `name=value` as an option with the right type. Raises UserError for an unknown name or a wrong value."""
    import yaml

    name, equals, text = word.partition("=")
    hints = typing.get_type_hints(options)
    if name not in hints or not equals:
        hint = f"write name=value; the names are {', '.join(hints)}"
        raise UserError(f"--objective_options {word}: no such option", hint)
    hint, value = hints[name], yaml.safe_load(text)
    if isinstance(value, list):
        value = tuple(value)
    elif hint is float and type(value) is int:
        value = float(value)
    kinds = typing.get_args(hint) or (hint,)
    is_literal = typing.get_origin(hint) is typing.Literal
    fits = value in kinds if is_literal else any(isinstance(value, typing.get_origin(kind) or kind) for kind in kinds)
    if not fits:
        raise UserError(f"--objective_options {word}: {text!r} does not fit", f"it takes {hint}")
    return {name: value}


def _layer_pairs(text: str, num_layers: int) -> tuple[tuple[int, int], ...]:
    """Return the (query layer, passage layer) pairs of `last` or of `2:6,4:12`."""
    if text == "last":
        return tuple((layer, num_layers) for layer in range(num_layers))
    pairs = tuple((size.layer, size.dim) for size in (Size.parse(word) for word in text.split(",")))
    deepest = max(max(pair) for pair in pairs)
    if deepest > num_layers:
        raise UserError(f"--passage_layers {text} names layer {deepest} of {num_layers}", f"use 1 to {num_layers}")
    return pairs


def open_collection(name: str, arguments: TrainArguments, scored_pairs: bool) -> tuple[Records, Records | None]:
    """Open a training collection.

    Args:
        name: A file, a folder, a short name or a name on the hub.
        arguments: The flags; they name the split and the corpus.
        scored_pairs: Read scored pairs instead of training groups.

    Returns:
        The rows, and the corpus that they refer to, or None.
    """
    source: dict[str, Any] = {"config": arguments.dataset_config, "split": arguments.dataset_split}
    if scored_pairs:
        return open_pairs(name, **source), None
    groups = open_groups(name, **source)
    corpus = arguments.corpus_path or arguments.corpus_name
    if corpus:
        return groups, open_corpus(corpus)
    # A BEIR folder contains its corpus.
    return groups, open_corpus(name) if Path(name).is_dir() else None


def open_dev_set(arguments: TrainArguments, seed: int) -> DevSet | None:
    """Read the dev set that is scored during training.

    Args:
        arguments: Flags of `train`: those that begin with `eval`, and `task`.
        seed: Seed of the sample of passages that `--eval_max_passages` asks for.

    Returns:
        The dev set: pairs for `--task sts`, else queries and passages; None if no dev set is given.

    Raises:
        UserError: It cannot be read, or does not fit `--eval_measures`.
    """
    from starbucks_retrieval.train.trainer import DevPairs, DevRetrieval

    path, split = arguments.eval_dataset_path, arguments.eval_dataset_split
    if not path:
        return None
    if arguments.task == "sts":
        if arguments.dev_measures != "spearman":
            problem = f"--eval_measures {arguments.dev_measures}: similarity is measured by spearman"
            raise UserError(problem, "drop the flag")
        return DevPairs(path, split)
    return DevRetrieval(path, split, arguments.dev_measures, arguments.eval_max_passages, seed)


def _has_scored_pairs(arguments: TrainArguments) -> bool:
    """Return whether the first collection holds scored pairs. Raises UserError if a similarity task has no usable rows."""
    if arguments.task != "sts":
        return False
    name = arguments.collections[0]
    source: dict[str, Any] = {"config": arguments.dataset_config, "split": arguments.dataset_split}
    try:
        return any(True for _ in itertools.islice(open_pairs(name, **source), 1))
    except UserError as error:
        try:
            next(iter(open_groups(name, **source)), None)
        except UserError:
            raise error from None
        return False
