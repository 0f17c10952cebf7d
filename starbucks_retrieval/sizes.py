"""Sizes: (layer, dim) pairs, and ascending lists of them.

Source: the set S of Starbucks (arXiv 2410.13230), eq. 1 and section 3.1; the size aliases are the paper's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import shown

SIZE_ALIASES = ("demi", "short", "tall", "grande", "venti", "trenta")
ALIASES_HELP = f"The size aliases of a model with six sizes, from the smallest: {', '.join(SIZE_ALIASES)}"
# Dims of the paper's six sizes of a backbone with 12 layers and 768 dimensions, as fractions of the width.
_DIM_FRACTIONS = (1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1.0)


@dataclass(frozen=True, order=True)
class Size:
    """One size of an embedding: the pooled output of transformer layer `layer`, cut to its first `dim` dimensions.

    Layers count from 1. Layer 0 needs no transformer layer: it is the token table of a model that `starbucks fit` made.

    Raises:
        UserError: The layer is negative, the dim is below 1, or one of them is not a whole number.

    Example:
        >>> Size(6, 128) < Size(12, 32), str(Size.parse("6:128"))
        (True, '6:128')
    """

    layer: int
    dim: int

    def __post_init__(self) -> None:
        try:
            layer, dim = operator.index(self.layer), operator.index(self.dim)
        except TypeError:
            layer = dim = -1
        if layer < 0 or dim < 1:
            raise UserError(f"{self} is not a size: layers start at 0, dims at 1", "write layer:dim, for example 6:128")
        object.__setattr__(self, "layer", layer)  # a NumPy integer becomes one of Python, which json can write
        object.__setattr__(self, "dim", dim)

    def __str__(self) -> str:
        return f"{self.layer}:{self.dim}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let `parsing` read a size of a file as text."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema(strict=True))

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read a size such as `6:128`. Raises UserError for any other text."""
        match = re.fullmatch(r"\s*(-?\d{1,9})\s*:\s*(-?\d{1,9})\s*", text) if isinstance(text, str) else None
        if match is None:
            raise UserError(f"cannot read the size {shown(text)}", "write layer:dim, for example 6:128")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Sizes(Sequence[Size]):
    """A size list: sizes in strictly increasing order of (layer, dim). A deeper size may have fewer dims.

    Args:
        members: Sizes or strings such as "6:128"; or all of them in one string, "2:32,6:128".

    Raises:
        UserError: The list is empty, out of order or names a size twice.

    Example:
        >>> sizes = Sizes("2:32,6:128,12:768")
        >>> sizes.layers, str(sizes.full)
        ((2, 6, 12), '12:768')
    """

    members: tuple[Size, ...]

    def __init__(self, members: Iterable[Size | str] | str) -> None:
        listed = [word for word in members.split(",") if word.strip()] if isinstance(members, str) else members
        object.__setattr__(self, "members", tuple(map(as_size, listed)))
        if not self.members:
            raise UserError("no sizes given", "name at least one, for example --sizes 6:128")
        ascending = sorted(set(self.members))
        if list(self.members) != ascending:
            problem = "a size is repeated" if len(ascending) < len(self.members) else "the sizes are out of order"
            raise UserError(f"{problem} in {self}", f"write {','.join(map(str, ascending))}")

    def __getitem__(self, index):
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Size]:
        return iter(self.members)

    def __str__(self) -> str:
        return ",".join(map(str, self.members))

    def __repr__(self) -> str:
        return f"Sizes({str(self)!r})"

    @property
    def layers(self) -> tuple[int, ...]:
        """The distinct layers, ascending."""
        return tuple(sorted({size.layer for size in self.members}))

    @property
    def full(self) -> Size:
        """The largest layer with the largest dim, the teacher of SRL. It need not be a member."""
        return Size(self.layers[-1], max(size.dim for size in self.members))

    def check(self, num_layers: int, hidden_size: int, layer_0: bool = False) -> Sizes:
        """Return self. Raises UserError if a member does not fit a backbone of this depth and width.

        Args:
            num_layers: The number of layers of the backbone.
            hidden_size: The width of its hidden states.
            layer_0: Whether the model has a token table for layer 0.
        """
        for size in self.members:
            check_size(size, num_layers, hidden_size, layer_0)
        return self

    @classmethod
    def parse(cls, text: str, model_sizes: Sizes | None = None) -> Sizes:
        """Read a size list from text.

        Args:
            text: Sizes such as `2:32,4:64`, size aliases such as `demi,tall`, or `all`.
            model_sizes: The sizes that the model was trained at; aliases and `all` refer to them.

        Raises:
            UserError: A word is not a size, or is an alias that `model_sizes` gives no meaning.

        Example:
            >>> str(Sizes.parse("demi,trenta", Sizes.default(12, 768)))
            '2:32,12:768'
        """
        words = [word.strip() for word in text.split(",") if word.strip()]
        if any(word.lower() == "all" or word.lower() in SIZE_ALIASES for word in words) and model_sizes is None:
            raise UserError(f"--sizes {text} needs a model that stores its sizes", "write the sizes: 2:32,4:64")
        if [word.lower() for word in words] == ["all"]:
            assert model_sizes is not None
            return model_sizes
        return cls([_parse_word(word, model_sizes) for word in words])

    @classmethod
    def default(cls, num_layers: int, hidden_size: int) -> Sizes:
        """Return the paper's proportions for any backbone.

        Layers are N·{1..6}/6 and dims D·{1/24, 1/12, 1/6, 1/3, 2/3, 1}. A backbone of fewer than six layers gets one
        size per layer, each with the dim that the paper gives to the same fraction of the depth.

        Args:
            num_layers: The number N of transformer layers.
            hidden_size: The width D of the hidden states.

        Example:
            >>> str(Sizes.default(12, 768))
            '2:32,4:64,6:128,8:256,10:512,12:768'
        """
        count, members = min(len(_DIM_FRACTIONS), num_layers), list[Size]()
        grain = 8 if hidden_size >= 192 else 1  # multiples of 8 fill vector registers
        for i in range(1, count + 1):
            fraction = _DIM_FRACTIONS[int(len(_DIM_FRACTIONS) * i / count + 0.5) - 1]  # round() rounds 4.5 to 4
            dim = hidden_size if i == count else max(1, int(hidden_size * fraction / grain + 0.5) * grain)
            if not members or dim >= members[-1].dim:
                members.append(Size(int(num_layers * i / count + 0.5), dim))
        return cls(members)


