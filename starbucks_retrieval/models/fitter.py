"""Collect what projections are fitted from, text by text, and fit them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import fitting
from starbucks_retrieval.models.batching import batch_tokens, pad, token_batches
from starbucks_retrieval.models.fit_report import (
    FitReport,
    fitted_texts_needed,
    is_held_out,
    map_inputs,
    measured_dims,
    nearest_rows,
    quality,
)
from starbucks_retrieval.models.fitting import Moments, unit
from starbucks_retrieval.models.input_texts import iterate_texts
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.models.table_fitter import TableFitter
from starbucks_retrieval.models.texts import join_short, take_turns, token_rows
from starbucks_retrieval.sizes import Size

T = TypeVar("T")

CHUNK = 1024  # texts whose outputs are held at once


class Fitter:
    """Sums over texts, and the held-out ones.

    Every tenth text is held out, up to 1,000 of them. Where texts are much shorter than passages may be, a sixth of
    them are joined into long ones: maps that were fitted on short texts alone are poor for long ones, since the average of
    token states depends on the length.

    Args:
        encoder: An encoder; its projections, if it has any, are not used.
        layers: The layers to fit, 0 for a token table; None: all. The last layer is always among them.
        concat_layers: The map of a layer takes the pooled outputs of all layers up to it as its input.
        table_input: The map of a layer takes the mean of the token table as an input too, if layer 0 is fitted.

    Raises:
        UserError: The model lacks a layer.
    """

    def __init__(
        self,
        encoder: Any,
        layers: Iterable[int] | None = None,
        concat_layers: bool = False,
        table_input: bool = True,
    ) -> None:
        self.encoder = encoder
        last = encoder.num_layers
        self.layers = tuple(sorted({*(range(last) if layers is None else layers), last}))
        if self.layers[0] < 0 or self.layers[-1] > last:
            raise UserError(f"no layers {list(self.layers)} in a model of {last}", f"take layers from 0 to {last}")
        self.inputs = map_inputs(self.layers, last, concat_layers, table_input)
        self._takes_table = any(0 in found for found in self.inputs.values())
        hidden = encoder.hidden_size
        widths = {layer: len(found) * hidden for layer, found in self.inputs.items()}
        self.moments = Moments.zeros(hidden, widths, fitted_texts_needed(hidden, self.inputs))
        self.seen = 0
        self._rows = 0  # joined texts count as one
        self._held_out: list[dict[int, np.ndarray]] = []  # {layer: pooled outputs [texts, hidden]} of each call of add
        below = sorted({one for found in self.inputs.values() for one in found if one}) if self._takes_table else ()
        self._table = TableFitter(encoder, below) if 0 in self.layers else None

    @property
    def is_full(self) -> bool:
        """Whether more texts change nothing: maps that take the token table are fitted on a limited number."""
        return self._table is not None and self._takes_table and self._table.is_full

    def add(self, rows: Sequence[Sequence[int]], max_tokens: int = 8192, dtype: torch.dtype | None = None) -> None:
        """Add tokenised texts. Equal calls in equal order give equal bits.

        Args:
            rows: The token ids of each text, as `NestedEncoder.tokenize` returns them.
            max_tokens: The largest rows x longest row of a batch.
            dtype: The autocast dtype; None computes in float32.
        """
        if not rows or self.is_full:
            return
        enough = self.seen >= 2 * self.moments.needed
        self.seen += len(rows)
        if enough:  # the first texts stay alone, so that a fit needs no more texts for being joined
            rows = join_short(rows, self.encoder.max_length(False), self._special)
        pooled = self._pooled(rows, max_tokens, dtype)
        held = np.array([is_held_out(self._rows + i) for i in range(len(rows))])
        self._rows += len(rows)
        kept = {layer: found[~held] for layer, found in pooled.items()}
        target = self._target(kept)
        self._held_out.append({layer: found[held] for layer, found in pooled.items()})
        if self._table is not None:
            self._table.add(rows, held, target, kept)
        if len(target):
            # Maps that take the token table are fitted at the end, when there is a table.
            self.moments.add({} if self._takes_table else self._map_inputs(kept), target)

    def read(
        self,
        passages: Iterable[str],
        queries: Iterable[str] | None = None,
        max_tokens: int = 8192,
        dtype: torch.dtype | None = None,
        label: str | None = None,
    ) -> None:
        """Add texts, passages and queries in turns, until they end or the fitter is full.

        Args:
            passages: Texts without prefixes; empty ones are left out.
            queries: Likewise.
            max_tokens: The largest rows x longest row of a batch.
            dtype: The autocast dtype; None computes in float32.
            label: Shows progress under this name; None shows none.

        Raises:
            UserError: An item is not a text.
        """
        sources = [iterate_texts(given, "fit") for given in (passages, () if queries is None else queries)]
        prefixes = (self.encoder.config.passage_prefix, self.encoder.config.query_prefix)
        texts = (
            ((prefixes[is_query] + one).strip(), bool(is_query)) for is_query, one in take_turns(sources) if one.strip()
        )
        for part in chunks(progress(texts, None, "texts", label) if label else texts):
            self.add(token_rows(self.encoder, part), max_tokens, dtype)
            if self.is_full:
                break

    def finish(self) -> tuple[Projections, FitReport]:
        """Solve the maps and measure them on the held-out texts.

        Raises:
            UserError: There are too few texts, or the embeddings are constant or not finite.
        """
        self.moments.check_count()
        encoder = self.encoder
        held_out = {layer: np.concatenate([part[layer] for part in self._held_out]) for layer in self._captured}
        target = self._target(held_out)
        moments, table, projected, ridges = self.moments, None, {}, {}
        if self._table is not None:
            table = self._table.fit(target)
            held_out[0], projected[0], ridges[0] = table.before, table.after, table.ridge
            if self._takes_table:
                moments = copy.deepcopy(self.moments)
                for outputs, targets in self._table.texts(table.means):
                    moments.add_inputs(self._map_inputs(outputs), targets)
        inputs = self._map_inputs(held_out | projected)
        solution = fitting.solve(moments, inputs, target)
        projected |= {layer: solution.embed(layer, found) for layer, found in inputs.items()}
        projected[encoder.num_layers] = solution.embed(encoder.num_layers, target)
        fingerprints = {layer: encoder.backbone_fingerprint(layer) for layer in range(encoder.num_layers + 1)}
        maps = fitting.layer_maps(solution, encoder.num_layers, self.inputs)
        report = self._report(ridges | solution.ridges, held_out, projected, target)
        return fitting.projections(maps, table.table if table else None, fingerprints), report

    def state(self) -> dict[str, np.ndarray]:
        """Return all sums and held-out outputs as named arrays, for a checkpoint."""
        arrays = {"seen": np.array([self.seen, self._rows, self.moments.count]), "target": self.moments.target}
        for layer in self.moments.grams:
            arrays[f"gram_{layer}"] = self.moments.grams[layer]
            arrays[f"cross_{layer}"] = self.moments.crosses[layer]
        if self._held_out:
            for layer in self._captured:
                arrays[f"held_out_{layer}"] = np.concatenate([part[layer] for part in self._held_out])
        return arrays if self._table is None else arrays | self._table.state()

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned. Raises KeyError for arrays of another fit."""
        self.seen, self._rows, self.moments.count = map(int, arrays["seen"])
        self.moments.target = arrays["target"]
        for layer in self.moments.grams:
            self.moments.grams[layer] = arrays[f"gram_{layer}"]
            self.moments.crosses[layer] = arrays[f"cross_{layer}"]
        if self.seen:
            self._held_out = [{layer: arrays[f"held_out_{layer}"] for layer in self._captured}]
        if self._table is not None:
            self._table.load_state(arrays)

    @property
    def _special(self) -> frozenset[int]:
        return frozenset(self.encoder.tokenizer.all_special_ids)

    @property
    def _captured(self) -> tuple[int, ...]:
        """The layers of the backbone whose outputs are needed."""
        needed = {self.encoder.num_layers, *(layer for found in self.inputs.values() for layer in found if layer)}
        return tuple(sorted(needed))

    @torch.no_grad()
    def _pooled(
        self, rows: Sequence[Sequence[int]], max_tokens: int, dtype: torch.dtype | None
    ) -> dict[int, np.ndarray]:
        encoder = self.encoder
        layers = self._captured
        outputs = {layer: np.empty((len(rows), encoder.hidden_size), np.float32) for layer in self._captured}
        pad_id = encoder.tokenizer.pad_token_id or 0
        batches = token_batches([len(row) for row in rows], batch_tokens(max_tokens, encoder.device.type))
        with torch.autocast(encoder.device.type, dtype, enabled=dtype is not None):
            for batch in batches:
                padded = pad([rows[i] for i in batch], pad_id, encoder.device)
                for layer, pooled in encoder.unprojected(**padded, layers=layers).items():
                    outputs[layer][batch] = pooled.float().cpu().numpy()
        return outputs

    def _map_inputs(self, pooled: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        return {
            layer: np.concatenate([unit(pooled[one]) for one in needed], axis=1)
            for layer, needed in self.inputs.items()
        }

    def _target(self, pooled: Mapping[int, np.ndarray]) -> np.ndarray:
        full = pooled[self.encoder.num_layers]
        return unit(full) if self.encoder.config.normalize else full.astype(np.float64)

    def _report(
        self,
        ridges: Mapping[int, float],
        held_out: Mapping[int, np.ndarray],
        projected: Mapping[int, np.ndarray],
        target: np.ndarray,
    ) -> FitReport:
        rotated, normalize = projected[self.encoder.num_layers], self.encoder.config.normalize
        nearest = nearest_rows(target)
        before, after = {}, {}
        for layer in self.layers:
            for dim in measured_dims(self.encoder.hidden_size):
                cut = held_out[layer][:, :dim].astype(np.float64)
                before[Size(layer, dim)] = quality(cut, target, nearest, normalize)
                after[Size(layer, dim)] = quality(projected[layer][:, :dim], rotated, nearest, normalize)
        return FitReport(self.moments.count, len(target), dict(ridges), before, after)


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last may be shorter.

    Example:
        >>> list(chunks("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    stream = iter(items)
    while chunk := list(itertools.islice(stream, size)):
        yield chunk
