"""Collect what projections are fitted from, text by text, and fit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import fitting
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.fit_report import FitReport, grid_dims, nearest_rows, quality
from starbucks_retrieval.models.fitting import Moments, unit
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.models.table_fitter import TableFitter
from starbucks_retrieval.models.texts import join_short
from starbucks_retrieval.sizes import Size

_HELD_OUT_EVERY = 10  # one text of ten, until there are enough of them
_HELD_OUT = 1000


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
                moments = self.moments.copy()
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
        with torch.autocast(encoder.device.type, dtype, enabled=dtype is not None):
            for batch in token_batches([len(row) for row in rows], max_tokens):
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
            for dim in grid_dims(self.encoder.hidden_size):
                cut = held_out[layer][:, :dim].astype(np.float64)
                before[Size(layer, dim)] = quality(cut, target, nearest, normalize)
                after[Size(layer, dim)] = quality(projected[layer][:, :dim], rotated, nearest, normalize)
        return FitReport(self.moments.count, len(target), dict(ridges), before, after)


def map_inputs(layers: Iterable[int], last: int, concat_layers: bool, table_input: bool) -> dict[int, tuple[int, ...]]:
    """Return {layer: the layers that its map takes, 0 for the token table}, of the fitted layers between 0 and the last.

    Args:
        layers: The layers that are fitted.
        last: The last layer of the model.
        concat_layers: As in `Fitter`.
        table_input: As in `Fitter`.

    Example:
        >>> map_inputs([0, 1, 2, 6], 6, concat_layers=False, table_input=True)
        {1: (0, 1), 2: (0, 2)}
    """
    fitted = list(layers)
    first = (0,) if table_input and 0 in fitted else ()
    return {
        layer: (*first, *(range(1, layer + 1) if concat_layers else (layer,))) for layer in fitted if 0 < layer < last
    }


def fitted_texts_needed(hidden: int, inputs: Mapping[int, Sequence[int]]) -> int:
    """Return the fewest texts that maps are fitted on: one for each number of their layers.

    Ridge regression needs none for the numbers of the token table, which is a good embedding by itself.

    Args:
        hidden: The width of the model.
        inputs: What `map_inputs` returns.

    Example:
        >>> fitted_texts_needed(384, {1: (0, 1), 2: (0, 1, 2)})
        768
    """
    return hidden * max([1, *(sum(map(bool, found)) for found in inputs.values())])


def is_held_out(number: int) -> bool:
    """Return whether the text with this number, from 0, is held out: every tenth, up to 1,000 of them.

    Example:
        >>> [number for number in range(25) if is_held_out(number)]
        [0, 10, 20]
    """
    return number % _HELD_OUT_EVERY == 0 and number < _HELD_OUT_EVERY * _HELD_OUT


def texts_needed(width: int) -> int:
    """Return how many texts fit a map whose input has `width` numbers: one for each, and those that are held out.

    Example:
        >>> texts_needed(384)
        427
    """
    fitted = number = 0
    while fitted < width:
        fitted += not is_held_out(number)
        number += 1
    return number
