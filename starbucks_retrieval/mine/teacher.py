"""Teachers that score queries against passages: cross-encoders and bi-encoders."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.dense import BiEncoder
from starbucks_retrieval.models import precision
from starbucks_retrieval.models.architectures import token_limit
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.loading import explain_load_errors, quiet_transformers

log = logging.getLogger(__name__)

_MAX_LEN = 512  # tokens of a pair, if neither the flag nor the model sets a lower limit


class Teacher(Protocol):
    """A model that scores pairs of query and passage; its scores are logits of a softmax over a group."""

    @property
    def kind(self) -> str:
        """cross-encoder or bi-encoder."""
        ...

    def score(self, pairs: Sequence[tuple[str, Passage]], label: str) -> np.ndarray:
        """Score pairs of query and passage.

        Args:
            pairs: (query, passage) each.
            label: Names the progress bar.

        Returns:
            (pairs,) float32.
        """
        ...


class CrossEncoder:
    """A Hugging Face sequence classifier with one label, whose logit is the score.

    Args:
        name_or_path: Model folder or hub name.
        config: The model's Hugging Face configuration.
        arguments: Flags for lengths, device, precision and batch size.

    Raises:
        UserError: The model has another number of labels, incomplete weights or no tokenizer, or the length is out of
            its range.
    """

    kind = "cross-encoder"

    def __init__(self, name_or_path: str, config: Any, arguments: MineArguments) -> None:
        if config.num_labels != 1:
            raise UserError(
                f"{name_or_path} is a classifier of {config.num_labels} labels, a teacher needs 1",
                "take a cross-encoder that gives one relevance score",
            )
        self.device = resolve_device(arguments.device)
        weights = precision.weights_dtype(arguments.weights_dtype, arguments.dtype, self.device)
        self.tokenizer, self.model = _load_classifier(name_or_path, config, weights)
        self.model.eval().to(self.device)
        self.dtype = precision.autocast_dtype(arguments.dtype, self.device, weights)
        self.budget = arguments.token_budget(self.device.type)
        limit = token_limit(self.model.config, self.tokenizer)
        self.max_len = arguments.teacher_max_len or min(_MAX_LEN, limit)
        self._special = self.tokenizer.num_special_tokens_to_add(pair=True)
        if not self._special + 2 <= self.max_len <= limit:
            raise UserError(
                f"--teacher_max_len {self.max_len} is outside this model's range",
                f"take {self._special + 2} to {limit} tokens",
            )
        known = {*inspect.signature(self.model.forward).parameters} & {*self.tokenizer.model_input_names}
        self._inputs = ["input_ids", "token_type_ids"] if "token_type_ids" in known else ["input_ids"]
        self._warned = False

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[str, Passage]], label: str) -> np.ndarray:
        """Return the logit of each pair.

        Title and text of a passage are joined by a space and truncated to the length that the query leaves.

        Args:
            pairs: (query, passage) each.
            label: Names the progress bar.

        Returns:
            (pairs,) float32.
        """
        rows = self._tokenize([query for query, _ in pairs], [join_text(passage) for _, passage in pairs])
        ids, types = rows["input_ids"], rows.get("token_type_ids")
        scores = np.empty(len(pairs), np.float32)
        batches = token_batches([len(row) for row in ids], self.budget)
        autocast = torch.autocast(self.device.type, self.dtype) if self.dtype else contextlib.nullcontext()
        with autocast:
            for batch in progress(batches, len(batches), "batches", label):
                inputs = pad([ids[i] for i in batch], self.tokenizer.pad_token_id, self.device)
                if types:
                    inputs["token_type_ids"] = pad([types[i] for i in batch], 0, self.device)["input_ids"]
                scores[batch] = self.model(**inputs).logits[:, 0].float().cpu().numpy()
        return scores

    def _tokenize(self, queries: list[str], passages: list[str]) -> dict[str, list[list[int]]]:
        """The lists of each model input, one per pair, truncated but not padded."""
        limit = self.max_len - self._special
        distinct = list(dict.fromkeys(queries))
        cut = self.tokenizer(distinct, add_special_tokens=False, truncation=True, max_length=limit)["input_ids"]
        # Such a query leaves no token for the passage, and tokenizers refuse to truncate to nothing: both are truncated.
        long = {query for query, tokens in zip(distinct, cut) if len(tokens) == limit}
        if long and not self._warned:
            self._warned = True
            log.warning("some queries fill the teacher's %d tokens alone; they are truncated too", self.max_len)
        rows: dict[str, list[list[int]]] = {name: [[]] * len(queries) for name in self._inputs}
        for truncation, is_long in (("only_second", False), ("longest_first", True)):
            positions = [i for i, query in enumerate(queries) if (query in long) is is_long]
            if not positions:
                continue
            texts = [queries[i] for i in positions], [passages[i] for i in positions]
            encoded = self.tokenizer(*texts, truncation=truncation, max_length=self.max_len, padding=False)
            for name in self._inputs:
                for i, row in zip(positions, encoded[name]):
                    rows[name][i] = row
        return rows


def _load_classifier(name_or_path: str, config: Any, weights: torch.dtype) -> tuple[Any, Any]:
    """Tokenizer and model. Raises UserError for missing weights or tokens."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with explain_load_errors(name_or_path), quiet_transformers():
        model, report = AutoModelForSequenceClassification.from_pretrained(
            name_or_path,
            config=config,
            dtype=weights,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report
        )
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    unread = sorted([*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    if unread:
        raise UserError(
            f"{name_or_path} lacks {len(unread)} weights of its architecture, for example {unread[0]}",
            "the checkpoint belongs to another architecture or is incomplete",
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name_or_path} has no vocabulary", "save the model again with its tokenizer")
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {name_or_path} has no padding token", "set one and save it again")
    model.config.use_cache = False
    model.config.pad_token_id = tokenizer.pad_token_id  # decoders find the last token of each pair by it
    return tokenizer, model


def load_teacher(arguments: MineArguments) -> Teacher:
    """Load the teacher: a cross-encoder if config.json names a ...ForSequenceClassification, else a bi-encoder.

    Args:
        arguments: `teacher_name_or_path`, the size or length that belongs to its kind, device, precision and batch
            size.

    Raises:
        UserError: The model cannot be a teacher, or a flag belongs to the other kind.
    """
    try:
        return _load_teacher(arguments.teacher_name_or_path or "", arguments)
    except UserError as error:
        # Model readers name the flag of the retrieval model in their hints.
        hint = error.hint.replace("--model_name_or_path", "--teacher_name_or_path")
        raise UserError(error.what, hint) from None


def _load_teacher(name: str, arguments: MineArguments) -> Teacher:
    from transformers import AutoConfig

    with explain_load_errors(name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if any(architecture.endswith("ForSequenceClassification") for architecture in config.architectures or ()):
        if arguments.teacher_size:
            raise UserError(f"{name} is a cross-encoder, which has no sizes", "leave --teacher_size out")
        log.info("the teacher is a cross-encoder: its logits are written")
        return CrossEncoder(name, config, arguments)

    if arguments.teacher_max_len:
        raise UserError(
            f"{name} is a bi-encoder, which cuts texts to the lengths stored with it", "leave --teacher_max_len out"
        )
    teacher = BiEncoder(name, arguments.teacher_embedding_size, arguments)
    settings = teacher.encoder.config
    similarity = "cosines" if settings.normalize else "inner products"
    log.info(
        "the teacher is a bi-encoder: its %s at %s / %g are written", similarity, teacher.size, settings.temperature
    )
    return teacher
