"""Training on texts without labels: texts on disk, batches of them, and the module that distils."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.losses.batch import Batch, Loss
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.texts import TextSource, mixed, quotas, token_rows
from starbucks_retrieval.train.arrow_shard import mapped, spread_positions, write_table
from starbucks_retrieval.train.module import TrainingModule
from starbucks_retrieval.train.projections import touch_unused
from starbucks_retrieval.trainer.distributed import gather, gather_layers, rank, world

_FILE = "texts.arrow"


class Text(NamedTuple):
    """A text of a training set: its number, the text with its prefix, and whether it is a query."""

    number: int
    text: str
    is_query: bool


class TextSet:
    """Texts of several sources, in an Arrow file that is mapped into memory, indexed by (epoch, row).

    Args:
        folder: Where the file is.
    """

    def __init__(self, folder: Path) -> None:
        self._table = mapped(folder / _FILE)

    @staticmethod
    def write(sources: Sequence[TextSource], total: int | None, folder: Path) -> None:
        """Write the file.

        Args:
            sources: The texts.
            total: How many, an equal number from each source; None takes all.
            folder: Where to write.
        """
        import pyarrow as pa

        schema = pa.schema([("text", pa.string()), ("is_query", pa.bool_())])
        shares = quotas([source.count for source in sources], total)
        rows = ({"text": text, "is_query": is_query} for text, is_query in mixed(sources, shares))
        write_table(folder / _FILE, rows, schema, "texts")

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: tuple[int, int]) -> Text:
        _, row = index
        found = self._table.slice(row, 1).to_pylist()[0]
        return Text(row, found["text"], found["is_query"])

    def sample_texts(self, count: int) -> Iterator[tuple[str, bool]]:
        """Yield up to `count` texts, spread over the set, with whether they are queries."""
        for row in spread_positions(len(self), count):
            _, text, is_query = self[0, int(row)]
            yield text, is_query


class TextCollator:
    """Tokenises texts without padding: token ids in one flat tensor, and tokens per text.

    Args:
        encoder: Its tokenizer is used.
        lengths: Tokens of a query and of a passage at most.
    """

    def __init__(self, encoder: NestedEncoder, lengths: tuple[int, int]) -> None:
        self.encoder = encoder
        self.lengths = lengths

    def __call__(self, texts: Sequence[Text]) -> dict[str, Any]:
        rows = token_rows(self.encoder, [(text.text, text.is_query) for text in texts], self.lengths)
        return {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "query_ids": [f"text {text.number}" for text in texts],
        }


class DistilModule(TrainingModule):
    """Encodes texts, with the encoder and with the frozen one, and applies an objective without labels.

    Its `anchor` is the frozen encoder whose full embeddings are the targets.
    """

    def forward(self, ids: Tensor, lengths: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """Return the loss of a batch from a `TextCollator`.

        Args:
            ids: int64 [tokens], the token ids of all texts one after the other.
            lengths: int64 [texts], tokens of each text.

        Returns:
            `loss`, a scalar tensor, and `parts`, the detached parts of it by name.
        """
        drawn = self.objective.draw(np.random.default_rng(self.step))
        rows = [row.tolist() for row in ids.cpu().split(lengths.tolist())]
        pooled = self.pooled_layers(self.encoder, rows, self.objective.layers(drawn)[0], ids.device)
        frozen = self._frozen(rows, ids.device)
        with torch.autocast(ids.device.type, enabled=False):
            loss = self.objective(self._text_batch(pooled, frozen), drawn)
            untouched = touch_unused(self.encoder.projections, pooled)
            if untouched is not None:
                loss = Loss(loss.total + untouched, loss.parts)
        return {"loss": loss.total, "parts": loss.parts}

    @torch.no_grad()
    def _frozen(self, rows: list[list[int]], device: torch.device) -> Tensor:
        (teacher,) = self._anchor
        assert teacher is not None
        return self.pooled_layers(teacher.to(device), rows, (teacher.num_layers,), device)[teacher.num_layers]

    def _text_batch(self, pooled: dict[int, Tensor], frozen: Tensor) -> Batch:
        if world() == 1 or not self.cross_device:
            return Batch(pooled, pooled, frozen_queries=frozen, frozen_passages=frozen)
        everywhere, targets = gather_layers(pooled), gather(frozen)
        if not self.objective.options.by_query:
            return Batch(everywhere, everywhere, frozen_queries=targets, frozen_passages=targets)
        offset = rank() * len(frozen)
        return Batch(pooled, everywhere, group=1, offset=offset, frozen_queries=frozen, frozen_passages=targets)
