"""Batches for pre-training: an endless data set of masked sequences, and its collation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.data import Records
from starbucks_retrieval.data.documents import DocumentStream
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.pretrain import masks
from starbucks_retrieval.pretrain.windows import PAIRED, Cutter, Mode, Pieces, WholeWordTokenizer

_MASKS = 2  # separates these random generators from those of documents and windows


@dataclass
class MaskingCollator:
    """Pads sequences on the right and masks them.

    A call returns ids, attention_mask, encoder_ids and encoder_labels, all int64 [batch, T]; for a basic decoder also
    its masked decoder_ids and decoder_labels; for an enhanced decoder the unmasked decoder_ids, decoder_labels of all
    tokens except special ones, and visible, bool [batch, T, T]. Labels are -100 where nothing is predicted.

    Args:
        tokenizer: Gives the special tokens.
        masking: The masks.
        multiple: T is a multiple of this.
    """

    tokenizer: WholeWordTokenizer
    masking: masks.Masking
    multiple: int = 8

    def __call__(self, rows: Sequence[Pieces], rng: np.random.Generator) -> dict[str, Tensor]:
        ids, starts, lengths = self._padded(rows)
        maskable = self._text(lengths, ids.shape[1]) & ~self.tokenizer.special[ids]
        words = masks.find_words(starts, maskable, lengths)
        masking = self.masking
        count, most = words.sizes.shape
        orders = masks.random_order(count, most, rng), masks.random_order(count, most, rng)
        of_encoder, of_decoder = masks.choose_words(words, orders, masking)
        always = masking.replace == "always_mask"

        def masked(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            vocabulary = self.tokenizer.mask_id, self.tokenizer.vocab_size
            return masks.replace_tokens(ids, words.tokens(chosen), *vocabulary, rng, always)

        batch = {"ids": ids, "attention_mask": np.arange(ids.shape[1]) < lengths[:, None]}
        batch["encoder_ids"], batch["encoder_labels"] = masked(of_encoder)
        if masking.decoder == "basic":
            batch["decoder_ids"], batch["decoder_labels"] = masked(of_decoder)
        elif masking.decoder == "enhanced":
            batch["decoder_ids"] = ids
            batch["decoder_labels"] = np.where(maskable, ids, masks.IGNORED)
        tensors = {name: torch.from_numpy(values.astype(np.int64)) for name, values in batch.items()}
        if masking.decoder == "enhanced":
            tensors["visible"] = torch.from_numpy(
                masks.draw_visibility(
                    words, masking.decoder_probability, rng, masking.contexts, masking.max_predictions
                )
            )
        return tensors

    def _padded(self, rows: Sequence[Pieces]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids [batch, T], starts [batch, T] and lengths [batch], with special tokens around each text."""
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        head = len(prefix)
        lengths = np.array([head + len(pieces.ids) + len(suffix) for pieces in rows])
        longest = -(-int(lengths.max()) // self.multiple) * self.multiple
        ids = np.full((len(rows), longest), self.tokenizer.pad_id, dtype=np.int64)
        starts = np.zeros(ids.shape, dtype=bool)
        ids[:, :head] = prefix
        for row, start, pieces in zip(ids, starts, rows):
            end = head + len(pieces.ids)
            row[head:end] = pieces.ids
            row[end : end + len(suffix)] = suffix
            start[head:end] = pieces.starts
        return ids, starts, lengths

    def _text(self, lengths: np.ndarray, longest: int) -> np.ndarray:
        """bool [batch, T]: positions between the special tokens around each text."""
        positions = np.arange(longest)
        return (positions >= len(self.tokenizer.prefix)) & (positions < (lengths - len(self.tokenizer.suffix))[:, None])


class PretrainingData(torch.utils.data.IterableDataset):
    """An endless iterable of masked batches (see `MaskingCollator`), for one process of several.

    Every batch also holds `state`, int64 [3 + sources]: documents consumed, parts of the next document consumed, number
    of the next batch, and the documents of each source, -1 until all of them are consumed. A data set made with the
    state of a batch continues with the next batch, bit for bit; the number of processes and the batch size must be the
    same. Windows are seeded with (seed, epoch, document), masks with (seed, rank, batch).

    Iterate it directly, or through a DataLoader with batch_size=None and at most one worker. In modes spans and pairs,
    rows 2i and 2i + 1 come from the same document.

    Args:
        sources: Texts, read one after the other.
        tokenizer: A fast Hugging Face tokenizer.
        max_length: Tokens of a sequence, special tokens included.
        batch_size: Rows of a batch.
        masking: The masks.
        mode: How documents become sequences, see `Cutter`.
        pack: Blocks continue into the next document.
        least: Word pieces of the shortest sequence.
        shuffle: Documents that are shuffled together; 0 keeps their order.
        seed: Seeds the order, the windows and the masks.
        rank: Number of this process.
        world: Number of processes.
        state: The `state` of the batch to continue after.

    Raises:
        UserError: The state belongs to other sources, or spans do not fit the batch size; when iterated, more than one
            worker.
    """

    def __init__(
        self,
        sources: Sequence[Records[str]],
        tokenizer: Any,
        *,
        max_length: int,
        batch_size: int,
        masking: masks.Masking | None = None,
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
        if mode in PAIRED and batch_size % 2:
            raise UserError(
                f"{batch_size} {'spans' if mode == 'spans' else 'texts'} do not come in pairs",
                "take an even batch size",
            )
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.documents_read, self.parts_read, self.batch = state[:3] if state is not None else (0, 0, 0)
        lengths = [] if state is None else [None if length < 0 else length for length in state[3:]]
        self.documents = DocumentStream(sources, seed=seed, shuffle=shuffle, rank=rank, world=world, lengths=lengths)
        whole_words = WholeWordTokenizer(tokenizer)
        self.cutter = Cutter(whole_words, max_length, mode, seed=seed, pack=pack, least=least)
        self.collator = MaskingCollator(whole_words, masking or masks.Masking())

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise UserError("batches must keep their order", "set --dataloader_num_workers to 0 or 1")
        documents = self.documents.read(self.documents_read)
        sequences = self.cutter.sequences(documents, self.parts_read)
        batch = self.batch
        while True:
            rows = list(islice(sequences, self.batch_size))
            rng = np.random.default_rng([_MASKS, self.seed, self.rank, batch])
            tensors = self.collator([row.pieces for row in rows], rng)
            batch += 1
            position, part = rows[-1].after
            tensors["state"] = torch.tensor([position, part, batch, *self._passed(position)])
            yield tensors

    def _passed(self, position: int) -> list[int]:
        """The documents of each source that is consumed, -1 for the others, however far the stream was read ahead."""
        found, before = [], 0
        for length in self.documents.lengths:
            before += length or 0
            found.append(-1 if length is None or position <= before else length)
        return found
