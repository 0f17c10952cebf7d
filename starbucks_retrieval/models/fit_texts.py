"""Fit projections on texts: queries and passages in turn, tokenised, chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.models.fit_report import FitReport
from starbucks_retrieval.models.fitter import Fitter
from starbucks_retrieval.models.input_texts import iterate_texts
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.models.texts import take_turns, token_rows

T = TypeVar("T")

CHUNK = 1024  # texts whose outputs are held at once


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last may be shorter.

    Example:
        >>> list(chunks("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    stream = iter(items)
    while chunk := list(itertools.islice(stream, size)):
        yield chunk


def fit_texts(
    encoder: Any,
    passages: Iterable[str],
    queries: Iterable[str] | None = None,
    layers: Sequence[int] | None = None,
    *,
    concat_layers: bool = False,
    table_input: bool = True,
    max_tokens: int = 8192,
    dtype: torch.dtype | None = None,
    label: str | None = None,
) -> tuple[Projections, FitReport]:
    """Fit projections of an encoder, which stays as it is; see `NestedEncoder.fit`."""
    sources = [iterate_texts(given, "fit") for given in (passages, () if queries is None else queries)]
    fitter = Fitter(encoder, layers, concat_layers, table_input)
    prefixes = (encoder.config.passage_prefix, encoder.config.query_prefix)
    texts = (((prefixes[number] + text).strip(), bool(number)) for number, text in take_turns(sources) if text.strip())
    for part in chunks(progress(texts, None, "texts", label) if label else texts):
        fitter.add(token_rows(encoder, part), max_tokens, dtype)
        if fitter.is_full:
            break
    return fitter.finish()
