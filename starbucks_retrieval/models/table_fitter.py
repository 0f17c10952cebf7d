"""The token table of layer 0, fitted to texts, and what the maps that take it as an input are fitted from.

The table holds one vector per token, whose mean over a text stands for the full embedding. It begins as the map of the
mean token states, folded into the table, and is then fitted further by least squares on the tokens of the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch

from starbucks_retrieval.models import fitting
from starbucks_retrieval.models.architectures import truncated_view
from starbucks_retrieval.models.fitting import Moments, unit
from starbucks_retrieval.models.layer_maps import TokenTable
from starbucks_retrieval.models.pooling import PooledBackbone

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
        self._states = token_states(encoder)  # [vocabulary, hidden]
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
        tokens = token_shares(rows, self._special, len(self._states))
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
        rows = refined_table(start, tokens, target @ solution.axes, *others)
        means = np.zeros(target.shape)
        half = np.random.default_rng(0).random(len(target)) < 0.5
        for fold in (half, ~half) if self.layers else ():
            fitted = refined_table(start, tokens[~fold], target[~fold] @ solution.axes, *others)
            means[fold] = tokens[fold] @ fitted
        table = token_table(rows, self._special)
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
            [sparse_from(arrays, name, len(self._states))] for name in ("tokens", "held_out_tokens")
        )


_CHUNK = 4096  # tokens of the vocabulary whose states are computed at once
_POSITIONS = 16  # over which the state of a token is averaged
_STEPS = 12
_RIDGE = 0.02
_TINY = 1e-30  # against division by zero


def token_shares(rows: Sequence[Sequence[int]], special: frozenset[int], vocabulary: int) -> scipy.sparse.csr_matrix:
    """Return the share that each token has of the tokens of a text, special ones left out.

    Args:
        rows: The token ids of each text.
        special: Ids of special tokens.
        vocabulary: The number of tokens.

    Returns:
        float32 [texts, vocabulary]; each row sums to 1, or to 0 without other than special tokens.

    Example:
        >>> token_shares([[0, 2, 2, 3], [0]], frozenset([0]), 4).toarray().round(2).tolist()
        [[0.0, 0.0, 0.6700000166893005, 0.33000001311302185], [0.0, 0.0, 0.0, 0.0]]
    """
    content = [[token for token in row if token not in special] for row in rows]
    starts = np.cumsum([0, *map(len, content)])
    shares = np.repeat([1 / max(1, len(row)) for row in content], [len(row) for row in content]).astype(np.float32)
    tokens = np.array([token for row in content for token in row], dtype=np.int64)
    found = scipy.sparse.csr_matrix((shares, tokens, starts), shape=(len(rows), vocabulary))
    found.sum_duplicates()
    return found


@torch.no_grad()
def token_states(encoder: PooledBackbone) -> np.ndarray:
    """Return the output of the embedding layer for each token, averaged over positions after the first.

    Returns:
        float32 [vocabulary, hidden].
    """
    view = truncated_view(encoder.backbone, encoder.layout, 0)
    count = int(encoder.backbone.get_input_embeddings().weight.shape[0])
    states = []
    for ids in torch.arange(count, device=encoder.device).split(_CHUNK):
        repeated = ids.unsqueeze(1).expand(-1, _POSITIONS).contiguous()
        output = view(input_ids=repeated, attention_mask=torch.ones_like(repeated))
        states.append(output.last_hidden_state[:, 1:].float().mean(dim=1).cpu())
    return torch.cat(states).numpy()


def refined_table(
    rows: np.ndarray,
    tokens: scipy.sparse.csr_matrix,
    target: np.ndarray,
    held_out: scipy.sparse.csr_matrix,
    held_out_target: np.ndarray,
) -> np.ndarray:
    """Fit the vectors of tokens to the embeddings of texts, starting from mapped token states.

    Conjugate gradients for the least squares of `tokens @ rows - target`, with a small ridge on the change, scaled by how
    often a token occurs, so that few iterations are enough; the iteration with the smallest error on held-out texts is
    taken. Tokens that do not occur keep their vector. Source: CGLS and its preconditioning, Björck (1996), Numerical
    Methods for Least Squares Problems, section 7.4.

    Args:
        rows: The vectors to start from, [vocabulary, hidden].
        tokens: The share of each token in a text, [texts, vocabulary].
        target: The rotated full embeddings of the texts, [texts, hidden].
        held_out: The shares of other texts.
        held_out_target: Their rotated full embeddings.

    Returns:
        [vocabulary, hidden], float32.

    Example:
        >>> shares = scipy.sparse.csr_matrix(np.array([[1.0, 0.0], [0.5, 0.5]]))
        >>> refined_table(np.zeros((2, 1)), shares, np.array([[2.0], [3.0]]), shares, np.array([[2.0], [3.0]])).round(1)
        array([[1.9],
               [3.9]], dtype=float32)
    """
    table = np.array(rows, dtype=np.float32)
    occurring = np.unique(tokens.indices)
    shares = tokens.tocsc()[:, occurring]
    scale = 1 / np.sqrt(np.asarray(shares.multiply(shares).sum(axis=0)).ravel() + _RIDGE)
    scaling = scipy.sparse.diags(scale)
    forward, held = _Sparse(shares @ scaling), _Sparse(held_out.tocsc()[:, occurring] @ scaling)
    across = _Sparse((shares @ scaling).T)
    ridge = torch.from_numpy((_RIDGE * scale**2).astype(np.float32)).unsqueeze(1)
    error = torch.from_numpy((target - tokens @ table).astype(np.float32))
    held_error = torch.from_numpy((held_out_target - held_out @ table).astype(np.float32))
    change = torch.zeros(len(occurring), table.shape[1])
    gradient = across @ error
    direction, norm = gradient, (gradient**2).sum(dim=0)
    best, smallest = change, float((held_error**2).sum())
    for _ in range(_STEPS):
        step = forward @ direction
        curvature = (step**2).sum(dim=0) + (ridge * direction**2).sum(dim=0)
        length = norm / curvature.clamp(min=_TINY)
        change = change + length * direction
        error -= length * step
        gradient = across @ error - ridge * change
        previous, norm = norm, (gradient**2).sum(dim=0)
        direction = gradient + norm / previous.clamp(min=_TINY) * direction
        found = float(((held_error - held @ change) ** 2).sum())
        if found < smallest:
            best, smallest = change, found
    table[occurring] += scale.astype(np.float32)[:, None] * best.numpy()
    return table


class _Sparse:
    """A sparse matrix whose product with a dense one is computed in float32 on all cores."""

    def __init__(self, matrix: scipy.sparse.spmatrix) -> None:
        rows = matrix.tocsr()
        self._columns = torch.from_numpy(rows.indices.astype(np.int64))
        self._starts = torch.from_numpy(rows.indptr[:-1].astype(np.int64))
        self._values = torch.from_numpy(rows.data.astype(np.float32))

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(
            self._columns, dense, self._starts, mode="sum", per_sample_weights=self._values
        )


def token_table(rows: np.ndarray, special: Iterable[int]) -> TokenTable:
    """Return the token table of layer 0 in float32, with zeros for the tokens that do not count.

    Args:
        rows: [vocabulary, hidden].
        special: Ids of the tokens that do not count.
    """
    counted = rows.copy()
    counted[[token for token in special if token < len(rows)]] = 0
    return TokenTable(torch.from_numpy(counted).float())


def sparse_from(arrays: Mapping[str, np.ndarray], name: str, width: int) -> scipy.sparse.csr_matrix:
    """Return a sparse matrix [rows, width] from the arrays `NAME_data`, `NAME_indices` and `NAME_indptr` of a file."""
    data, indices, starts = (arrays[f"{name}_{field}"] for field in ("data", "indices", "indptr"))
    return scipy.sparse.csr_matrix((data, indices, starts), shape=(len(starts) - 1, width))
