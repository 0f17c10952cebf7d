"""When and how encoding takes `PackedBert`: for large jobs in bfloat16 on a CPU, a batch in each thread."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch

from starbucks_retrieval.models.bert import FIRST_TOKEN_FAMILIES
from starbucks_retrieval.models.packed_bert import PackedBert
from starbucks_retrieval.models.precision import can_pack
from starbucks_retrieval.models.unpadded import Packing, first_position
from starbucks_retrieval.threads import share, torch_threads

BATCH_TOKENS = 512  # of a thread: their states stay in the cache of a core
# Tokens times layers: without the loops they take about as much longer as compiling the loops takes.
_WORTH_COMPILING = 2**17
_WORKERS = 16  # threads with batches of their own; with more, Python would take a large part of the time

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")

# What `pack_bert` returned inside `as_for_many_texts`, by its arguments.
_kept: contextvars.ContextVar[dict[Any, PackedBert] | None] = contextvars.ContextVar("packed layers", default=None)


@contextlib.contextmanager
def as_for_many_texts() -> Iterator[None]:
    """Pack the layers of a model for any number of tokens, and once: a few texts are computed as those of a large job are."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def pack_bert(
    backbone: Any, layers: Sequence[int], dtype: torch.dtype | None, tokens: int, first_only: bool
) -> PackedBert | None:
    """Return the layers of a backbone for computing in bfloat16, or None where they cannot be packed or it does not pay.

    The answer depends on the arguments alone, not on what was computed before: a resumed job gives the same bytes.

    Args:
        backbone: A model of transformers.
        layers: The layers that will be asked for.
        dtype: The type to compute in.
        tokens: How many will be computed.
        first_only: Compute the deepest layer for the first token of each text alone.
    """
    deepest, kept = max(layers, default=0), _kept.get()
    first_only &= deepest > 1
    key = id(backbone), dtype, deepest, first_only
    if kept is not None:
        tokens = _WORTH_COMPILING
        if key in kept:
            return kept[key]
    if (
        not deepest
        or tokens * deepest < _WORTH_COMPILING
        or not can_pack(backbone, dtype, tokens)
        or not _is_plain_bert(backbone)
        or (loops := _loops()) is None
    ):
        return None
    packed = PackedBert(backbone, deepest, first_only, loops)
    if kept is not None:
        kept[key] = packed
    return packed


def share_batches(batches: Iterable[Batch], count: int, compute: Callable[[Batch], object]) -> None:
    """Compute batches in as many threads as torch uses, each with batches of its own.

    Args:
        batches: The batches.
        count: How many there are.
        compute: Called with each batch, in any thread.
    """

    @torch.no_grad()  # which holds for one thread
    def work(taken: Iterator[Batch]) -> None:
        for batch in taken:
            compute(batch)

    threads = torch.get_num_threads()
    workers = max(1, min(threads, count, _WORKERS))
    with torch_threads(threads // workers):
        share(batches, workers, work)


def sample_pass(
    backbone: Any, layers: int, length: int, dtype: torch.dtype | None
) -> tuple[Callable[[], None], int] | None:
    """Return a pass to measure the speed of packed layers with: a batch in each thread.

    Args:
        backbone: A model of transformers.
        layers: How many of its layers to compute.
        length: Tokens of each text.
        dtype: The type to compute in.

    Returns:
        The pass and its number of tokens; None where large jobs do not pack the layers either.
    """
    with as_for_many_texts():
        packed = pack_bert(backbone, [layers], dtype, 0, first_only=False)
    if packed is None:
        return None
    texts, threads = max(1, BATCH_TOKENS // length), torch.get_num_threads()
    packing = Packing.pack([[5] * length] * texts, first_position(backbone.config), torch.device("cpu"))

    def compute(batch: Packing) -> None:
        packed(batch, [layers], lambda states, first_only: states)

    return lambda: share_batches([packing] * threads, threads, compute), texts * length * threads


def _is_plain_bert(backbone: Any) -> bool:
    """Return whether a backbone computes what `PackedBert` does, with layers that nobody has replaced, such as by LoRA."""
    config = backbone.config
    return (
        config.model_type in FIRST_TOKEN_FAMILIES
        and config.hidden_act == "gelu"
        and config._attn_implementation == "sdpa"
        and not backbone.training
        and not config.is_decoder
        and not config.add_cross_attention
        and type(backbone).__module__.startswith("transformers.")
        and all(type(part).__module__.startswith(("torch.nn.", "transformers.")) for part in backbone.modules())
    )


@functools.cache
def _loops() -> ModuleType | None:
    try:
        return importlib.import_module("starbucks_retrieval.models.compiled")
    except ImportError as problem:  # Numba is not installed, or does not know this version of NumPy
        log.debug("bfloat16 without compiled loops: %s", problem)
        return None
