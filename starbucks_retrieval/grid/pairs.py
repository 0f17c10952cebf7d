"""The same grid for semantic textual similarity, by the stage that measures it."""

from __future__ import annotations

import dataclasses
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid.arguments import EncodingArguments, GridArguments
from starbucks_retrieval.results import Results
from starbucks_retrieval.sts import StsArguments, sts

_RETRIEVAL = ("dataset_path", "queries", "qrels", "depth", "asymmetric", "remove_identical_ids", "measure_cost")
_SHARED = ("pooling", "normalize", "override", "dtype", "max_tokens_per_batch", "device")


def grid_of_pairs(asked: GridArguments, encoding: EncodingArguments | None = None) -> Results:
    """Measure every (layer, dim) on sets of scored pairs, and write the result file.

    Raises UserError for flags of retrieval, and as `sts`.
    """
    defaults = GridArguments()
    for name in _RETRIEVAL:
        if getattr(asked, name) != getattr(defaults, name):
            raise UserError(f"--{name} belongs to --task retrieval", "leave it out; --data names sets of scored pairs")
    if not asked.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "name the model to measure")
    if asked.measure_text not in ("spearman", "pearson"):
        raise UserError(f"--measures {asked.measure_text} is no correlation", "take spearman or pearson")
    given = dataclasses.asdict(encoding or EncodingArguments())
    options: dict[str, Any] = {name: given[name] for name in _SHARED}
    if asked.data:
        options["data"] = asked.data
    return sts(
        StsArguments(
            model_name_or_path=asked.model_name_or_path,
            grid=True,
            layers=asked.layers,
            dims=asked.dims,
            label=asked.label,
            measure="pearson" if asked.measure_text == "pearson" else "spearman",
            output=str(asked.target),
            **options,
        )
    )
