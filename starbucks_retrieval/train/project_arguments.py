"""Flags of `train`: those of other projects, which stand for its own, and those of objectives without labels."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from starbucks_retrieval.cli import check_least, flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

# Flags of other programs -> ours of the same meaning
_RENAMED_FLAGS = {
    "kl_divergence_weight": "kl_weight",
    "passage_to_last_layer": "fix_doc",
    "sub_layer_full_dim": "full_dim",
}


@dataclasses.dataclass(kw_only=True)
class ProjectArguments:
    """Flags of other projects."""

    layer_list: str | None = flag(None, "ielab/Starbucks: layers of the sizes, with --embedding_dim_list", rare=True)
    embedding_dim_list: str | None = flag(
        None, "ielab/Starbucks: dims of the sizes; 2DMSE-Reproduce: --train_dims", rare=True
    )
    kl_divergence_weight: float | None = flag(None, "ielab/Starbucks: --kl_weight", rare=True)
    srl_training: bool = flag(False, "ielab/Starbucks: accepted, --objective srl is the default", rare=True)
    passage_to_last_layer: bool = flag(False, "2DMSE-Reproduce: --fix_doc", rare=True)
    sub_layer_full_dim: bool = flag(False, "2DMSE-Reproduce: --full_dim", rare=True)
    warmup_ratio: float | None = flag(
        None, "Tevatron: share of the steps (transformers 5: --warmup_steps 0.1)", rare=True
    )


def map_project_flags(arguments: Any) -> None:
    """Set the flags of a `TrainArguments` that those of other projects stand for.

    Args:
        arguments: Its sizes, train_layers, train_dims, kl_weight, fix_doc and full_dim are set in place.

    Raises:
        UserError: Flags contradict each other, one of two that need each other is missing, or a list cannot be read.
    """
    if arguments.objective == "srl" and (arguments.layer_list is None) != (arguments.embedding_dim_list is None):
        raise UserError("--layer_list and --embedding_dim_list need each other", "give both, or --sizes 2:32,4:64")
    if arguments.objective == "srl" and arguments.layer_list and arguments.embedding_dim_list:
        if arguments.sizes:
            raise UserError("--sizes and --layer_list contradict each other", "give one of them")
        layers, dims = (integers(text) for text in (arguments.layer_list, arguments.embedding_dim_list))
        if len(layers) != len(dims):
            problem = f"--layer_list has {len(layers)} layers and --embedding_dim_list {len(dims)} dims"
            raise UserError(problem, "give as many of each")
        arguments.sizes = str(Sizes([Size(layer, dim) for layer, dim in zip(layers, dims)]))
        log.info("--layer_list, --embedding_dim_list: read as --sizes %s", arguments.sizes)
    elif arguments.layer_list or arguments.embedding_dim_list:
        arguments.train_layers = arguments.layer_list or arguments.train_layers
        arguments.train_dims = arguments.embedding_dim_list or arguments.train_dims
        log.info("--layer_list, --embedding_dim_list: read as --train_layers, --train_dims")
    for old, name in _RENAMED_FLAGS.items():
        value = getattr(arguments, old)
        if value is not None and value is not False:
            setattr(arguments, name, value)
            log.info("--%s: read as --%s %s", old, name, str(value).lower())


def integers(text: str) -> list[int]:
    """Read integers separated by commas. Raises UserError for any other text.

    Example:
        >>> integers("2,4,6")
        [2, 4, 6]
    """
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"cannot read the numbers in {text!r}", "write 2,4,6") from None


@dataclasses.dataclass(kw_only=True)  # TrainArguments("my-model") keeps its first argument
class TextArguments:
    """Training on texts without labels."""

    query_path: list[str] | None = flag(
        None,
        "distil: queries, as files like queries.jsonl or BEIR folders; --dataset_path then names corpora or .txt files",
    )
    max_texts: int | None = flag(
        None,
        "distil: texts to read, an equal number from each source (default: as many as --max_steps needs, else all)",
        rare=True,
    )
    teacher_model_name_or_path: str | None = flag(
        None,
        "distil: another encoder that teaches the small sizes, a folder or hub name; the full size stays as it is (default: "
        "the model's own full embedding teaches)",
    )
    teacher_embeddings: list[str] | None = flag(
        None,
        "distil: the same, from the teacher's embeddings as encode stored them, found by document id; with --query_path "
        "those of the queries too",
    )

    def check_texts(self, labelled: bool) -> None:
        """Check these flags.

        Args:
            labelled: Whether the objective trains on queries with their passages.

        Raises:
            UserError: A flag does not belong to the objective, or is out of range.
        """
        for name in ("query_path", "max_texts", "teacher_model_name_or_path", "teacher_embeddings"):
            if labelled and getattr(self, name) is not None:
                raise UserError(f"--{name} belongs to training without labels", "add --objective distil, or drop it")
        if self.teacher_model_name_or_path and self.teacher_embeddings:
            raise UserError(
                "--teacher_model_name_or_path and --teacher_embeddings contradict each other", "give one of them"
            )
        check_least(self, "max_texts")
