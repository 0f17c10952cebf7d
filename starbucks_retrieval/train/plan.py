"""The plan of a training run, made from flags, the backbone's configuration and the kind of the data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.data import Records, open_corpus, open_groups, open_pairs
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.build import build_objective, build_options
from starbucks_retrieval.train.save import require_peft

if TYPE_CHECKING:
    from starbucks_retrieval.losses.base import Objective
    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.train.dev import DevSet


@dataclass(frozen=True)
class TrainPlan:
    """Everything about a training run that is known before weights and data are read. A dry run prints it.

    Attributes:
        model: The backbone's configuration.
        scored_pairs: Whether the data are scored pairs of sentences, instead of training groups.
        objective: The loss over all sizes, with its options.
        config: The configuration that the trained model stores.
        group_size: Passages per query.
    """

    model: ModelInfo
    scored_pairs: bool
    objective: Objective
    config: EncoderConfig
    group_size: int

    @property
    def with_scores(self) -> bool:
        """Whether the training rows must have a teacher's scores."""
        return self.objective.options.distil_weight > 0


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
    sizes = arguments.model_sizes(model.num_layers, model.hidden_size, model.config.sizes)
    options = build_options(arguments, model.config, model.num_layers, pairs)
    objective = build_objective(arguments, sizes, Size(model.num_layers, model.hidden_size), options)
    config = arguments.encoder_config(model.config, sizes, options, model.token_limit)
    for length in (config.query_max_len, config.passage_max_len):
        check_length(length or 0, model.token_limit)
    if arguments.lora:
        require_peft()
    group_size = arguments.train_group_size or (8 if arguments.task == "retrieval" else 1 if pairs else 2)
    return TrainPlan(model, pairs, objective, config, group_size)


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
    from starbucks_retrieval.train.dev import DevPairs, DevRetrieval

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
