"""Batches for pre-training, without end, that go on after an interruption as if there had been none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.data import Records
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.pretrain.collate import MaskingCollator
from starbucks_retrieval.pretrain.documents import DocumentStream
from starbucks_retrieval.pretrain.masks import Masking
from starbucks_retrieval.pretrain.tokens import WholeWordTokenizer
from starbucks_retrieval.pretrain.windows import Cutter, Mode

_MASKS = 2  # sets this file's generators apart from those of documents and windows


class PretrainingData(torch.utils.data.IterableDataset):
    """An endless iterable of batches, those of MaskingCollator, for one process of `world`.

    Every batch also holds state, int64 [3 + sources]: documents consumed, parts of the next document consumed, number
    of the next batch, and the documents of each source, -1 until it was passed. Handing the state of a batch over, as a
    list, makes the first batch the one that followed it, bit for bit. Windows follow from (seed, epoch, document), masks from
    (seed, rank, batch): the number of processes and the batch size must stay as they were.

    Iterate it as it is, or through a DataLoader with batch_size=None and at most one worker. `shuffle` is the number of
    documents that are permuted among themselves, 0 keeps the order of the sources. In mode spans, rows 2i and 2i + 1
    are of one document. Raises UserError for a state of other sources, for spans in batches of odd size, and for more
    than one worker.
    """

    def __init__(
        self,
        sources: Sequence[Records[str]],
        tokenizer: Any,
        *,
        max_length: int,
        batch_size: int,
        masking: Masking | None = None,
        mode: Mode = "window",
        pack: bool = False,
        least: int = 5,
        shuffle: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        state: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if mode == "spans" and batch_size % 2:
            raise UserError(f"{batch_size} spans do not come in pairs", "take an even batch size")
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.documents_read, self.parts_read, self.batch = state[:3] if state is not None else (0, 0, 0)
        lengths = None if state is None else [None if length < 0 else length for length in state[3:]]
        self.documents = DocumentStream(sources, seed=seed, shuffle=shuffle, rank=rank, world=world, lengths=lengths)
        whole_words = WholeWordTokenizer(tokenizer)
        self.cutter = Cutter(whole_words, max_length, mode, seed=seed, pack=pack, least=least)
        self.collator = MaskingCollator(whole_words, masking or Masking())

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise UserError("the batches come in one order", "set --dataloader_num_workers to 0 or 1")
        documents = self.documents.read(self.documents_read)
        sequences = self.cutter.sequences(documents, self.parts_read)
        batch = self.batch
        while True:
            rows = list(islice(sequences, self.batch_size))
            tensors = self.collator(
                [row.pieces for row in rows], np.random.default_rng([_MASKS, self.seed, self.rank, batch])
            )
            batch += 1
            position, part = rows[-1].after
            tensors["state"] = torch.tensor([position, part, batch, *self._passed(position)])
            yield tensors

    def _passed(self, position: int) -> list[int]:
        """The documents of each source that the stream is past, -1 for the others, however far it was read ahead."""
        found, before = [], 0
        for length in self.documents.lengths:
            before += length or 0
            found.append(-1 if length is None or position <= before else length)
        return found
