"""Attention over texts laid end to end, without padding: in encoding on GPUs, and in training on CPUs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError

NAME = "unpadded"
_REGISTERED = "starbucks_unpadded"  # among transformers' attention functions

_ARGUMENTS = {"scale", "window_size", "enable_gqa"}  # of torch's kernel; older ones have fewer

# Architectures whose position ids are known; tests/models compares each with padded batches. A number says that positions
# start so many after the padding token's id; None, that they start at 0.
FAMILIES: dict[str, int | None] = {
    "bert": None,
    "electra": None,
    "modernbert": None,
    "roberta": 1,
    "xlm-roberta": 1,
    "camembert": 1,
    "llama": None,
    "mistral": None,
    "qwen2": None,
    "qwen3": None,
    "eurobert": None,
    "gemma3_text": None,
    "nomic_bert": None,
}


@dataclass(frozen=True)
class Packing:
    """Texts laid end to end.

    Attributes:
        ids: Token ids [1, tokens].
        positions: Position ids [1, tokens].
        bounds: Where each text starts, and the end of the last: int32 [texts + 1].
        mask: The attention mask of the same texts as a padded batch, [texts, longest].
    """

    ids: Tensor
    positions: Tensor
    bounds: Tensor
    mask: Tensor

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int]], first_position: int, device: torch.device) -> Packing:
        """Lay rows of token ids end to end.

        Args:
            rows: The token ids of each text; at least one text.
            first_position: The position id of the first token of each text, as the function of that name returns it.
            device: Where the tensors are.
        """
        lengths = np.array([len(row) for row in rows])
        bounds = np.concatenate([[0], lengths.cumsum()])
        columns = np.arange(lengths.max())
        positions = np.arange(bounds[-1]) - bounds[:-1].repeat(lengths) + first_position
        return cls(
            torch.tensor(np.concatenate([np.asarray(row, np.int64) for row in rows])[None], device=device),
            torch.tensor(positions[None], device=device),
            torch.tensor(bounds.astype(np.int32), device=device),
            torch.tensor((columns < lengths[:, None]).astype(np.int64), device=device),
        )

    @functools.cached_property
    def padded_ids(self) -> Tensor:
        """The token ids as a padded batch [texts, longest], zero where there is no token."""
        return self.padded(self.ids.unsqueeze(-1)).squeeze(-1)

    def padded(self, hidden: Tensor) -> Tensor:
        """Return states [1, tokens, hidden] as a padded batch [texts, longest, hidden], zero where there is no token."""
        out = hidden.new_zeros((*self.mask.shape, hidden.shape[-1]))
        out[self.mask.bool()] = hidden[0]
        return out


class _Current(threading.local):
    packing: Packing | None = None


_current = _Current()


@contextlib.contextmanager
def attend_within(packing: Packing | None) -> Iterator[None]:
    """Restrict the attention of enabled models to the texts of `packing`, in this thread.

    Args:
        packing: The texts of the forward passes in the `with` block; None for padded batches.
    """
    before, _current.packing = _current.packing, packing
    try:
        yield
    finally:
        _current.packing = before


def checkpoint_contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Return the contexts of a layer, the `context_fn` of `torch.utils.checkpoint`.

    Returns:
        The context of the forward pass, and that in which the backward pass runs the layer again, on the same texts.
    """
    return contextlib.nullcontext(), attend_within(_current.packing)


def enable(backbone: Any) -> None:
    """Let a backbone run on packed texts, in place; padded batches use torch's usual attention as before.

    Raises:
        UserError: The position ids of the architecture are not known.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if backbone.config.model_type not in FAMILIES:
        raise UserError(
            f"{backbone.config.model_type!r} cannot run unpadded", f"supported: {', '.join(sorted(FAMILIES))}"
        )
    AttentionInterface.register(_REGISTERED, _attention)
    AttentionMaskInterface.register(_REGISTERED, _mask)
    backbone.set_attn_implementation(_REGISTERED)


def is_supported(backbone: Any) -> bool:
    """Return whether a backbone is one of transformers' own that `enable` can change, with torch's usual attention."""
    return (
        backbone.config.model_type in FAMILIES
        and backbone.config._attn_implementation == "sdpa"
        and type(backbone).__module__.startswith("transformers.")
    )


def is_enabled(backbone: Any) -> bool:
    """Return whether `enable` was called on a backbone."""
    return backbone.config._attn_implementation == _REGISTERED


def first_position(config: Any) -> int:
    """Return the first position id of an architecture.

    Args:
        config: The Hugging Face configuration of a backbone for which `enable` was called.
    """
    after_pad = FAMILIES[config.model_type]
    return 0 if after_pad is None else int(config.pad_token_id) + after_pad


def _mask(*arguments: Any, **keywords: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    return None if _current.packing is not None else sdpa_mask(*arguments, **keywords)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers: query [1, heads, tokens, width] → [1, tokens, heads, width]."""
    packing = _current.packing
    if packing is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **keywords
        )
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", False))
    left = -1 if sliding_window is None else sliding_window - 1
    window = (left, 0 if causal else left)
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))  # [tokens, heads, width]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _with_kernel(q, k, v, packing, window, scaling)[None], None
    return _by_length(q, k, v, packing, window, scaling, dropout)[None], None


@functools.cache
def kernel() -> Callable[..., Any]:
    """Return torch's variable-length attention. Raises UserError for a torch whose kernel lacks windows or groups."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        known: set[str] = set()
    else:
        known = {*inspect.signature(varlen_attn).parameters}
    if not known >= _ARGUMENTS:
        raise UserError(
            f"--attn_implementation {NAME} needs torch 2.12 or newer on a GPU, this is {torch.__version__}",
            "leave it out, or install a newer torch",
        )
    return varlen_attn


def _with_kernel(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, window: tuple[int, int], scale: float | None
) -> Tensor:
    longest = packing.mask.shape[1]
    bounds = packing.bounds
    grouped = query.shape[1] != key.shape[1]
    return kernel()(
        *(query.contiguous(), key.contiguous(), value.contiguous(), bounds, bounds, longest, longest),
        scale=scale,
        window_size=window,
        enable_gqa=grouped,
    )


def _by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    window: tuple[int, int],
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attend where torch's kernel does not run. Neighbouring texts of the same length are a batch: sort texts by length."""
    from starbucks_retrieval.models.attention import attend  # imports transformers

    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    runs = [(length, len(list(run))) for length, run in itertools.groupby(packing.bounds.diff().tolist())]
    parts = [length * texts for length, texts in runs]
    out = []
    for (length, texts), *states in zip(runs, *(states.split(parts) for states in (query, key, value))):
        q, k, v = (part.unflatten(0, (texts, length)).transpose(1, 2) for part in states)
        out.append(attend(q, k, v, _bias(q, window), dropout, scale).transpose(1, 2).flatten(0, 1))
    return torch.cat(out)


def _bias(query: Tensor, window: tuple[int, int]) -> Tensor | None:
    """Return 0 where a token [..., tokens, width] sees a token of its text, else -inf; None if it sees all."""
    length = query.shape[-2]
    left, right = (length if side < 0 else side for side in window)
    if min(left, right) >= length - 1:
        return None
    positions = torch.arange(length, device=query.device)
    distance = positions[None] - positions[:, None]  # of a key from a query
    hidden = (distance < -left) | (distance > right)
    return query.new_zeros(1, 1, length, length).masked_fill(hidden, float("-inf"))
