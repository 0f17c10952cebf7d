"""The options of the objective: those of its variant, then of the backbone, then of the flags."""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any, Literal

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.parsing import check_value
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.train.arguments import TrainArguments, integers
from starbucks_retrieval.yaml_text import parse_yaml

if TYPE_CHECKING:
    from starbucks_retrieval.losses.base import Options
    from starbucks_retrieval.models import EncoderConfig

Mode = Literal["kept", "fit", "random", "none"]
TEXTS_PER_DIM = 10  # texts of a fit per number of an embedding

# Flag -> the option that it sets, in every objective that has it.
_FLAGS = {
    **{
        name: name
        for name in ("temperature", "normalize", "kl_weight", "kl_temperature", "train_dim", "full_dim", "pca")
    },
    **{name: name for name in ("contrastive_weight", "angle_weight", "cosent_weight", "pair_temperature")},
    **{name: name for name in ("binary_weight", "distil_weight", "distil_temperature")},
    "loss_reduction": "reduction",
    "train_layers": "layers",
    "train_dims": "dims",
    "sub_model_sampling": "sampled",
    "score_align": "align",
    "compare_to_last_layer": "align_with_last",
    "in_batch_negatives": "in_batch",
    "passage_layers": "passage_layers",
    **{name: name for name in ("false_negative_margin", "query_negatives", "passage_negatives")},
}


# Options of every method that have no meaning without labels.
_WITH_LABELS = frozenset(
    [
        *("contrastive_weight", "angle_weight", "cosent_weight", "pair_temperature", "distil_weight"),
        *("distil_temperature", "binary_weight", "in_batch", "passage_layers"),
        *("false_negative_margin", "query_negatives", "passage_negatives"),
    ]
)


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
    if not chosen.labelled:
        known -= _WITH_LABELS
        if arguments.anchor_weight:
            changes["full_weight"] = arguments.anchor_weight
    for flag, option in _FLAGS.items():
        value = getattr(arguments, flag)
        if value is None:
            continue
        if option not in known:
            problem = f"--{flag} is not an option of --objective {arguments.objective}"
            raise UserError(problem, "drop it; train --help names the objectives of each flag")
        changes[option] = _value(flag, value, num_layers)
    if arguments.guide_model_name_or_path and arguments.false_negative_margin is None:
        changes["false_negative_margin"] = 0.0
    if own_in_batch(arguments) is not None:
        changes["in_batch"] = True  # rows of data sets that have it off say so
    if arguments.angle_weight and arguments.cosent_weight is None:
        changes.pop("cosent_weight", None)
    for word in arguments.objective_options or []:
        changes |= _other_option(word, type(chosen))
    options = dataclasses.replace(chosen, **changes)
    for weight in ("contrastive_weight", "binary_weight"):
        if scored_pairs and getattr(options, weight):
            raise UserError("scored pairs have no positives for a contrastive loss", f"set --{weight} 0")
    return options


def own_in_batch(arguments: TrainArguments) -> bool | None:
    """Return in_batch_negatives of the data sets that do not say, None if no data set says.

    Args:
        arguments: The flags of `train`.

    Returns:
        If a data set says: True unless `--in_batch_negatives` is false. If none says: None, and the objective's option
        applies to all rows.

    Raises:
        UserError: There are no data sets, or one has a bad weight or option.
    """
    if all(one.in_batch_negatives is None for one in arguments.data_sets):
        return None
    return arguments.in_batch_negatives is not False


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
    name, equals, text = word.partition("=")
    hints = typing.get_type_hints(options)
    if name not in hints or not equals:
        hint = f"write name=value; the names are {', '.join(hints)}"
        raise UserError(f"--objective_options {word}: no such option", hint)
    hint, value = hints[name], parse_yaml(text, f"--objective_options {name}", "write name=value")
    if isinstance(value, list):
        value = tuple(value)
    elif hint is float and type(value) is int:
        value = float(value)
    try:
        check_value(value, hint, name)
    except UserError:
        raise UserError(f"--objective_options {word}: {text!r} does not fit", f"it takes {hint}") from None
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
