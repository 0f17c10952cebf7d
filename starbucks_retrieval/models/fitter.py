"""Collect what projections are fitted from, text by text, and fit them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import fitting
from starbucks_retrieval.models.architectures import truncated_view
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.fitting import Moments, Solution, unit
from starbucks_retrieval.models.pooling import PooledBackbone
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.sizes import Size, Sizes

_HELD_OUT_EVERY = 10  # one text of ten, until there are enough of them
_HELD_OUT = 1000
_NEIGHBOURS = 10
_SMALLEST_DIM = 16
_RECOMMENDED_DIM = 32  # narrower embeddings serve nobody well
_SIZES = 6  # recommended ones, as many as there are size aliases
_CHUNK = 8192  # tokens of the vocabulary whose states are computed at once


class Quality(NamedTuple):
    """How well the embeddings at one size stand for the full ones, on held-out texts.

    Attributes:
        cosine: The mean cosine to the full embedding, missing dimensions counting as zeros.
        top10: The mean share of a text's ten nearest other texts that are those by the full embedding.
    """

    cosine: float
    top10: float


@dataclasses.dataclass(frozen=True)
class FitReport:
    """What a fit found.

    Attributes:
        texts: The number of texts that were fitted; those held out come on top.
        held_out: The number of texts that were held out.
        ridges: {layer: the λ that was taken}.
        before: {size: quality of the pooled output cut to the size}.
        after: {size: quality of the projected output cut to the size}.
    """

    texts: int
    held_out: int
    ridges: dict[int, float]
    before: dict[Size, Quality]
    after: dict[Size, Quality]

    def recommended(self, count: int = _SIZES) -> Sizes:
        """Return the sizes that serve best whatever number of layers and dims one can afford.

        A budget is one (layer, dim) of the grid, and what it gets is the best `top10` of a chosen size within it. The
        full size comes first, then, one by one, the size that adds most over all budgets.

        Args:
            count: How many sizes; fewer if the grid is smaller.
        """
        quality = {size: found.top10 for size, found in self.after.items() if size.dim >= _RECOMMENDED_DIM}
        quality = quality or {size: found.top10 for size, found in self.after.items()}
        reached = dict.fromkeys(quality, 0.0)
        chosen: list[Size] = []
        best: Size | None = max(quality)
        while best is not None:
            chosen.append(best)
            reached = {budget: _reached(budget, best, quality, value) for budget, value in reached.items()}
            gains = {
                size: sum(_reached(budget, size, quality, value) - value for budget, value in reached.items())
                for size in quality
                if size not in chosen
            }
            best = max(gains, key=lambda size: (gains[size], size), default=None) if len(chosen) < count else None
        return Sizes(sorted(chosen))


def _reached(budget: Size, size: Size, quality: Mapping[Size, float], value: float) -> float:
    within = size.layer <= budget.layer and size.dim <= budget.dim
    return max(value, quality[size]) if within else value


class Fitter:
    """Sums over texts, and the held-out ones.

    Every tenth text is held out, up to 1,000 of them.

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
        self.moments = Moments.zeros(hidden, ({0: hidden} if 0 in self.layers else {}) | widths)
        self.seen = 0
        self._held_out: list[dict[int, np.ndarray]] = []  # {layer: pooled outputs [texts, hidden]} of each call of add
        self._states = token_states(encoder) if 0 in self.layers else None

    def add(self, rows: Sequence[Sequence[int]], max_tokens: int = 8192, dtype: torch.dtype | None = None) -> None:
        """Add tokenised texts. Equal calls in equal order give equal bits.

        Args:
            rows: The token ids of each text, as `NestedEncoder.tokenize` returns them.
            max_tokens: The largest rows x longest row of a batch.
            dtype: The autocast dtype; None computes in float32.
        """
        pooled = self._pooled(rows, max_tokens, dtype)
        held = np.array([self._is_held_out(self.seen + i) for i in range(len(rows))])
        self.seen += len(rows)
        self._held_out.append({layer: found[held] for layer, found in pooled.items()})
        kept = {layer: found[~held] for layer, found in pooled.items()}
        if len(kept[self.encoder.num_layers]):
            self.moments.add(self._map_inputs(kept), self._target(kept))

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
        solution = fitting.solve(self.moments, inputs, target)
        maps = fitting.layer_maps(solution, encoder.num_layers, self.inputs)
        table = None
        if self._states is not None:
            table = fitting.token_table(solution, self._states, encoder.tokenizer.all_special_ids)
        fingerprints = {layer: encoder.backbone_fingerprint(layer) for layer in range(encoder.num_layers + 1)}
        report = self._report(solution, held_out, inputs, target)
        return fitting.projections(maps, table, fingerprints), report

    def state(self) -> dict[str, np.ndarray]:
        """Return all sums and held-out outputs as named arrays, for a checkpoint."""
        arrays = {"seen": np.array([self.seen, self.moments.count]), "target": self.moments.target}
        for layer in self.moments.grams:
            arrays[f"gram_{layer}"] = self.moments.grams[layer]
            arrays[f"cross_{layer}"] = self.moments.crosses[layer]
        if self._held_out:
            for layer in self._captured:
                arrays[f"held_out_{layer}"] = np.concatenate([part[layer] for part in self._held_out])
        return arrays

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned. Raises KeyError for arrays of another fit."""
        self.seen, self.moments.count = map(int, arrays["seen"])
        self.moments.target = arrays["target"]
        for layer in self.moments.grams:
            self.moments.grams[layer] = arrays[f"gram_{layer}"]
            self.moments.crosses[layer] = arrays[f"cross_{layer}"]
        if self.seen:
            self._held_out = [{layer: arrays[f"held_out_{layer}"] for layer in self._captured}]

    @property
    def _captured(self) -> tuple[int, ...]:
        """The layers whose outputs are needed; 0 stands for the mean of token states."""
        needed = {self.encoder.num_layers, *(layer for found in self.inputs.values() for layer in found)}
        return tuple(sorted(needed | ({0} if 0 in self.layers else set())))

    @staticmethod
    def _is_held_out(number: int) -> bool:
        return number % _HELD_OUT_EVERY == 0 and number < _HELD_OUT_EVERY * _HELD_OUT

    @torch.no_grad()
    def _pooled(
        self, rows: Sequence[Sequence[int]], max_tokens: int, dtype: torch.dtype | None
    ) -> dict[int, np.ndarray]:
        encoder = self.encoder
        layers = [layer for layer in self._captured if layer]
        outputs = {layer: np.empty((len(rows), encoder.hidden_size), np.float32) for layer in self._captured}
        pad_id = encoder.tokenizer.pad_token_id or 0
        with torch.autocast(encoder.device.type, dtype, enabled=dtype is not None):
            for batch in token_batches([len(row) for row in rows], max_tokens):
                padded = pad([rows[i] for i in batch], pad_id, encoder.device)
                for layer, pooled in encoder.unprojected(**padded, layers=layers).items():
                    outputs[layer][batch] = pooled.float().cpu().numpy()
        if self._states is not None:
            special = set(encoder.tokenizer.all_special_ids)
            content = [[token for token in row if token not in special] for row in rows]
            counts = np.array([max(1, len(row)) for row in content])
            ids = torch.tensor([token for row in content for token in row], dtype=torch.long)
            starts = torch.tensor(np.cumsum([0, *(len(row) for row in content[:-1])]))
            sums = torch.nn.functional.embedding_bag(ids, self._states, starts, mode="sum")
            outputs[0] = (sums / torch.from_numpy(counts).unsqueeze(1)).numpy()
        return outputs

    def _map_inputs(self, pooled: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        inputs = {0: pooled[0]} if 0 in self.layers else {}
        for layer, needed in self.inputs.items():
            inputs[layer] = np.concatenate([unit(pooled[one]) for one in needed], axis=1)
        return inputs

    def _target(self, pooled: Mapping[int, np.ndarray]) -> np.ndarray:
        full = pooled[self.encoder.num_layers]
        return unit(full) if self.encoder.config.normalize else full.astype(np.float64)

    def _report(
        self,
        solution: Solution,
        held_out: Mapping[int, np.ndarray],
        inputs: Mapping[int, np.ndarray],
        target: np.ndarray,
    ) -> FitReport:
        last, normalize = self.encoder.num_layers, self.encoder.config.normalize
        nearest = _nearest(target)
        rotated = solution.embed(last, target)
        before, after = {}, {}
        for layer in self.layers:
            projected = solution.embed(layer, target if layer == last else inputs[layer])
            for dim in grid_dims(self.encoder.hidden_size):
                cut = held_out[layer][:, :dim].astype(np.float64)
                before[Size(layer, dim)] = _quality(cut, target, nearest, normalize)
                after[Size(layer, dim)] = _quality(projected[:, :dim], rotated, nearest, normalize)
        return FitReport(self.moments.count, len(target), solution.ridges, before, after)


def texts_needed(width: int) -> int:
    """Return how many texts fit a map whose input has `width` numbers: one for each, and those that are held out.

    Example:
        >>> texts_needed(384)
        427
    """
    fitted = number = 0
    while fitted < width:
        fitted += not Fitter._is_held_out(number)
        number += 1
    return number


def grid_dims(hidden_size: int) -> list[int]:
    """Return the dims of a fit's grid: 16, 32, 64, … below the hidden size, and the hidden size.

    Example:
        >>> grid_dims(384)
        [16, 32, 64, 128, 256, 384]
    """
    count = max(0, math.ceil(math.log2(hidden_size / _SMALLEST_DIM)))
    return [*(_SMALLEST_DIM * 2**i for i in range(count)), hidden_size]


@torch.no_grad()
def token_states(encoder: PooledBackbone) -> Tensor:
    """Return the output of the embedding layer for each token alone, as its pooled output at layer 0.

    Returns:
        float32 [vocabulary, hidden], on the CPU.
    """
    view = truncated_view(encoder.backbone, encoder.layout, 0)
    rows = int(encoder.backbone.get_input_embeddings().weight.shape[0])
    states = []
    for ids in torch.arange(rows, device=encoder.device).split(_CHUNK):
        output = view(input_ids=ids.unsqueeze(1), attention_mask=torch.ones_like(ids).unsqueeze(1))
        states.append(output.last_hidden_state[:, 0].float().cpu())
    return torch.cat(states)


def fit(
    encoder: Any, batches: Iterable[Sequence[Sequence[int]]], layers: Sequence[int] | None = None
) -> tuple[Projections, FitReport]:
    """Fit projections on batches of token rows; see `Fitter`."""
    fitter = Fitter(encoder, layers)
    for rows in batches:
        fitter.add(rows)
    return fitter.finish()


def _quality(vectors: np.ndarray, full: np.ndarray, nearest: np.ndarray, normalize: bool) -> Quality:
    cosine = (unit(vectors) * unit(full)[:, : vectors.shape[1]]).sum(axis=1)
    found = _nearest(unit(vectors) if normalize else vectors)
    shared = (found[:, :, None] == nearest[:, None, :]).any(axis=2).mean() if found.size else float("nan")
    return Quality(float(cosine.mean()), float(shared))


def _nearest(vectors: np.ndarray) -> np.ndarray:
    """Return the positions of each row's nearest other rows by dot product."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, : min(_NEIGHBOURS, max(0, len(vectors) - 1))]
