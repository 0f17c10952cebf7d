"""Fit small sizes of any encoder in minutes, from texts without labels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import as_flag_values, check_least, flag
from starbucks_retrieval.data.sources import store_collections
from starbucks_retrieval.devices import BATCH_TOKENS_HELP
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.models.config import SettingFlags

if TYPE_CHECKING:
    from starbucks_retrieval.fit.api import fit

__all__ = ["FitArguments", "fit"]

__getattr__, __dir__ = lazy_exports(__name__, {"fit": ".api"})


@dataclasses.dataclass
class FitArguments(SettingFlags):
    """Fitting.

    The fields are the flags of `starbucks fit`; its help says what each of them means.

    Raises:
        UserError: There are no texts, or a value is out of range.
    """

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    output_dir: str = flag("", "folder for the fitted model", required=True)
    dataset_path: list[str] = flag(
        help="passages: corpora, .txt files with one text a line, or data sets of the hub", factory=list
    )
    query_path: list[str] = flag(help="queries: files like queries.jsonl, or BEIR folders", factory=list)
    query_split: str | None = flag(
        None, "of BEIR folders: only the queries that this split judges, such as train", rare=True
    )

    layers: str | None = flag(None, "layers to fit, such as 0,2,4; 0 is a table of tokens (default: all)")
    concat_layers: bool = flag(
        False,
        "fit each layer from all layers up to it: a little better at deep layers, cannot be exported as a folder",
        rare=True,
    )
    table_input: bool = flag(
        True,
        "fit each layer from its own output and that of the table of tokens; without it, layers below the last are less "
        "good, but can be exported to sentence-transformers",
        rare=True,
    )
    sizes: str | None = flag(None, "the sizes that the model stores (default: recommended from the measured grid)")
    max_texts: int | None = flag(
        None, "texts to read, an equal number from each source (default: what takes about two minutes)"
    )

    dtype: Literal["auto", "fp32", "bf16", "fp16"] = flag(
        "fp32", "precision of the forward pass; auto: bf16 where this device computes it fast"
    )
    max_tokens_per_batch: int | None = flag(None, BATCH_TOKENS_HELP, rare=True)
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    overwrite_output_dir: bool = flag(False, "replace an earlier fit in the output folder")

    def __post_init__(self) -> None:
        as_flag_values(self)
        store_collections(self)
        if not self.dataset_path and not self.query_path:
            raise UserError("no texts to fit on", "name a corpus with --dataset_path, or queries with --query_path")
        check_least(self, "max_texts", "max_tokens_per_batch")
        self.chosen_layers()

    def chosen_layers(self) -> list[int] | None:
        """Return the layers of `--layers`, ascending, or None for all. Raises UserError for other text."""
        if self.layers is None:
            return None
        words = [word.strip() for word in self.layers.split(",")]
        if not all(word.isascii() and word.isdigit() for word in words):
            raise UserError(f"cannot read --layers {self.layers}", "write numbers from 0: 0,2,4")
        return sorted({int(word) for word in words})
