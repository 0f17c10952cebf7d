"""The token table of layer 0: states of tokens, the tokens of texts, and the fit of the table to them.

The table holds one vector per token, whose mean over a text stands for the full embedding. It begins as the map of the
mean token states, folded into the table, and is then fitted further by least squares on the tokens of the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.sparse
import torch

from starbucks_retrieval.models.architectures import truncated_view
from starbucks_retrieval.models.pooling import PooledBackbone
from starbucks_retrieval.models.projections import TokenTable

_CHUNK = 4096  # tokens of the vocabulary whose states are computed at once
_POSITIONS = 16  # over which the state of a token is averaged
_STEPS = 32
_RIDGE = 0.02


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

    Conjugate gradients for the least squares of `tokens @ rows - target`, with a small ridge on the change; the
    iteration with the smallest error on held-out texts is taken. Tokens that do not occur keep their vector.
    Source: CGLS, Björck (1996), Numerical Methods for Least Squares Problems, section 7.4.

    Args:
        rows: The vectors to start from, [vocabulary, hidden].
        tokens: The share of each token in a text, [texts, vocabulary].
        target: The rotated full embeddings of the texts, [texts, hidden].
        held_out: The shares of other texts.
        held_out_target: Their rotated full embeddings.

    Returns:
        [vocabulary, hidden], float64.

    Example:
        >>> shares = scipy.sparse.csr_matrix(np.array([[1.0, 0.0], [0.5, 0.5]]))
        >>> refined_table(np.zeros((2, 1)), shares, np.array([[2.0], [3.0]]), shares, np.array([[2.0], [3.0]])).round(1)
        array([[2. ],
               [3.7]])
    """
    start, wide = np.asarray(rows, dtype=np.float64), tokens.astype(np.float64)
    across = wide.T.tocsr()
    change = np.zeros_like(start)
    error = np.asarray(target, dtype=np.float64) - wide @ start
    gradient = across @ error
    direction, norm = gradient, (gradient**2).sum(axis=0)
    best, smallest = start, _error(held_out, start, held_out_target)
    for _ in range(_STEPS):
        step = wide @ direction
        length = norm / np.maximum((step**2).sum(axis=0) + _RIDGE * (direction**2).sum(axis=0), 1e-300)
        change = change + length * direction
        error -= length * step
        gradient = across @ error - _RIDGE * change
        previous, norm = norm, (gradient**2).sum(axis=0)
        direction = gradient + norm / np.maximum(previous, 1e-300) * direction
        found = _error(held_out, start + change, held_out_target)
        if found < smallest:
            best, smallest = start + change, found
    return best


def _error(tokens: scipy.sparse.csr_matrix, rows: np.ndarray, target: np.ndarray) -> float:
    return float(((tokens @ rows - target) ** 2).sum())


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
    data, indices, starts = (arrays[f"{name}_{field}"] for field in ("data", "indices", "indptr"))
    return scipy.sparse.csr_matrix((data, indices, starts), shape=(len(starts) - 1, width))
