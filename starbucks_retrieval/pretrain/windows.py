"""Cut documents into token sequences: windows, blocks of sentences, or two spans."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from starbucks_retrieval.data.documents import PAIR, Document
from starbucks_retrieval.errors import UserError

MAX_WORD = 16  # pieces

Mode = Literal["window", "blocks", "spans", "pairs"]
PAIRED = ("spans", "pairs")  # rows 2i and 2i + 1 of a batch belong together
_WINDOWS = 1  # separates these random generators from those of documents and masks
_CHUNK = (64, 1 << 20)  # documents and characters that are tokenised at once
# White space stays before the following sentence, where tokenizers that keep it expect it.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?=\n)")


class Pieces(NamedTuple):
    """A text as word pieces, without special tokens around it.

    Attributes:
        ids: int32 [pieces].
        starts: bool [pieces], True where a word begins.
    """

    ids: np.ndarray
    starts: np.ndarray

    def cut(self, first: int, last: int) -> Pieces:
        """Return the pieces from `first` up to `last`; the rest of a word that is cut counts as a word.

        Example:
            >>> Pieces(np.array([7, 8, 9]), np.array([True, False, True])).cut(1, 3).starts.tolist()
            [True, True]
        """
        starts = self.starts[first:last].copy()
        starts[:1] = True
        return Pieces(self.ids[first:last], starts)


def join(parts: Sequence[Pieces]) -> Pieces:
    """Concatenate the pieces of several texts.

    Example:
        >>> word = Pieces(np.array([7, 8]), np.array([True, False]))
        >>> join([word, word]).ids.tolist()
        [7, 8, 7, 8]
    """
    return Pieces(np.concatenate([part.ids for part in parts]), np.concatenate([part.starts for part in parts]))


class WholeWordTokenizer:
    """Tokenizes whole texts without truncation, and marks where their words begin.

    Words are those of the tokenizer (`Encoding.word_ids`). Every piece of a word of more than 16 pieces counts as a
    word: some tokenizers see a text without spaces as one word, which no masking budget would admit.

    Args:
        tokenizer: A fast Hugging Face tokenizer.

    Attributes:
        prefix: int32, special tokens before a text.
        suffix: int32, special tokens after a text.
        special: bool [vocabulary], True for tokens that are never masked: the special and the unknown token.

    Raises:
        UserError: The tokenizer has no mask token, no token before the text (which holds its embedding), or no words.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            problem = "the tokenizer has no fast version, and only fast ones mark words"
            raise UserError(problem, "save a tokenizer.json for it")
        if tokenizer.mask_token_id is None:
            raise UserError(
                "the tokenizer has no mask token",
                "take a backbone trained as a masked language model, or add one: tokenizer.add_special_tokens({'mask_token': '[MASK]'})",
            )
        # A copy, because truncation and padding are state of the tokenizer, possibly from its tokenizer.json.
        self._fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._fast.no_truncation()
        self._fast.no_padding()
        self.mask_id = int(tokenizer.mask_token_id)
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self.vocab_size = len(tokenizer)
        self.special = np.zeros(self.vocab_size, dtype=bool)
        self.special[tokenizer.all_special_ids] = True
        probe = self._fast.encode("two words")
        text = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)
        if len(text) == 0 or len({probe.word_ids[i] for i in text}) < 2:
            raise UserError(
                "the tokenizer does not split texts into words, which whole-word masks need",
                "take a backbone whose tokenizer.json has a pre_tokenizer",
            )
        self.prefix = np.array(probe.ids[: text[0]], dtype=np.int32)
        self.suffix = np.array(probe.ids[text[-1] + 1 :], dtype=np.int32)
        if not len(self.prefix):
            raise UserError(
                "the tokenizer puts no token in front of a text, where masked auto-encoding keeps the text's embedding",
                "take a backbone with a [CLS] token",
            )

    def __call__(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the pieces of each text."""
        encodings = self._fast.encode_batch(list(texts), add_special_tokens=False)
        ends = np.cumsum([0, *(len(encoding) for encoding in encodings)])
        total = int(ends[-1])
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total)
        words = np.fromiter(
            (-1 if word is None else word for encoding in encodings for word in encoding.word_ids), np.int32, total
        )
        starts = np.empty(total, dtype=bool)
        starts[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
        starts[ends[ends < total]] = True
        begins = np.flatnonzero(starts)
        sizes = np.diff(begins, append=total)
        starts |= np.repeat(sizes > MAX_WORD, sizes)
        return [Pieces(ids[first:last], starts[first:last]) for first, last in pairwise(ends)]


class TokenSequence(NamedTuple):
    """One row of a batch; `after` is where reading continues: (document position, part of that document)."""

    pieces: Pieces
    after: tuple[int, int]


@dataclass
class Cutter:
    """Cuts documents into sequences; random choices are seeded with (seed, epoch, document number).

    A text is tokenised once and its ids are cut. The released code turns the ids of a window back into a string and
    tokenises it again, which may give more tokens. Sources: Starbucks (arXiv 2410.13230) and its code; spans: the
    second stage of A. Liu and S. Yang (arXiv 2208.00231).

    Args:
        tokenizer: Tokenizes whole texts.
        max_length: Tokens of a sequence, special tokens included.
        mode: window takes one uniformly random window of a long document and a short document whole. blocks takes as
            many whole sentences as fit (they end at . ! ? before white space, and at line breaks) and cuts sentences
            that are too long. spans takes two random spans of a document that never overlap: one on either side of a
            random position in its middle half. pairs takes both texts of a pair, however short.
        seed: Seeds the random choices.
        pack: Blocks continue into the next document.
        least: Word pieces of the shortest sequence.

    Attributes:
        dropped: Counts of `empty` documents, and of `short` documents and blocks with fewer than `least` pieces; a
            document for spans needs twice as many.

    Raises:
        UserError: Options contradict each other; when iterated, no document of an epoch is long enough.
    """

    tokenizer: WholeWordTokenizer
    max_length: int
    mode: Mode = "window"
    _: KW_ONLY
    seed: int = 0
    pack: bool = False
    least: int = 5

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise UserError(f"documents cannot be cut into {self.mode!r}", f"take {', '.join(get_args(Mode))}")
        if self.pack and self.mode != "blocks":
            raise UserError(f"packing joins blocks of sentences, not {self.mode}", "use blocks, or do not pack")
        self.least = 1 if self.mode == "pairs" else self.least
        self.capacity = self.max_length - len(self.tokenizer.prefix) - len(self.tokenizer.suffix)
        # Of two neighbouring blocks one is always long enough, so no document is lost.
        if self.capacity < 2 * self.least:
            problem = f"a length of {self.max_length} tokens leaves too few tokens for text"
            raise UserError(problem, "raise --max_length")
        self.dropped: Counter[str] = Counter()

    def sequences(self, documents: Iterator[Document], part: int = 0) -> Iterator[TokenSequence]:
        """Yield the sequences of a stream of documents.

        Args:
            documents: The documents, in the order of the stream.
            part: Sentences of the first document to leave out, as in `TokenSequence.after`; for blocks only.
        """
        parts = self._parts(documents)
        found = self._blocks(parts, part) if self.mode == "blocks" else self._random(parts)
        for sequence in found:
            if len(sequence.pieces.ids) >= self.least:
                yield sequence
            else:
                self.dropped["short"] += 1

    def _parts(self, documents: Iterator[Document]) -> Iterator[tuple[Document, list[Pieces]]]:
        """Each document that is long enough, as the pieces of its sentences (blocks) or of its whole text."""
        least = self.least * (2 if self.mode == "spans" else 1)
        kept, whole, epoch = False, False, -1
        for chunk in _chunks(documents):
            texts = [self._texts(document.text) for document in chunk]
            pieces = iter(self.tokenizer([text for of_document in texts for text in of_document]))
            for document, of_document in zip(chunk, texts):
                if document.epoch != epoch:
                    if whole and not kept:
                        raise self._nothing_left()
                    # An epoch that a resumed run enters in its middle is not counted.
                    kept, whole, epoch = False, epoch >= 0 or document.position == document.number == 0, document.epoch
                parts = [next(pieces) for _ in of_document]
                if not document.text.strip():
                    self.dropped["empty"] += 1
                elif sum(map(_length, parts)) < least or (self.mode == "pairs" and not all(map(_length, parts))):
                    self.dropped["short"] += 1
                else:
                    kept = True
                    yield document, parts

    def _texts(self, text: str) -> list[str]:
        """The parts of a document that are tokenised apart."""
        if self.mode == "pairs":
            first, _, second = text.partition(PAIR)
            return [first, second]
        return _sentences(text) if self.mode == "blocks" else [text]

    def _random(self, documents: Iterator[tuple[Document, list[Pieces]]]) -> Iterator[TokenSequence]:
        for document, parts in documents:
            after = (document.position + 1, 0)
            rng = np.random.default_rng([_WINDOWS, self.seed, document.epoch, document.number])
            if self.mode != "spans":  # a whole text, or both of a pair
                yield from (TokenSequence(self._window(part, 0, _length(part), rng), after) for part in parts)
                continue
            (pieces,) = parts
            length = len(pieces.ids)
            edge = max(self.least, length // 4)
            middle = int(rng.integers(edge, length - edge + 1))
            yield TokenSequence(self._window(pieces, 0, middle, rng), after)
            yield TokenSequence(self._window(pieces, middle, length, rng), after)

    def _window(self, pieces: Pieces, first: int, last: int, rng: np.random.Generator) -> Pieces:
        if last - first > self.capacity:
            first = int(rng.integers(first, last - self.capacity + 1))
        return pieces.cut(first, min(first + self.capacity, last))

    def _blocks(self, documents: Iterator[tuple[Document, list[Pieces]]], skip: int) -> Iterator[TokenSequence]:
        held: list[Pieces] = []
        length = 0
        for document, sentences in documents:
            for i, part in enumerate(self._fitting(sentences)):
                if i < skip:
                    continue
                if length + len(part.ids) > self.capacity:
                    yield TokenSequence(join(held), (document.position, i))
                    held, length = [], 0
                held.append(part)
                length += len(part.ids)
            skip = 0
            if held and not self.pack:
                yield TokenSequence(join(held), (document.position + 1, 0))
                held, length = [], 0

    def _fitting(self, sentences: list[Pieces]) -> Iterator[Pieces]:
        """The sentences; those too long for any block in several parts."""
        for sentence in sentences:
            for first in range(0, len(sentence.ids), self.capacity):
                yield sentence.cut(first, first + self.capacity)

    def _nothing_left(self) -> UserError:
        return UserError(
            f"no document is long enough: {self.dropped['empty']} are empty, {self.dropped['short']} too short",
            f"give documents of at least {self.least} word pieces"
            + (f" ({2 * self.least} for two spans)" if self.mode == "spans" else ""),
        )


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    held: list[Document] = []
    characters = 0
    for document in documents:
        held.append(document)
        characters += len(document.text)
        if len(held) >= _CHUNK[0] or characters >= _CHUNK[1]:
            yield held
            held, characters = [], 0
    if held:
        yield held


def _length(part: Pieces) -> int:
    return len(part.ids)


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]
