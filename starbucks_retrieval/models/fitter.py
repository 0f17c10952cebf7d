"""Collect what projections are fitted from, text by text, and fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import fitting, tables
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.fit_report import FitReport, grid_dims, nearest_rows, quality
from starbucks_retrieval.models.fitting import Moments, Solution, unit
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.models.texts import join_short
from starbucks_retrieval.sizes import Size

_HELD_OUT_EVERY = 10  # one text of ten, until there are enough of them
_HELD_OUT = 1000
_TABLE_TEXTS = 50_000  # texts whose tokens and embeddings are kept in memory to fit the token table


class Fitter:
    """Sums over texts, and the held-out ones.

    Every tenth text is held out, up to 1,000 of them. Where texts are much shorter than passages may be, a sixth of
    them are joined into long ones: maps that were fitted on short texts alone are poor for long ones, since the average of
    token states depends on the length.

    Args:
        encoder: An encoder; its projections, if it has any, are not used.
        layers: The layers to fit, 0 for a token table; None: all. The last layer is always among them.
        concat_layers: The map of a layer takes the pooled outputs of all layers up to it as its input.

    Raises:
        UserError: The model lacks a layer.
    """

    def __init__(self, encoder: Any, layers: Sequence[int] | None = None, concat_layers: bool = False) -> None:
        self.encoder = encoder
        last = encoder.num_layers
        self.layers = tuple(sorted({*(range(last) if layers is None else layers), last}))
        if self.layers[0] < 0 or self.layers[-1] > last:
            raise UserError(f"no layers {list(self.layers)} in a model of {last}", f"take layers from 0 to {last}")
        self.inputs = {
            layer: tuple(range(1, layer + 1)) if concat_layers else (layer,)
            for layer in self.layers
            if 0 < layer < last
        }
        hidden = encoder.hidden_size
        widths = {layer: len(found) * hidden for layer, found in self.inputs.items()}
        states = tables.token_states(encoder) if 0 in self.layers else None
        self.moments = Moments.zeros(hidden, ({} if states is None else {0: states.shape[1]}) | widths)
        self.seen = 0
        self._rows = 0  # joined texts count as one
        self._held_out: list[dict[int, np.ndarray]] = []  # {layer: pooled outputs [texts, hidden]} of each call of add
        # For layer 0: the state of each token; and of fitted and of held-out texts, the share of each token [texts,
        # vocabulary], and for fitted ones the full embedding.
        self._states = states
        self._tokens: list[scipy.sparse.csr_matrix] = []
        self._targets: list[np.ndarray] = []
        self._held_out_tokens: list[scipy.sparse.csr_matrix] = []

    def add(self, rows: Sequence[Sequence[int]], max_tokens: int = 8192, dtype: torch.dtype | None = None) -> None:
        """Add tokenised texts. Equal calls in equal order give equal bits.

        Args:
            rows: The token ids of each text, as `NestedEncoder.tokenize` returns them.
            max_tokens: The largest rows x longest row of a batch.
            dtype: The autocast dtype; None computes in float32.
        """
        if not rows:
            return
        enough = self.seen >= 2 * self._widest
        self.seen += len(rows)
        if enough:  # the first texts stay alone, so that a fit needs no more texts for being joined
            rows = join_short(rows, self.encoder.max_length(False), self._special)
        pooled = self._pooled(rows, max_tokens, dtype)
        held = np.array([is_held_out(self._rows + i) for i in range(len(rows))])
        self._rows += len(rows)
        kept = {layer: found[~held] for layer, found in pooled.items()}
        target = self._target(kept)
        inputs = self._map_inputs(kept)
        self._held_out.append({layer: found[held] for layer, found in pooled.items()})
        if self._states is not None:
            tokens = tables.token_shares(rows, self._special, len(self._states))
            inputs[0] = tokens[~held] @ self._states
            self._held_out_tokens.append(tokens[held])
            if sum(map(len, self._targets)) < _TABLE_TEXTS:
                self._tokens.append(tokens[~held])
                self._targets.append(target.astype(np.float32))
        if len(target):
            self.moments.add(inputs, target)

    def finish(self) -> tuple[Projections, FitReport]:
        """Solve the maps and measure them on the held-out texts.

        Raises:
            UserError: There are too few texts, or the embeddings are constant or not finite.
        """
        encoder = self.encoder
        held_out = (
            {layer: np.concatenate([part[layer] for part in self._held_out]) for layer in self._captured}
            if self._held_out
            else {layer: np.zeros((0, encoder.hidden_size)) for layer in self._captured}
        )
        target = self._target(held_out)
        inputs = self._map_inputs(held_out)
        tokens = None
        if self._states is not None and self._held_out_tokens:
            tokens = scipy.sparse.vstack(self._held_out_tokens).tocsr()
            inputs[0] = tokens @ self._states
        solution = fitting.solve(self.moments, inputs, target)
        maps = fitting.layer_maps(solution, encoder.num_layers, self.inputs)
        table = None
        projected = {layer: solution.embed(layer, found) for layer, found in inputs.items()}
        projected[encoder.num_layers] = solution.embed(encoder.num_layers, target)
        if self._states is not None and tokens is not None:
            rows = tables.refined_table(
                fitting.with_ones(self._states) @ solution.coefficients[0],
                scipy.sparse.vstack(self._tokens).tocsr(),
                np.concatenate(self._targets) @ solution.axes,
                tokens,
                projected[encoder.num_layers],
            )
            projected[0] = tokens @ rows
            table = tables.token_table(rows, self._special)
            held_out[0] = inputs[0]
        fingerprints = {layer: encoder.backbone_fingerprint(layer) for layer in range(encoder.num_layers + 1)}
        report = self._report(solution, held_out, projected, target)
        return fitting.projections(maps, table, fingerprints), report

    def state(self) -> dict[str, np.ndarray]:
        """Return all sums and held-out outputs as named arrays, for a checkpoint."""
        arrays = {"seen": np.array([self.seen, self._rows, self.moments.count]), "target": self.moments.target}
        for layer in self.moments.grams:
            arrays[f"gram_{layer}"] = self.moments.grams[layer]
            arrays[f"cross_{layer}"] = self.moments.crosses[layer]
        if self._held_out:
            for layer in self._captured:
                arrays[f"held_out_{layer}"] = np.concatenate([part[layer] for part in self._held_out])
        if self._targets:
            arrays["targets"] = np.concatenate(self._targets)
        for name, parts in (("tokens", self._tokens), ("held_out_tokens", self._held_out_tokens)):
            if parts:
                joined = scipy.sparse.vstack(parts).tocsr()
                arrays |= {f"{name}_{field}": getattr(joined, field) for field in ("data", "indices", "indptr")}
        return arrays

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned. Raises KeyError for arrays of another fit."""
        self.seen, self._rows, self.moments.count = map(int, arrays["seen"])
        self.moments.target = arrays["target"]
        for layer in self.moments.grams:
            self.moments.grams[layer] = arrays[f"gram_{layer}"]
            self.moments.crosses[layer] = arrays[f"cross_{layer}"]
        if self.seen:
            self._held_out = [{layer: arrays[f"held_out_{layer}"] for layer in self._captured}]
        if self.seen and self._states is not None:
            self._targets = [arrays["targets"]]
            self._tokens, self._held_out_tokens = (
                [tables.sparse_from(arrays, name, len(self._states))] for name in ("tokens", "held_out_tokens")
            )

    @property
    def _widest(self) -> int:
        return max(len(self.moments.target), *(len(gram) - 1 for gram in self.moments.grams.values()), 0)

    @property
    def _special(self) -> frozenset[int]:
        return frozenset(self.encoder.tokenizer.all_special_ids)

    @property
    def _captured(self) -> tuple[int, ...]:
        """The layers of the backbone whose outputs are needed."""
        needed = {self.encoder.num_layers, *(layer for found in self.inputs.values() for layer in found)}
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
        solution: Solution,
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
        return FitReport(self.moments.count, len(target), solution.ridges, before, after)


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
