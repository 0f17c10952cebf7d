"""The flags of `search --plan`, and which sizes they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes


@dataclass
class PlanArguments:
    """Planning"""

    plan: bool = flag(False, "search nothing: print bytes and estimated milliseconds a query, at --sizes and --depth")
    passages: float | None = flag(None, "--plan: how many, such as 1e9 (default: those of --passage_reps)")
    plan_batch: int | None = flag(None, "--plan: queries at once (default: shown for 1 and for 64)")
    store_dtype: Literal["float16", "float32"] = flag("float16", "--plan: type of the stored vectors")

    def __post_init__(self) -> None:
        if self.passages is not None and not 1 <= self.passages < math.inf:
            raise UserError(f"--passages {self.passages:g} is not a number of passages", "give 1 or more, such as 1e9")
        if self.plan_batch is not None and self.plan_batch < 1:
            raise UserError(
                f"--plan_batch {self.plan_batch} is below 1", "give the queries searched at once, such as 64"
            )

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of queries at once that are shown."""
        return (1, 64) if self.plan_batch is None else (self.plan_batch,)


def model_sizes(text: str | None, passage_reps: str | None = None, model_name_or_path: str | None = None) -> Sizes:
    """The sizes to plan for: `2:32,12:768`, or `all` (the default) of what is stored or of what a model stores.

    Raises UserError for what cannot be read, and for `all` or a cup name when neither is given.
    """
    try:
        return Sizes.parse(text or "all")
    except UserError as error:
        if not passage_reps and not model_name_or_path:
            hint = "spell the sizes, such as 2:32,6:128,12:768, or give --passage_reps or --model_name_or_path"
            raise UserError(error.what, hint) from None
    return Sizes.parse(text or "all", _stored(passage_reps) if passage_reps else _of_model(model_name_or_path or ""))


def _stored(passage_reps: str) -> Sizes:
    from starbucks_retrieval.search.funnel.passage_slice import stored_sizes

    return Sizes(stored_sizes(passage_reps))


def _of_model(name_or_path: str) -> Sizes:
    from transformers import AutoConfig

    from starbucks_retrieval.models.config import find_config
    from starbucks_retrieval.models.loading import explain_load_errors

    with explain_load_errors(name_or_path):
        shape = AutoConfig.from_pretrained(name_or_path)
    layers, width = int(shape.num_hidden_layers), int(shape.hidden_size)
    return find_config(name_or_path, layers, width).sizes or Sizes([Size(layers, width)])
