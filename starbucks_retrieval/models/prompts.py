"""Leaving the tokens of prompts out of mean pooling, for models of sentence-transformers with `include_prompt=false`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import shallow_copy
from starbucks_retrieval.models.config import EncoderConfig

Encoder = TypeVar("Encoder", bound=Any)

_PROBES = ("a", "1", "東")


@dataclass(frozen=True)
class Prompt:
    """The tokens that the texts with a prompt begin with.

    Args:
        ids: The token ids that tell the texts that have the prompt, special tokens before it included.
        count: The tokens that are left out.
    """

    ids: tuple[int, ...]
    count: int


def prompt_of(tokenizer: Any, prefix: str) -> Prompt:
    """Return the tokens of a prompt.

    As in sentence-transformers, as many tokens are left out as the prompt has alone, without a special token after it.
    The last of them can be merged with the text, so that texts begin with fewer of them.

    Args:
        tokenizer: A fast tokenizer.
        prefix: The prompt.

    Raises:
        UserError: The first token of texts with this prompt depends on the text.
    """
    special = set(tokenizer.all_special_ids)
    alone = tokenizer(prefix)["input_ids"]
    if alone and alone[-1] in special:
        alone = alone[:-1]
    shared = len(alone)
    for probe in _PROBES:
        row = tokenizer(prefix + probe)["input_ids"]
        shared = min(shared, next((i for i in range(shared) if i >= len(row) or row[i] != alone[i]), shared))
    if all(token in special for token in alone[:shared]):
        raise UserError(
            f"the tokens of the prefix {prefix!r} depend on the text after it, so that they cannot be left out of the "
            "mean (include_prompt is false)",
            "end the prefix with a space or a punctuation mark",
        )
    return Prompt(tuple(alone[:shared]), len(alone))


def without_prompts(ids: Tensor, mask: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """Return a mask with 0 for the tokens of prompts.

    Args:
        ids: Token ids [batch, tokens].
        mask: 1 for tokens and 0 for padding, on either side, [batch, tokens].
        prompts: The prompts that a text may begin with.

    Example:
        >>> ids = torch.tensor([[2, 7, 8, 9], [2, 8, 9, 0]])
        >>> without_prompts(ids, (ids > 0).long(), [Prompt((2, 7), 2)]).tolist()
        [[0, 0, 1, 1], [1, 1, 1, 0]]
    """
    start = mask.argmax(dim=1, keepdim=True)
    positions = torch.arange(ids.shape[1], device=ids.device)
    left_out = torch.zeros_like(mask, dtype=torch.bool)
    for prompt in prompts:
        expected = torch.tensor(prompt.ids, device=ids.device)
        at = start + torch.arange(len(prompt.ids), device=ids.device)
        found = ids.gather(1, at.clamp(max=ids.shape[1] - 1)) == expected
        begins = (found & (at < ids.shape[1])).all(dim=1, keepdim=True)
        left_out = left_out | (begins & (positions < start + prompt.count))
    return mask * ~left_out


class Prompts:
    """The prompts of an encoder.

    Args:
        tokenizer: A fast tokenizer.
        lock: Held while it is used.
    """

    def __init__(self, tokenizer: Any, lock: AbstractContextManager[None]) -> None:
        self._tokenizer = tokenizer
        self._lock = lock
        self._known: dict[str, Prompt] = {}

    def mask(self, config: EncoderConfig, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the mask of the tokens that count in pooling: all but padding, and but prompts where they do not.

        Args:
            config: The configuration of the encoder, with its prefixes.
            ids: Token ids [batch, tokens].
            mask: 1 for tokens and 0 for padding, [batch, tokens].

        Raises:
            UserError: The tokens of a prefix depend on the text after it.
        """
        if config.include_prompt or config.pooling != "mean":
            return mask
        prefixes = sorted({config.query_prefix, config.passage_prefix} - {""})
        for prefix in prefixes:
            if prefix not in self._known:
                with self._lock:
                    self._known[prefix] = prompt_of(self._tokenizer, prefix)
        return without_prompts(ids, mask, [self._known[prefix] for prefix in prefixes])


def with_prompt(encoder: Encoder, prompt: str) -> Encoder:
    """Return an encoder that knows a prompt which is not one of its prefixes, where prompts are left out of the mean.

    Args:
        encoder: The encoder. It is returned itself where it needs not know the prompt.
        prompt: Put before each text.

    Returns:
        An encoder that shares the weights.
    """
    config = encoder.config
    if config.include_prompt or prompt in (config.query_prefix, config.passage_prefix):
        return encoder
    view = shallow_copy(encoder)
    view.config = dataclasses.replace(config, query_prefix=prompt)
    return view
