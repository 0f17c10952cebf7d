"""Texts without labels, of a fit or of training: an equal number from each source, in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from starbucks_retrieval.data import Passage, Query, Records, join_text, open_corpus, open_queries
from starbucks_retrieval.data.documents import is_plain_text, open_documents
from starbucks_retrieval.data.records import count_records
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.config import EncoderConfig

T = TypeVar("T")

_BLOCKS = 10  # parts of a large source that are read: its beginning may be of one kind
_TURN = 64  # items of a stream before the next stream's turn
_JOINED = 8  # texts that are joined into a long one at most
_LONGEST = 512  # tokens of a joined text at most
_ALONE = 5  # runs of texts that stay alone for each run that is joined


@dataclass(frozen=True)
class TextSource:
    """A collection of texts, all queries or all passages.

    Attributes:
        name: The collection as the user wrote it.
        is_query: Whether its texts are queries.
        count: Its texts, None if they were not counted.
        records: The collection.
        text: Turns a record into the text that the model gets.
        id: Turns a record into its id; None where ids were not asked for.
    """

    name: str
    is_query: bool
    count: int | None
    records: Records[Any]
    text: Callable[[Any], str]
    id: Callable[[Any], str] | None = None

    @property
    def kind(self) -> str:
        """ "queries" or "passages"."""
        return "queries" if self.is_query else "passages"

    def read(self, quota: int) -> Iterator[Any]:
        """Yield up to `quota` records, in blocks that are spread over the collection if it is larger; empty ones too."""
        if self.count is None or self.count <= quota or quota < _BLOCKS:
            yield from self.records.rows(0, quota)
            return
        size = -(-quota // _BLOCKS)
        for block in range(_BLOCKS):
            start = self.count * block // _BLOCKS
            yield from self.records.rows(start, start + min(size, quota - block * size))


def open_sources(
    passages: Sequence[str],
    queries: Sequence[str],
    config: EncoderConfig,
    split: str | None = None,
    with_ids: bool = False,
) -> list[TextSource]:
    """Open the sources, passages first, and count them where that is cheap.

    Args:
        passages: Corpora and plain text files.
        queries: Query files.
        config: Has the prefixes and the separator of titles.
        split: Of BEIR folders: read only the queries that this split judges.
        with_ids: Every passage must have an id, so plain text is refused.

    Raises:
        UserError: A source is missing, has no texts or no ids, or cannot be read.
    """

    def passage_text(passage: Passage) -> str:
        return join_text(passage, config.passage_field_separator, config.passage_prefix).strip()

    def query_text(query: Query) -> str:
        return (config.query_prefix + query.text).strip()

    sources = []
    for name in passages:
        if not with_ids:
            documents = open_documents(name, separator=config.passage_field_separator)
            sources.append(_source(name, False, documents, lambda text: (config.passage_prefix + text).strip()))
        elif is_plain_text(name):
            raise UserError(
                f"{name} is plain text, which has no document ids", "give a corpus with ids, as jsonl or tsv"
            )
        else:
            sources.append(_source(name, False, open_corpus(name), passage_text, attrgetter("docid")))
    for name in queries:
        records = open_queries(name, split=split)
        sources.append(_source(name, True, records, query_text, attrgetter("query_id") if with_ids else None))
    return sources


def _source(
    name: str,
    is_query: bool,
    records: Records[Any],
    text: Callable[[Any], str],
    identify: Callable[[Any], str] | None = None,
) -> TextSource:
    if next(iter(records), None) is None:
        raise UserError(f"{name} holds no texts", "check the file and the split")
    found = count_records(records)
    return TextSource(name, is_query, found.number if found.exact else None, records, text, identify)


def quotas(counts: Sequence[int | None], total: int | None) -> list[int | None]:
    """Share a number of texts equally among sources; what a short source lacks goes to the others.

    Args:
        counts: Texts of each source, None if unknown.
        total: Texts in all; None takes all of them.

    Example:
        >>> quotas([1000, 40, None], 300)
        [130, 40, 130]
    """
    if total is None:
        return list(counts)
    shares: list[int | None] = [None] * len(counts)
    left, open_ones = total, list(range(len(counts)))
    while open_ones:
        share = left // len(open_ones)
        short = [i for i in open_ones if (count := counts[i]) is not None and count <= share]
        if not short:
            for i in open_ones:
                shares[i] = share
            break
        for i in short:
            shares[i] = counts[i]
            left -= counts[i] or 0
            open_ones.remove(i)
    return shares


def take_turns(streams: Sequence[Iterable[T]], turn: int = _TURN) -> Iterator[tuple[int, T]]:
    """Yield (number of its stream, item): some items of the first stream, then of the second, and so on until all end.

    Args:
        streams: The streams; they may have different lengths.
        turn: Items of a stream before the next stream's turn.

    Example:
        >>> list(take_turns(["abc", "de"], turn=2))
        [(0, 'a'), (0, 'b'), (1, 'd'), (1, 'e'), (0, 'c')]
    """
    open_streams = [(number, iter(stream)) for number, stream in enumerate(streams)]
    while open_streams:
        left = []
        for number, stream in open_streams:
            items = list(itertools.islice(stream, turn))
            yield from ((number, item) for item in items)
            if len(items) == turn:
                left.append((number, stream))
        open_streams = left


def mixed(
    sources: Sequence[TextSource], shares: Sequence[int | None], counts: list[int] | None = None
) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is a query) of all sources in turn, without empty texts.

    Args:
        sources: The sources.
        shares: The texts to read of each; None reads all.
        counts: The texts that were yielded of each source are added up here.
    """
    for number, _, text in mixed_records(sources, shares):
        if counts is not None:
            counts[number] += 1
        yield text, sources[number].is_query


