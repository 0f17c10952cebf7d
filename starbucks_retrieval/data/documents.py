"""Documents for pre-training: an endless stream of texts, shared among processes, that resumes at any position."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from starbucks_retrieval.data import Passage, Records, join_text
from starbucks_retrieval.data.fields import TEXT, TITLE, BadRow, as_text, string
from starbucks_retrieval.data.formats import decode, raw_lines
from starbucks_retrieval.data.groups import group_from
from starbucks_retrieval.data.sources import Collection, as_path, find_path, find_rows
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

PAIR = "\x1f"  # between the two texts of a pair; ASCII's unit separator
_PAIRS = {2: ("query", "positive"), 3: ("query", "positive", "negative")}
_TSV = {1: ("text",), 2: ("docid", "text"), 3: ("docid", "title", "text")}
_ORDER = 3  # separates these random generators from those of windows and masks


class Document(NamedTuple):
    """One document of a stream.

    Attributes:
        position: Number of documents before it, of all processes and epochs.
        epoch: From 0.
        number: Number of documents before it in its epoch.
        text: The document.
    """

    position: int
    epoch: int
    number: int
    text: str


def open_documents(
    collection: Collection,
    *,
    column: str | None = None,
    paragraphs: bool = False,
    separator: str = " ",
    config: str | None = None,
    split: str | None = None,
) -> Records[str]:
    """Open documents without reading them.

    Args:
        collection: A .txt or .txt.gz file with one document a line, or a corpus (jsonl, Parquet, csv, tsv, BEIR or Arrow
            folder, `ir:` id, short name, Hugging Face data set), whose ids are not needed.
        column: The column of the text; text or contents by default.
        paragraphs: Documents of a .txt file are separated by blank lines.
        separator: Between title and text.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set.

    Raises:
        UserError: The file is missing or of an unknown format, or `paragraphs` is set for another format.
    """
    collection = as_path(collection)
    if is_plain_text(collection):
        path = find_path(collection)
        assert path is not None  # find_path raises for a missing .txt file
        read = partial(_rows, path, _groups if paragraphs else raw_lines)
        return Records(collection, str(path), read, itemgetter("text"))
    if paragraphs:
        raise UserError(f"{collection} has no paragraphs: it is not a .txt file", "leave --paragraphs out for it")
    rows = find_rows(collection, "corpus", _TSV, config, split)
    return Records(collection, rows.source, rows.read, partial(_joined, (column,) if column else TEXT, separator))


def open_text_pairs(collection: Collection, *, config: str | None = None, split: str | None = None) -> Records[str]:
    """Open pairs of texts with one meaning, such as the sentences of an entailment, without reading them.

    Args:
        collection: Training groups with their texts, as `open_groups` reads them; the first positive counts, negatives do
            not.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set.

    Returns:
        Each pair as one text, with `PAIR` between the two.

    Raises:
        UserError: As for `open_groups`; iterating also raises it for rows that hold ids instead of texts.
    """
    collection = as_path(collection)
    rows = find_rows(collection, "groups", _PAIRS, config, split)
    return Records(collection, rows.source, rows.read, _pair)


def _pair(row: dict[str, Any]) -> str:
    group = group_from(row)
    if group.passages is None:
        raise BadRow("the row holds ids of passages, not their texts", "write the columns anchor and positive")
    positive = group.passages[group.positive_ids[0]]
    return PAIR.join(text.replace(PAIR, " ") for text in (group.query, join_text(positive)))


@dataclass
class DocumentStream:
    """An endless stream over several sources, one after the other, in a fixed order.

    A position is one integer, the number of documents before it over all epochs. Process `rank` of `world` reads the
    documents rank, rank + world, … of each epoch.

    Args:
        sources: The texts.
        seed: Seeds the order.
        shuffle: Documents of a block that is held in memory and shuffled; 0 keeps the order.
        rank: Number of this process.
        world: Number of processes.
        lengths: Documents of each source, None if unknown; [] if all are. Lengths of an earlier run save counting them again.

    Raises:
        UserError: There is no source, or their number differs from that of `lengths`.
    """

    sources: Sequence[Records[str]]
    _: KW_ONLY
    seed: int = 0
    shuffle: int = 0
    rank: int = 0
    world: int = 1
    lengths: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("no documents to read", "name at least one file or data set")
        self.lengths = list(self.lengths) or [None] * len(self.sources)
        if len(self.lengths) != len(self.sources):
            problem = f"{len(self.sources)} sources of documents, where the run began with {len(self.lengths)}"
            raise UserError(problem, "name the same sources in the same order, or start a new run")

    def count(self) -> int:
        """Return the documents of one epoch, empty ones included; sources of unknown length are read."""
        for i, source in enumerate(self.sources):
            if self.lengths[i] is None:
                self.lengths[i] = sum(1 for _ in source)
        return sum(length or 0 for length in self.lengths)

    def read(self, position: int = 0) -> Iterator[Document]:
        """Yield this process's documents from `position` on, without end; earlier documents are not parsed.

        Raises:
            UserError: There are no documents, or fewer than processes, or a source has changed its length.
        """
        epoch, start = self._epoch_and_number(position)
        first = position - start  # position of the epoch's first document
        while True:
            found = False
            for number, text in self._order(epoch, start):
                if number % self.world == self.rank:
                    found = True
                    yield Document(first + number, epoch, number, text)
            total = self.count()
            if not found and total <= self.rank:
                problem = f"{self.world} processes share {total} documents"
                raise UserError(problem, "use fewer processes, or name more documents")
            epoch, start, first = epoch + 1, 0, first + total
            log.info("all %d documents were read; epoch %d begins", total, epoch + 1)

    def _epoch_and_number(self, position: int) -> tuple[int, int]:
        """(epoch, number within it) of a position, without counting later sources."""
        before = 0
        for i, source in enumerate(self.sources):
            start = position - before
            if self.lengths[i] is None and next(source.rows(start, start + 1), None) is None:
                self.lengths[i] = sum(1 for _ in source)
            length = self.lengths[i]
            if length is None or start < length:
                return 0, position
            before += length
        if not before:
            raise UserError(f"{', '.join(source.name for source in self.sources)}: no documents", "check the files")
        return divmod(position, before)

    def _order(self, epoch: int, number: int) -> Iterator[tuple[int, str]]:
        """(number, text) of an epoch's documents from `number` on."""
        if not self.shuffle:
            yield from enumerate(self._texts(number), number)
            return
        block = number // self.shuffle
        texts = self._texts(block * self.shuffle)
        while held := list(islice(texts, self.shuffle)):
            order = np.random.default_rng([_ORDER, self.seed, epoch, block]).permutation(len(held))
            first = block * self.shuffle
            for i in range(max(number - first, 0), len(held)):
                yield first + i, held[order[i]]
            block += 1

    def _texts(self, start: int) -> Iterator[str]:
        """The texts of one epoch from its document number `start` on, in the order of the sources."""
        before = 0
        for i, source in enumerate(self.sources):
            length = self.lengths[i]
            if length is None or before + length > start:
                count = max(start - before, 0)
                for text in source.rows(count):
                    yield text
                    count += 1
                if length is not None and count != length:
                    problem = f"{source.name} holds {count} documents, and held {length} before"
                    raise UserError(problem, "a source must not change during a run: restore it, or start a new run")
                self.lengths[i] = length = count
            before += length


def is_plain_text(collection: str) -> bool:
    """Return whether a collection is a .txt or .txt.gz file, which has one text a line and no ids."""
    return Path(collection.removesuffix(".gz")).suffix == ".txt" and not collection.startswith("ir:")


def _joined(names: tuple[str, ...], separator: str, row: dict[str, Any]) -> str:
    title = "" if names == TITLE else as_text(row.get(TITLE[0]), TITLE[0])
    return join_text(Passage("", title, string(row, names)), separator)


def _rows(path: Path, texts: Any, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, raw in islice(texts(path), start, stop):
        yield number, {"text": decode(raw, path, number)}


def _groups(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, bytes) of each run of lines that are not blank."""
    first = last = 0
    held: list[bytes] = []
    for number, raw in raw_lines(path):
        blank = not raw.strip()
        if held and (blank or number != last + 1):  # raw_lines skips empty lines: a gap in the numbers is a blank line
            yield first, b"\n".join(held)
            held = []
        if not blank:
            first = first if held else number
            held.append(raw)
        last = number
    if held:
        yield first, b"\n".join(held)
