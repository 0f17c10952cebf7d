"""Attention over texts laid end to end, so that no padding is computed; for GPUs, through torch's kernel."""

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
from torch.nn import functional

from starbucks_retrieval.errors import UserError

NAME = "unpadded"
_REGISTERED = "starbucks_unpadded"  # among transformers' attention functions

_ARGUMENTS = {"scale", "window_size", "enable_gqa"}  # of torch's kernel; older ones have fewer

# Architectures whose positions can be told; tests/models checks each against its padded self. The value is where
# positions start, counted from the padding token's id where that is not None.
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
}


@dataclass(frozen=True)
class Packing:
    """Texts end to end: ids and positions [1, tokens], bounds int32 [texts + 1], mask [texts, longest] of the padded."""

    ids: Tensor
    positions: Tensor
    bounds: Tensor
    mask: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], first_position: int, device: torch.device) -> Packing:
        """Lay tokenised texts end to end."""
        lengths = np.array([len(row) for row in rows])
        bounds = np.concatenate([[0], lengths.cumsum()])
        columns = np.arange(lengths.max())
        positions = np.arange(bounds[-1]) - bounds[:-1].repeat(lengths) + first_position
        to = {"device": device}
        return cls(
            torch.tensor(np.concatenate([np.asarray(row, np.int64) for row in rows])[None], **to),
            torch.tensor(positions[None], **to),
            torch.tensor(bounds.astype(np.int32), **to),
            torch.tensor((columns < lengths[:, None]).astype(np.int64), **to),
        )

    def padded(self, hidden: Tensor) -> Tensor:
        """[1, tokens, hidden] -> [texts, longest, hidden], zero where there is no token."""
        out = hidden.new_zeros((*self.mask.shape, hidden.shape[-1]))
        out[self.mask.bool()] = hidden[0]
        return out


class _Current(threading.local):
    packing: Packing | None = None


_current = _Current()


@contextlib.contextmanager
def using(packing: Packing) -> Iterator[None]:
    """Models switched by `switch` attend within the texts of `packing`, in this thread."""
    _current.packing = packing
    try:
        yield
    finally:
        _current.packing = None


def switch(backbone: Any) -> None:
    """Make a backbone's attention able to run unpadded; padded batches go through torch's usual attention as before.

    Raises UserError for an architecture whose positions cannot be told.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if backbone.config.model_type not in FAMILIES:
        raise UserError(
            f"{backbone.config.model_type!r} cannot run unpadded", f"it is known of {', '.join(sorted(FAMILIES))}"
        )
    AttentionInterface.register(_REGISTERED, _attention)
    AttentionMaskInterface.register(_REGISTERED, _mask)
    backbone.set_attn_implementation(_REGISTERED)


def can_run(backbone: Any) -> bool:
    """Whether `switch` was called on a backbone."""
    return backbone.config._attn_implementation == _REGISTERED


def first_position(config: Any) -> int:
    """Where an architecture counts positions from."""
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
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """As transformers asks: query [1, heads, tokens, width] to [1, tokens, heads, width]."""
    packing = _current.packing
    if packing is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **keywords
        )
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", False))
    left = -1 if sliding_window is None else sliding_window - 1
    window = (left, 0 if causal else left)
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))  # [tokens, heads, width]
    half = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    attend = _with_kernel if half else _text_by_text
    return attend(q, k, v, packing, window, scaling)[None], None


@functools.cache
def kernel() -> Callable[..., Any]:
    """Torch's attention over texts end to end. Raises UserError for a torch that lacks it, or its windows and groups."""
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


def _text_by_text(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, window: tuple[int, int], scale: float | None
) -> Tensor:
    """The same where the kernel does not run: one text after the other, slow, for tests and odd devices."""
    out = torch.empty_like(query)
    bounds = packing.bounds.tolist()
    for start, stop in itertools.pairwise(bounds):
        q, k, v = (states[start:stop].transpose(0, 1) for states in (query, key, value))
        away = torch.arange(stop - start, device=query.device)
        away = away[None] - away[:, None]  # of a key from a query
        left, right = (stop if side < 0 else side for side in window)
        seen = (away >= -left) & (away <= right)
        grouped = query.shape[1] != key.shape[1]
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
        out[start:stop] = found.transpose(0, 1)
    return out
