"""Sizes, layers and dims of a paper's backbone at the same part of a scale's backbone."""

from __future__ import annotations

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.reproduce.schema import Scale, Table
from starbucks_retrieval.sizes import Size, Sizes

SIZED = ("sizes", "train_dims", "train_layers")  # flags in terms of the paper's backbone
_PAPER_GRID = Size(12, 768)  # in whose terms a scale names its grid


def rescale(size: Size, paper: Size, full: Size) -> Size | None:
    """Return a size of the paper's backbone at the same part of another's layers and width; None if it has none.

    Args:
        size: The size to convert.
        paper: The full size of the paper's backbone.
        full: The full size of the other backbone.

    Example:
        >>> str(rescale(Size(4, 64), Size(12, 768), Size(6, 384))), rescale(Size(3, 64), Size(12, 768), Size(6, 384))
        ('2:32', None)
    """
    layer, dim = size.layer * full.layer, size.dim * full.dim
    if layer % paper.layer or dim % paper.dim:
        return None
    return Size(layer // paper.layer, dim // paper.dim)


def sizes_of(table: Table, scale: Scale) -> Sizes:
    """Return the sizes of a table, in terms of the scale's backbone.

    Args:
        table: Its sizes are `grid`, `diagonal`, or sizes of the paper's backbone.
        scale: The scale. Sizes of the paper that its backbone does not have are left out.

    Raises:
        UserError: No size fits the backbone.
    """
    if table.sizes == "grid":
        return Sizes(Size(layer, dim) for layer in axis(scale, "layers") for dim in axis(scale, "dims"))
    paper = Sizes.default(table.full.layer, table.full.dim) if table.sizes == "diagonal" else Sizes.parse(table.sizes)
    fitting = [size for size in (rescale(one, table.full, scale.full) for one in paper) if size is not None]
    if not fitting:
        raise UserError(f"none of the sizes {paper} fits a backbone of {scale.full}", "take another scale")
    return Sizes(dict.fromkeys(fitting))


def flag_at_scale(name: str, text: str, table: Table, scale: Scale) -> str:
    """Return the value of a flag in terms of the scale's backbone; what that does not have is left out.

    Args:
        name: One of `SIZED`.
        text: Its value: sizes, or layers or dims with commas between them, in terms of the paper's backbone.
        table, scale: The backbones of both.
    """
    paper, full = table.full, scale.full
    if text in ("last", "all"):
        return text
    if name == "sizes":
        found = [rescale(size, paper, full) for size in Sizes.parse(text)]
        return str(Sizes(dict.fromkeys(size for size in found if size is not None)))
    ours, theirs = (full.dim, paper.dim) if name == "train_dims" else (full.layer, paper.layer)
    fitting = [int(n) * ours // theirs for n in text.split(",") if int(n) * ours % theirs == 0]
    # The cosine of vectors of one dim is 1 or -1, and AnglE's loss halves vectors.
    return ",".join(str(n) for n in fitting if n > 1 or name != "train_dims")


def axis(scale: Scale, name: str) -> list[int]:
    """Return the layers or dims of the scale's grid that its backbone has.

    Args:
        scale: The scale.
        name: `layers` or `dims`.
    """
    ours, theirs = (scale.full.dim, _PAPER_GRID.dim) if name == "dims" else (scale.full.layer, _PAPER_GRID.layer)
    numbers = [int(number) for number in getattr(scale, name).split(",")]
    return [number * ours // theirs for number in numbers if number * ours % theirs == 0]
