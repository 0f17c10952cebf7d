"""Split documents into passages that a model reads whole."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from starbucks_retrieval.data import Passage

#: Returns the number of tokens of each text, without special tokens.
CountTokens = Callable[[Sequence[str]], list[int]]

_BATCH = 256  # documents that are tokenised together
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\n")
_WORD = re.compile(r"\s+")
_HEADING = re.compile(r"\s*#{1,6}\s[^\n]*\s*")


def split_documents(documents: Iterable[Passage], room: int, count: CountTokens) -> Iterator[list[Passage]]:
    """Yield the passages of each document, none for a document without text.

    A document of at most `room` tokens, title included, is one passage with the document's id. A longer one is split as
    `split_text` says; passage n has the id `docid#n`, and each has the title.

    Args:
        documents: The documents.
        room: Tokens of a passage at most.
        count: Counts tokens.
    """
    stream = iter(documents)
    while batch := list(islice(stream, _BATCH)):
        texts = count([document.text for document in batch])
        titles = count([document.title for document in batch])
        for document, text_tokens, title_tokens in zip(batch, texts, titles):
            if not (document.text or document.title):
                yield []
            elif text_tokens + title_tokens <= room:
                yield [document]
            elif title_tokens > room // 2:  # no title, but a text in the wrong column
                parts = split_text(f"{document.title}\n\n{document.text}".strip(), room, count)
                yield [Passage(f"{document.docid}#{n}", "", part) for n, part in enumerate(parts, 1)]
            else:
                parts = split_text(document.text, room - title_tokens, count)
                yield [Passage(f"{document.docid}#{n}", document.title, part) for n, part in enumerate(parts, 1)]


def split_text(text: str, room: int, count: CountTokens) -> list[str]:
    """Split a text into parts of about equal length, between paragraphs where they are short enough.

    A paragraph that is longer than `room` is split between sentences, a sentence between words, and a word that is too
    long between characters. A heading of markdown stays with the paragraph below it.

    Args:
        text: The text.
        room: Tokens of a part at most.
        count: Counts tokens.

    Example:
        >>> by_words = lambda texts: [len(text.split()) for text in texts]
        >>> split_text("Hens lay eggs. They eat corn.\\n\\nDucks swim.", 6, by_words)
        ['Hens lay eggs. They eat corn.', 'Ducks swim.']
    """
    units = _units(_paragraphs(text), room, count, (_SENTENCE, _WORD))
    total = sum(tokens for _, tokens in units)
    target = total / max(1, math.ceil(total / room))
    parts: list[str] = []
    current, size = "", 0
    for unit, tokens in units:
        if current and (size + tokens > room or size >= target):
            parts.append(current)
            current, size = "", 0
        current, size = current + unit, size + tokens
    return [part.strip() for part in (*parts, current) if part.strip()]


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs with the white space after them; a heading is joined with what follows."""
    found = _cut(text, _PARAGRAPH)
    joined: list[str] = []
    for paragraph in found:
        if joined and _HEADING.fullmatch(joined[-1]):
            joined[-1] += paragraph
        else:
            joined.append(paragraph)
    return joined


def _units(
    pieces: Sequence[str], room: int, count: CountTokens, finer: Sequence[re.Pattern[str]]
) -> list[tuple[str, int]]:
    """Return (piece, tokens), where pieces of more than `room` tokens are cut by the next finer pattern."""
    units: list[tuple[str, int]] = []
    for piece, tokens in zip(pieces, count(list(pieces))):
        if tokens <= room or len(piece) < 2:
            units.append((piece, tokens))
        elif finer:
            units += _units(_cut(piece, finer[0]), room, count, finer[1:])
        else:  # one character has at least one token in scripts without spaces
            step = min(len(piece) - 1, max(1, room // 2))
            units += _units([piece[i : i + step] for i in range(0, len(piece), step)], room, count, ())
    return units


def _cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Cut a text after every match, and return the pieces, which together are the text."""
    ends = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)])]