def as_size(size: Size | str, model_sizes: Sizes | None = None) -> Size:
    """Return a size given as a Size or as a string. Raises UserError for anything else.

    Args:
        size: A Size, or a string such as "6:128".
        model_sizes: The sizes that the model was trained at; with them the string may be a size alias.

    Example:
        >>> as_size("6:128")
        Size(layer=6, dim=128)
    """
    if isinstance(size, Size):
        return size
    if not isinstance(size, str):
        raise UserError(f"{size!r} is not one size", 'write layer:dim, for example "6:128", or Size(6, 128)')
    return Size.parse(size) if model_sizes is None else _parse_word(size.strip(), model_sizes)


def as_sizes(sizes: Sizes | Iterable[Size | str] | Size | str | None, model_sizes: Sizes) -> Sizes:
    """Return sizes given as Sizes, a Size, a list of Sizes or strings, or one string; `model_sizes` for None.

    Example:
        >>> as_sizes([Size(4, 64), "2:32"], Sizes("6:128"))
        Sizes('2:32,4:64')
    """
    if sizes is None:
        return model_sizes
    if isinstance(sizes, str):
        return Sizes.parse(sizes, model_sizes)
    sizes = [sizes] if isinstance(sizes, Size) else sizes
    if isinstance(sizes, bytes) or not isinstance(sizes, Iterable):
        raise UserError(f"{sizes!r} is no list of sizes", 'write "2:32,6:128", or ["2:32", "6:128"]')
    return sizes if isinstance(sizes, Sizes) else Sizes(sorted(as_size(size, model_sizes) for size in sizes))


def pair_name(size: Size, passage_size: Size | None = None) -> str:
    """Return the name of the size that queries and passages are scored at.

    Args:
        size: The size of the queries.
        passage_size: The size of the passages; None means the same.

    Example:
        >>> pair_name(Size(6, 128)), pair_name(Size(2, 64), Size(4, 64))
        ('6:128', '2:64/4:64')
    """
    return str(size) if passage_size in (None, size) else f"{size}/{passage_size}"


def parse_pair(text: str | Size, model_sizes: Sizes | None = None) -> tuple[Size, Size | None]:
    """Read what `pair_name` writes: the size of queries, and that of passages if it is named.

    Args:
        text: A size such as `6:128`, or two of one dim such as `2:64/4:64`; or a Size.
        model_sizes: The sizes that the model was trained at; with them the text may have size aliases.

    Raises:
        UserError: The text is neither, or the dims differ.

    Example:
        >>> parse_pair("6:128"), parse_pair("2:64/4:64")
        ((Size(layer=6, dim=128), None), (Size(layer=2, dim=64), Size(layer=4, dim=64)))
    """
    if not isinstance(text, str):
        return as_size(text), None
    queries, slash, passages = text.partition("/")
    size, passage_size = as_size(queries, model_sizes), as_size(passages, model_sizes) if slash else None
    if passage_size is not None and passage_size.dim != size.dim:
        raise UserError(
            f"queries at {size} and passages at {passage_size} differ in dim",
            f"take one dim: {size}/{passage_size.layer}:{size.dim}",
        )
    return size, passage_size


def check_size(size: Size, num_layers: int, hidden_size: int, layer_0: bool = False) -> None:
    """Check that a size fits a backbone.

    Args:
        size: The size.
        num_layers: The number of layers of the backbone.
        hidden_size: The width of its hidden states.
        layer_0: Whether the model has a token table for layer 0.

    Raises:
        UserError: The model lacks the layer, or the dim is above `hidden_size`.

    Example:
        >>> check_size(Size(6, 128), 4, 256)
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: size 6:128 needs layer 6, but the model has 4 layers
          use a layer from 1 to 4
    """
    if size.layer == 0 and not layer_0:
        raise UserError(
            f"size {size} needs a token table, which this model lacks", "starbucks fit makes one, or use layers from 1"
        )
    if size.layer > num_layers:
        raise UserError(
            f"size {size} needs layer {size.layer}, but the model has {num_layers} layers",
            f"use a layer from 1 to {num_layers}",
        )
    if size.dim > hidden_size:
        raise UserError(
            f"size {size} needs {size.dim} dimensions, but the model is {hidden_size} wide",
            f"use a dim from 1 to {hidden_size}",
        )


def _parse_word(word: str, model_sizes: Sizes | None) -> Size:
    if word.lower() not in SIZE_ALIASES:
        return Size.parse(word)
    assert model_sizes is not None
    if len(model_sizes) != len(SIZE_ALIASES):
        raise UserError(
            f"the size alias {word!r} needs a model with {len(SIZE_ALIASES)} sizes, but this one has {len(model_sizes)}",
            f"use one of {model_sizes}",
        )
    return model_sizes[SIZE_ALIASES.index(word.lower())]
