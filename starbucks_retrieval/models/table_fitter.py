"""Fit the token table of layer 0 to texts, and collect what the maps that take it as an input are fitted from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from starbucks_retrieval.models import fitting, tables
from starbucks_retrieval.models.fitting import Moments, unit
from starbucks_retrieval.models.layer_maps import TokenTable

#: Texts that are kept in memory: more do not change a token table, nor maps that take it.
MAX_TEXTS = 50_000
_PART = 1024  # texts whose inputs of maps are held at once, in float64


class TableFit(NamedTuple):
    """A fitted token table and what maps need of it.

    Attributes:
        table: The table, fitted to all texts.
        ridge: The λ of the map of token states that it started from.
        before: The mean token states of the held-out texts, [held out, hidden].
        after: Their means of the table.
        means: Of fitted texts, the means of a table that was fitted to the other half of the texts, [texts, hidden]. Maps
            would trust the table too much if they saw it on texts that it was fitted to; this is stacked generalisation
            (Wolpert, 1992). Zeros if no map takes the table.
    """

    table: TokenTable
    ridge: float
    before: np.ndarray
    after: np.ndarray
    means: np.ndarray


class TableFitter:
    """The tokens and targets of texts, and the token tables that are fitted to them.

    Args:
        encoder: An encoder.
        layers: The layers of the backbone that maps take beside the table; none if no map takes it.
    """

    def __init__(self, encoder: Any, layers: Sequence[int] = ()) -> None:
        self.layers = tuple(layers)
        self._special = frozenset(encoder.tokenizer.all_special_ids)
        self._states = tables.token_states(encoder)  # [vocabulary, hidden]
        self._moments = Moments.zeros(encoder.hidden_size, {0: self._states.shape[1]})
        # Of fitted texts: shares of tokens [texts, vocabulary], targets [texts, hidden], and {layer: outputs of length 1}.
        self._tokens: list[scipy.sparse.csr_matrix] = []
        self._targets: list[np.ndarray] = []
        self._outputs: list[dict[int, np.ndarray]] = []
        self._held_out: list[scipy.sparse.csr_matrix] = []

    @property
    def is_full(self) -> bool:
        """Whether more texts change nothing."""
        return sum(map(len, self._targets)) >= MAX_TEXTS

    def add(
        self, rows: Sequence[Sequence[int]], held: np.ndarray, target: np.ndarray, pooled: Mapping[int, np.ndarray]
    ) -> None:
        """Add texts.

        Args:
            rows: The token ids of each text.
            held: Whether a text is held out, [texts].
            target: The full embeddings of the others.
            pooled: {layer: pooled outputs} of the others.
        """
        tokens = tables.token_shares(rows, self._special, len(self._states))
        self._held_out.append(tokens[held])
        if not self.is_full:
            self._tokens.append(tokens[~held])
            self._targets.append(target.astype(np.float32))
            self._outputs.append({layer: unit(pooled[layer]).astype(np.float16) for layer in self.layers})
            self._moments.add({0: tokens[~held] @ self._states}, target)

    def fit(self, held_out_target: np.ndarray) -> TableFit:
        """Fit a table to all texts, and one to each half of them if maps take it.

        Args:
            held_out_target: The full embeddings of the held-out texts, [held out, hidden].

        Raises:
            UserError: There are too few texts, or their embeddings are constant or not finite.
        """
        held_out = scipy.sparse.vstack(self._held_out).tocsr()
        states = held_out @ self._states
        solution = fitting.solve(self._moments, {0: states}, held_out_target)
        tokens = scipy.sparse.vstack(self._tokens).tocsr()
        target = np.concatenate(self._targets)
        start = fitting.with_ones(self._states) @ solution.coefficients[0]
        others = (held_out, held_out_target @ solution.axes)
        rows = tables.refined_table(start, tokens, target @ solution.axes, *others)
        means = np.zeros(target.shape)
        half = np.random.default_rng(0).random(len(target)) < 0.5
        for fold in (half, ~half) if self.layers else ():
            fitted = tables.refined_table(start, tokens[~fold], target[~fold] @ solution.axes, *others)
            means[fold] = tokens[fold] @ fitted
        table = tables.token_table(rows, self._special)
        return TableFit(table, solution.ridges[0], states, held_out @ rows, means)

    def texts(self, means: np.ndarray) -> Iterator[tuple[dict[int, np.ndarray], np.ndarray]]:
        """Yield the fitted texts again, some at a time, in parts that do not depend on how they were added.

        Args:
            means: `TableFit.means`.

        Returns:
            {layer: its outputs}, 0 for the means, and the targets of each part.
        """
        outputs = {layer: np.concatenate([part[layer] for part in self._outputs]) for layer in self.layers}
        target = np.concatenate(self._targets)
        self._outputs, self._targets = [outputs], [target]  # so that nothing is held twice
        for first in range(0, len(target), _PART):
            part = slice(first, first + _PART)
            yield {0: means[part]} | {layer: found[part] for layer, found in outputs.items()}, target[part]

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that was added as named arrays, for a checkpoint; nothing before the first texts."""
        if not self._targets:
            return {}
        arrays = {
            "targets": np.concatenate(self._targets),
            "gram_0": self._moments.grams[0],
            "cross_0": self._moments.crosses[0],
            "table_target": self._moments.target,
            "table_count": np.array([self._moments.count]),
        }
        for layer in self.layers:
            arrays[f"outputs_{layer}"] = np.concatenate([part[layer] for part in self._outputs])
        for name, parts in (("tokens", self._tokens), ("held_out_tokens", self._held_out)):
            joined = scipy.sparse.vstack(parts).tocsr()
            arrays |= {f"{name}_{field}": getattr(joined, field) for field in ("data", "indices", "indptr")}
        return arrays

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned. Raises KeyError for arrays of another fit."""
        if "targets" not in arrays:
            return
        self._targets = [arrays["targets"]]
        self._moments.grams[0], self._moments.crosses[0] = arrays["gram_0"], arrays["cross_0"]
        self._moments.target, self._moments.count = arrays["table_target"], int(arrays["table_count"][0])
        self._outputs = [{layer: arrays[f"outputs_{layer}"] for layer in self.layers}]
        self._tokens, self._held_out = (
            [tables.sparse_from(arrays, name, len(self._states))] for name in ("tokens", "held_out_tokens")
        )
