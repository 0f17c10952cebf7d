"""The best scores of each query and their rows, kept while blocks of scores go by: on a CPU or a GPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
        self.rows = torch.zeros((queries, self.width), dtype=torch.int64, device=device)
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
            return
        found = self._above(scores, self.floor)
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

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores, descending, and rows: both [queries, min(count, rows added)]."""
        scores, order = self.scores.topk(min(self.count, self.seen), dim=1)
        return scores.cpu().numpy(), self.rows.gather(1, order).cpu().numpy()

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
        best, order = self.scores.topk(self.count, dim=1, sorted=False)
        self.scores[:, : self.count], self.rows[:, : self.count] = best, self.rows.gather(1, order)
        self.scores[:, self.count :] = -torch.inf
        self.filled.clamp_(max=self.count)
        least = best.min(dim=1, keepdim=True).values
        self.floor = least if self.floor is None else torch.maximum(self.floor, least)

    def _above(self, scores: Tensor, floor: Tensor) -> Tensor:
        """Return where scores [queries, rows] are above `floor` [queries, 1]: flat positions, ordered by query."""
        if scores.device.type != "cpu":
            return (scores > floor).view(-1).nonzero().squeeze(1)
        if self.mask.size < scores.numel():
            self.mask = np.empty(scores.numel(), bool)
        mask = self.mask[: scores.numel()]
        np.greater(scores.numpy(), floor.numpy(), out=mask.reshape(scores.shape))
        return torch.from_numpy(np.flatnonzero(mask))  # ten times as fast as torch where few are set
