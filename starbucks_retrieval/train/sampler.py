"""The order of training rows: a function of the seed and the epoch, over a mixture of data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from starbucks_retrieval.errors import UserError


@dataclass(frozen=True)
class Mixture:
    """The data sets of a run, as the sampler needs them.

    An epoch has as many rows as all data sets together. A data set's rows are used in passes without repetition, which
    continue from epoch to epoch, so all its rows are used equally often whatever its share is.

    Attributes:
        counts: Rows of each data set.
        weights: Their weights.
        exponent: The share of a data set is proportional to weight · rows^exponent.
        batch: Rows of a batch from one data set; 0 mixes the data sets.
    """

    counts: Sequence[int]
    weights: Sequence[float]
    exponent: float = 1.0
    batch: int = 0

    def __len__(self) -> int:
        """The number of rows of an epoch."""
        total = sum(self.counts)
        return total // self.batch * self.batch if self.batch else total

    @property
    def shares(self) -> np.ndarray:
        """The share of each data set, float64; they add up to 1.

        Example:
            >>> Mixture([100, 400], [1, 1], exponent=0.5).shares.round(3).tolist()
            [0.333, 0.667]
        """
        wanted = np.asarray(self.weights, np.float64) * np.asarray(self.counts, np.float64) ** self.exponent
        return wanted / wanted.sum()

    def check(self, names: Sequence[str]) -> None:
        """Raise UserError for a data set that is smaller than a batch from one data set."""
        for name, count in zip(names, self.counts):
            if count < self.batch:
                raise UserError(
                    f"{name} has {count} rows, fewer than the {self.batch} of a batch from one data set",
                    "lower the batch size, join it with another file, or drop --same_source_batches",
                )

    def order(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of an epoch.

        Args:
            seed: The seed.
            epoch: The epoch, from 0.

        Returns:
            For each row the pass over its data set, and its number over all data sets, both int64 [rows].
        """
        unit = self.batch or 1
        before, now = allocate(self.shares, len(self) // unit, epoch)
        starts = np.cumsum([0, *self.counts])
        passes, rows = [], []
        for number, count in enumerate(self.counts):
            first, stop = before[number] * unit, (before[number] + now[number]) * unit
            for one, chosen in self._passes(seed, number, count, int(first), int(stop)):
                passes.append(np.full(len(chosen), one))
                rows.append(starts[number] + chosen)
        joined = np.concatenate(passes), np.concatenate(rows)
        turn = np.random.default_rng([seed, epoch]).permutation(len(self) // unit)
        passes_in_order, rows_in_order = (found.reshape(-1, unit)[turn].reshape(-1) for found in joined)
        return passes_in_order, rows_in_order

    def _passes(self, seed: int, number: int, count: int, first: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (pass, rows) of a data set for its positions [first, stop) in the endless sequence of passes."""
        unit = self.batch or 1
        length = count // unit * unit  # a batch does not hold rows of two passes, which could be the same
        for one in range(first // length, -(-stop // length)):
            low, high = max(first - one * length, 0), min(stop - one * length, length)
            if not self.batch and (low, high) == (0, count):
                yield one, np.arange(count)  # the order is drawn for the whole epoch
                continue
            chosen = np.random.default_rng([seed, number, one]).permutation(count)[low:high]
            yield one, chosen if self.batch else np.sort(chosen)


def allocate(shares: np.ndarray, total: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Share the draws of an epoch, so that after each epoch every data set is within one draw of its share of all.

    Args:
        shares: The share of each data set; they add up to 1.
        total: Draws in an epoch.
        epoch: The epoch, from 0.

    Returns:
        The draws of each data set before the epoch and in it, int64 each.

    Example:
        >>> [allocate(np.array([0.75, 0.25]), 2, epoch)[1].tolist() for epoch in range(4)]
        [[2, 0], [1, 1], [2, 0], [1, 1]]
    """
    given = np.zeros(len(shares), np.int64)
    before, now = given, given
    for past in range(epoch + 1):
        before = given
        wanted = np.round(shares * total * (past + 1) - before, 6)  # a share is not whole by rounding errors alone
        now = np.floor(wanted.clip(min=0)).astype(np.int64)
        left = total - int(now.sum())
        order = np.argsort(now - wanted, kind="stable")
        if left > 0:
            now[order[:left]] += 1
        elif left < 0:
            now[[number for number in order[::-1] if now[number]][:-left]] -= 1
        given = before + now
    return before, now


@dataclass(eq=False)
class MixtureSampler(torch.utils.data.Sampler):
    """Yields (pass, row) pairs in an order that depends on the seed and the epoch only.

    Args:
        mixture: The data sets.
        seed: The seed.
        epoch: Called at the start of an epoch, returns its number.
    """

    mixture: Mixture
    seed: int
    epoch: Callable[[], int]

    def __len__(self) -> int:
        return len(self.mixture)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # Read here instead of set by set_epoch, which the data loader of a resumed run does not forward.
        passes, rows = self.mixture.order(self.seed, self.epoch())
        return ((int(one), int(row)) for one, row in zip(passes, rows))
