"""A model that reads query and passage together and says how well they fit."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.models import precision
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.encoder import limit_of
from starbucks_retrieval.models.loading import explained, quiet_transformers

log = logging.getLogger(__name__)
_MAX_LEN = 512  # tokens of a pair, where the flag gives none and the model admits more


class CrossEncoder:
    """A Hugging Face sequence classifier of one label, whose logit is the score.

    Raises UserError for another number of labels, incomplete weights, no tokenizer, and a length out of reach.
    """

    kind = "cross-encoder"

    def __init__(self, name_or_path: str, config: Any, arguments: MineArguments) -> None:
        """`config` is the model's Hugging Face configuration."""
        if config.num_labels != 1:
            raise UserError(
                f"{name_or_path} is a classifier of {config.num_labels} labels, a teacher has 1",
                "take a cross-encoder that gives one relevance score",
            )
        self.device = resolve_device(arguments.device)
        self.tokenizer, self.model = _load(name_or_path, config)
        self.model.eval().to(self.device)
        self.dtype = precision.choose(arguments.dtype, self.device)
        self.budget = arguments.token_budget(self.device.type)
        # It reads a configuration and a tokenizer, which every model has.
        limit = limit_of(self.model.config, self.tokenizer)
        self.max_len = arguments.teacher_max_len or min(_MAX_LEN, limit)
        self._special = self.tokenizer.num_special_tokens_to_add(pair=True)
        if not self._special + 2 <= self.max_len <= limit:
            raise UserError(
                f"--teacher_max_len {self.max_len} is out of this model's reach",
                f"take {self._special + 2} to {limit} tokens",
            )
        known = {*inspect.signature(self.model.forward).parameters} & {*self.tokenizer.model_input_names}
        self._inputs = ["input_ids", "token_type_ids"] if "token_type_ids" in known else ["input_ids"]
        self._told = False

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[str, Passage]], label: str) -> np.ndarray:
        """The logit of each pair, float32 [pairs], with progress shown under the label.

        A passage is cut to what its query leaves of the length; title and text are joined by a blank.
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
        """For each input that the model takes a list per pair, cut but not padded."""
        room = self.max_len - self._special
        distinct = list(dict.fromkeys(queries))
        cut = self.tokenizer(distinct, add_special_tokens=False, truncation=True, max_length=room)["input_ids"]
        # Next to these a passage has no room for one token, and tokenizers refuse to cut to that: both sides give way.
        long = {query for query, tokens in zip(distinct, cut) if len(tokens) == room}
        if long and not self._told:
            self._told = True
            log.warning("some queries fill the teacher's %d tokens by themselves; they are cut too", self.max_len)
        rows: dict[str, list[list[int]]] = {name: [[]] * len(queries) for name in self._inputs}
        for truncation, is_long in (("only_second", False), ("longest_first", True)):
            places = [i for i, query in enumerate(queries) if (query in long) is is_long]
            if not places:
                continue
            texts = [queries[i] for i in places], [passages[i] for i in places]
            encoded = self.tokenizer(*texts, truncation=truncation, max_length=self.max_len, padding=False)
            for name in self._inputs:
                for place, row in zip(places, encoded[name]):
                    rows[name][place] = row
        return rows


def _load(name_or_path: str, config: Any) -> tuple[Any, Any]:
    """Tokenizer, and model in float32. Raises UserError for what is missing."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with explained(name_or_path), quiet_transformers():
        model, report = AutoModelForSequenceClassification.from_pretrained(
            name_or_path,
            config=config,
            dtype=torch.float32,
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
    model.config.pad_token_id = tokenizer.pad_token_id  # by which a decoder finds the last token of each pair
    return tokenizer, model
