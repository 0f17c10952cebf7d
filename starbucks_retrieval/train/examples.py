"""The examples of training, queries with passages or texts without labels, and batches of their token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Example:
    """One query with the passages of its group.

    Attributes:
        query: Its text.
        docids: The ids of the passages, the positive first.
        passages: Their texts.
        positives: The ids of all known positives of the query.
        query_id: Its id.
        scores: A teacher's scores, one per passage, if training uses them.
        label: The similarity of a scored pair.
        in_batch: Whether passages of other queries are negatives; None where all data sets agree.
        plain: The query and the passages without prefixes, if a guide reads them.
    """

    query: str
    docids: list[str]
    passages: list[str]
    positives: frozenset[str]
    query_id: str = ""
    scores: list[float] | None = None
    label: float | None = None
    in_batch: bool | None = None
    plain: list[Text] | None = None


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
            find_row: `row_finder` of a teacher's stored embeddings; None where there are none.

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


@dataclass
class Collator:
    """Tokenises a batch of examples without padding: queries first, then passages group by group.

    A call takes a list of examples and returns a dict with:

    - ids [tokens] and lengths [queries + passages]: token ids in one flat tensor, and tokens per text.
    - num_queries [].
    - docids [passages] and known [queries, most positives of one]: hashed ids of the passages, and of all positives of
      each query, padded with 0 (only zeros if false negatives are kept).
    - labels [queries] and teacher [queries, group], if the examples have them.
    - in_batch [queries], if data sets differ in it.
    - what the guide needs of the texts, in the same order, if there is one.
    - query_ids: a list, for messages.

    Args:
        encoder: Its tokenizer and maximum lengths are used.
        mask_false_negatives: Fill `known`.
        guided: `Teacher.inputs` of a guide, or None.
    """

    encoder: NestedEncoder
    mask_false_negatives: bool = True
    guided: Callable[[Sequence[Text]], dict[str, Tensor]] | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        encoder = self.encoder
        passages = [text for example in examples for text in example.passages]
        rows = encoder.tokenize([example.query for example in examples], encoder.max_length(True))
        rows += encoder.tokenize(passages, encoder.max_length(False))
        batch: dict[str, Any] = {
            **flat(rows),
            "num_queries": torch.tensor(len(examples)),
            "docids": torch.tensor([_hash(docid) for example in examples for docid in example.docids]),
            "known": self._known(examples),
            "query_ids": [example.query_id for example in examples],
        }
        if examples[0].label is not None:
            batch["labels"] = torch.tensor([example.label for example in examples])
        if examples[0].scores is not None:
            batch["teacher"] = torch.tensor([example.scores for example in examples])
        if examples[0].in_batch is not None:
            batch["in_batch"] = torch.tensor([example.in_batch for example in examples])
        if self.guided is not None:
            texts = [example.plain or [] for example in examples]
            batch |= self.guided([query for query, *_ in texts] + [text for _, *group in texts for text in group])
        return batch

    def _known(self, examples: Sequence[Example]) -> Tensor:
        if not self.mask_false_negatives:
            return torch.zeros(len(examples), 1, dtype=torch.int64)
        hashes = [sorted(map(_hash, example.positives)) for example in examples]
        widest = max(map(len, hashes))
        return torch.tensor([row + [0] * (widest - len(row)) for row in hashes])


def _hash(docid: str) -> int:
    """Return a hash of an id as int64, the same in every process; never 0."""
    return int.from_bytes(hashlib.blake2b(docid.encode(), digest_size=8).digest(), "little", signed=True) or 1


@dataclass
class TextCollator:
    """Tokenises texts without padding: token ids in one flat tensor, and tokens per text.

    Args:
        encoder: Its tokenizer is used.
        lengths: Tokens of a query and of a passage at most.
        taught: `Teacher.inputs` of another teacher, which is added to a batch; None without one.
    """

    encoder: NestedEncoder
    lengths: tuple[int, int]
    taught: Callable[[Sequence[Text]], dict[str, Tensor]] | None = None

    def __call__(self, texts: Sequence[Text]) -> dict[str, Any]:
        prefixed = [(text.prefixed(self.encoder.config), text.is_query) for text in texts]
        taught = {} if self.taught is None else self.taught(texts)
        names = [f"text {text.number}" for text in texts]
        return taught | flat(token_rows(self.encoder, prefixed, self.lengths)) | {"query_ids": names}


def flat(rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return `ids` [tokens], the token ids of several texts in one tensor, and `lengths` [texts], the tokens of each."""
    return {
        "ids": torch.tensor([token for row in rows for token in row]),
        "lengths": torch.tensor([len(row) for row in rows]),
    }