def mixed_records(sources: Sequence[TextSource], shares: Sequence[int | None]) -> Iterator[tuple[int, Any, str]]:
    """Yield (number of the source, record, its text) of all sources in turn, without empty texts.

    Args:
        sources: The sources.
        shares: The texts to read of each; None reads all.
    """
    streams = [source.read(share) if share is not None else source.records for source, share in zip(sources, shares)]
    for number, record in take_turns(streams):
        if text := sources[number].text(record):
            yield number, record, text


def token_rows(
    encoder: Any, texts: Sequence[tuple[str, bool]], lengths: tuple[int, int] | None = None
) -> list[list[int]]:
    """Return the token ids of texts.

    Args:
        encoder: A `NestedEncoder`, whose tokenizer is used.
        texts: (text, whether it is a query); each is cut at the length of its kind.
        lengths: Tokens of a query and of a passage at most; None: those of the encoder.
    """
    longest = dict(zip((True, False), lengths or (encoder.max_length(True), encoder.max_length(False))))
    rows: list[list[int]] = [[] for _ in texts]
    for is_query in (False, True):
        positions = [i for i, (_, kind) in enumerate(texts) if kind is is_query]
        if positions:
            found = encoder.tokenize([texts[i][0] for i in positions], longest[is_query])
            for i, row in zip(positions, found):
                rows[i] = row
    return rows


def join_short(rows: Sequence[Sequence[int]], max_length: int, special: Iterable[int]) -> list[Sequence[int]]:
    """Join every sixth run of short texts into one long text.

    Args:
        rows: The token ids of each text.
        max_length: Tokens of a passage at most; joined texts have at most 512.
        special: Ids of special tokens, which a joined text has at its ends only.

    Returns:
        The rows, of which about a sixth are joined. They are unchanged where two average texts are too long for that.

    Example:
        >>> join_short([[1, token, 2] for token in range(10, 22)], max_length=6, special=[1, 2])[8:]
        [[1, 18, 2], [1, 19, 2], [1, 20, 21, 2]]
    """
    limit = min(max_length, _LONGEST)
    count = min(_JOINED, int(limit * len(rows) / max(1, sum(map(len, rows)))))
    if count < 2:
        return list(rows)
    ends = frozenset(special)
    result: list[Sequence[int]] = []
    alone = _ALONE * count
    for start in range(0, len(rows), alone + count):
        result += rows[start : start + alone]
        if parts := rows[start + alone : start + alone + count]:
            result.append(_joined(parts, limit, ends))
    return result


def _joined(parts: Sequence[Sequence[int]], limit: int, special: frozenset[int]) -> list[int]:
    first = next((i for i, token in enumerate(parts[0]) if token not in special), len(parts[0]))
    last = next((i for i, token in enumerate(reversed(parts[0])) if token not in special), 0)
    content = [token for part in parts for token in part if token not in special]
    tail = list(parts[0][len(parts[0]) - last :])
    return [*parts[0][:first], *content[: limit - first - len(tail)], *tail]
