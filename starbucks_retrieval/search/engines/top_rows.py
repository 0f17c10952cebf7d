"""The best scores of each query and their rows, kept while blocks of scores go by: on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.ranking import largest


class TopRows:
    """Keeps the best `count` scores of each query, with their rows, while blocks of scores are added.

    Args:
        queries: Number of queries.
        count: Rows to keep per query.
        device: Where the lists are kept.
        floor: [queries, 1]: scores that are not above it are skipped from the beginning. A query with fewer than `count`
            scores above it has -inf at the end of its list.
    """

    def __init__(self, queries: int, count: int, device: torch.device, floor: Tensor | None = None) -> None:
        self.count = count
        self.width = 3 * count  # twice `count`, and what one block may add
        self.scores = torch.full((queries, self.width), -torch.inf, device=device)
        self.rows = torch.empty((queries, self.width), dtype=torch.int64, device=device)
        self.filled = torch.zeros(queries, dtype=torch.int64, device=device)
        self.first = torch.arange(queries, device=device) * self.width  # of each list, in all of them
        self.floor = floor  # of scores to skip; None until `count` rows are kept
        self.seen = 0
        self.mask = np.empty(0, bool)  # a buffer: allocating one for each block takes longer than comparing

    def add(self, start: int, scores: Tensor) -> None:
        """Add scores [queries, rows], contiguous, of the consecutive rows from `start`."""
        scores = scores.float()
        self.seen += scores.shape[1]
        if self.floor is None:
            self._take_best(start, scores)
        else:
            self._append_above(start, scores, self.floor)

    def _append_above(self, start: int, scores: Tensor, floor: Tensor) -> None:
        found = self._above(scores, floor)
        query = found // scores.shape[1]
        per_query = torch.bincount(query, minlength=len(scores))
        most = int(per_query.max())
        if most > self.count:
            self._take_best(start, scores)
        elif most:
            self._reserve(per_query)
            place = (self.first + self.filled - torch.cumsum(per_query, 0) + per_query).gather(0, query)
            place += torch.arange(len(query), device=query.device)
            self.scores.view(-1).scatter_(0, place, scores.view(-1).gather(0, found))
            self.rows.view(-1).scatter_(0, place, found - query * scores.shape[1] + start)
            self.filled += per_query

    def _take_best(self, start: int, scores: Tensor) -> None:
        values, rows = scores.topk(min(self.count, scores.shape[1]), dim=1, sorted=False)
        self._reserve(torch.full_like(self.filled, values.shape[1]))
        place = (self.first + self.filled)[:, None] + torch.arange(values.shape[1], device=rows.device)
        self.scores.view(-1)[place] = values
        self.rows.view(-1)[place] = rows + start
        self.filled += values.shape[1]
        if self.floor is None and self.seen >= self.count:
            self._keep_best()

    def _reserve(self, added: Tensor) -> None:
        """Make room for so many more scores of each query, at most `count`."""
        if int((self.filled + added).max()) > self.width:
            self._keep_best()

    def _keep_best(self) -> None:
        best, rows = _largest(*self.filled_part(self.count), self.count)
        self.scores[:, : self.count], self.rows[:, : self.count] = best, rows
        self.scores[:, self.count :] = -torch.inf
        self.filled.clamp_(max=self.count)
        least = best.min(dim=1, keepdim=True).values
        self.floor = least if self.floor is None else torch.maximum(self.floor, least)

    def filled_part(self, least: int) -> tuple[Tensor, Tensor]:
        """Return the scores of all lists and their rows, as far as one is filled and at least `least`: [queries, any]."""
        used = max(least, int(self.filled.max()))
        return self.scores[:, :used], self.rows[:, :used]

    def _above(self, scores: Tensor, floor: Tensor) -> Tensor:
        """Return where scores [queries, rows] are above `floor` [queries, 1]: flat positions, ordered by query."""
        if scores.device.type != "cpu":
            return (scores > floor).view(-1).nonzero().squeeze(1)
        if self.mask.size < scores.numel():
            self.mask = np.empty(scores.numel(), bool)
        mask = self.mask[: scores.numel()]
        np.greater(scores.numpy(), floor.numpy(), out=mask.reshape(scores.shape))
        return torch.from_numpy(np.flatnonzero(mask))  # ten times as fast as torch where few are set


def merged(parts: Sequence[TopRows]) -> tuple[np.ndarray, np.ndarray]:
    """Return the best scores, descending, of lists that saw different rows, and their rows: [queries, min(count, rows seen)]."""
    count = min(parts[0].count, sum(part.seen for part in parts))
    scores, rows = (torch.cat(lists, dim=1) for lists in zip(*(p.filled_part(min(count, p.seen)) for p in parts)))
    best, found = (part.cpu().numpy() for part in _largest(scores, rows, count))
    order = np.argsort(-best, axis=1)
    return np.take_along_axis(best, order, 1), np.take_along_axis(found, order, 1)


def _largest(scores: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest scores [queries, count] in any order, and their rows."""
    if scores.device.type == "cpu":  # NumPy selects in a tenth of torch's time
        best, found = largest(scores.numpy(), rows.numpy(), count)
        return torch.from_numpy(best), torch.from_numpy(found)
    best, order = scores.topk(count, dim=1, sorted=False)
    return best, rows.gather(1, order)
