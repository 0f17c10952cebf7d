"""Training on texts without labels: texts on disk, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.texts import TextSource, mixed_records, quotas, token_rows
from starbucks_retrieval.train.arrow_shard import mapped, spread_positions, write_table
from starbucks_retrieval.train.mixture import Mixture

_FILE = "texts.arrow"
_COLUMNS = ("text", "is_query", "row")


class Text(NamedTuple):
    """A text of a training set.

    Attributes:
        number: Its number in the set.
        text: The text, without a prefix.
        is_query: Whether it is a query.
        row: Its row in the teacher's stored embeddings, if there are any.
    """

    number: int
    text: str
    is_query: bool
    row: int | None = None

    def prefixed(self, config: EncoderConfig) -> str:
        """Return the text with the prefix of its kind in a configuration."""
        return ((config.query_prefix if self.is_query else config.passage_prefix) + self.text).strip()


class TextSet:
    """Texts of several sources, in an Arrow file that is mapped into memory, indexed by (epoch, row).

    Args:
        folder: Where the file is.
        config: Has the prefixes.
    """

    def __init__(self, folder: Path, config: EncoderConfig) -> None:
        self._table = mapped(folder / _FILE, _COLUMNS)
        self._config = config

    @staticmethod
    def write(
        sources: Sequence[TextSource],
        total: int | None,
        folder: Path,
        find_row: Callable[[bool, str, str], int] | None = None,
    ) -> None:
        """Write the file.

        Args:
            sources: The texts, without prefixes.
            total: How many, an equal number from each source; None takes all.
            folder: Where to write.
            find_row: `StoredRows.find` of a teacher's stored embeddings; None where there are none.

        Raises:
            UserError: The teacher has no embedding of a text.
        """
        import pyarrow as pa

        schema = pa.schema(list(zip(_COLUMNS, (pa.string(), pa.bool_(), pa.int64()))))

        def rows() -> Iterator[dict[str, Any]]:
            for number, record, text in mixed_records(sources, quotas([s.count for s in sources], total)):
                source, row = sources[number], None
                if find_row is not None:
                    assert source.id is not None
                    row = find_row(source.is_query, source.id(record), source.name)
                yield {"text": text, "is_query": source.is_query, "row": row}

        write_table(folder / _FILE, rows(), schema, "texts")

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: tuple[int, int]) -> Text:
        _, row = index
        found = self._table.slice(row, 1).to_pylist()[0]
        return Text(row, **found)

    def mixture(self, exponent: float = 1.0, batch: int = 0) -> Mixture:
        """Return what the sampler needs to know: the texts are mixed already, and count as one data set.

        Args:
            exponent: As in `Mixture`; with one data set it changes nothing.
            batch: As in `Mixture`.
        """
        return Mixture([len(self)], [1.0], exponent, batch)

    def sample(self, count: int) -> Iterator[Text]:
        """Yield up to `count` texts, spread over the set."""
        for row in spread_positions(len(self), count):
            yield self[0, int(row)]

    def sample_texts(self, count: int) -> Iterator[tuple[str, bool]]:
        """Yield the same texts with their prefixes, and whether they are queries."""
        for text in self.sample(count):
            yield text.prefixed(self._config), text.is_query


class TextCollator:
    """Tokenises texts without padding: token ids in one flat tensor, and tokens per text.

    Args:
        encoder: Its tokenizer is used.
        lengths: Tokens of a query and of a passage at most.
        taught: `Teacher.inputs` of another teacher, which is added to a batch; None without one.
    """

    def __init__(
        self,
        encoder: NestedEncoder,
        lengths: tuple[int, int],
        taught: Callable[[Sequence[Text]], dict[str, Tensor]] | None = None,
    ) -> None:
        self.encoder = encoder
        self.lengths = lengths
        self.taught = taught

    def __call__(self, texts: Sequence[Text]) -> dict[str, Any]:
        prefixed = [(text.prefixed(self.encoder.config), text.is_query) for text in texts]
        rows = token_rows(self.encoder, prefixed, self.lengths)
        taught = {} if self.taught is None else self.taught(texts)
        return taught | {
            "ids": torch.tensor([token for row in rows for token in row]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "query_ids": [f"text {text.number}" for text in texts],
        }
