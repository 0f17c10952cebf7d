"""Flags and tables shared by the commands that measure sentence embeddings: sts, transfer and grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import CommonArguments, as_flag_values, check_least, finish, flag
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.devices import BATCH_TOKENS_HELP
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.sizes import ALIASES_HELP, Size, Sizes

if TYPE_CHECKING:
    from starbucks_retrieval.models import EncoderConfig, NestedEncoder
    from starbucks_retrieval.models.info import ModelInfo


# Settings stored with a model; a flag that contradicts one needs --override.
_SMALLEST_DIM = 8
_MISSING = "–"
_GRID_LAYERS = 6


@dataclasses.dataclass
class SentenceArguments:
    """A model and its sizes."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    sizes: str | None = flag(
        None, f"sizes such as 2:32,6:128; size aliases; or all (default: the sizes of the model). {ALIASES_HELP}"
    )
    grid: bool = flag(False, "every pair of --layers (default: N·{1..6}/6) and --dims (default: 8,16,32,… and all)")
    layers: str | None = flag(None, "layers of a grid: 2,4,6")
    dims: str | None = flag(None, "dimensions of a grid: 32,64,128")
    label: str | None = flag(None, "name of the model in tables (default: its folder's name)")

    encode_is_query: bool = flag(False, "use the model's query prefix and length, not those of passages", rare=True)
    max_length: int | None = flag(None, "tokens of a sentence (default: the length stored with the model)", rare=True)
    pooling: Literal["cls", "mean", "last"] | None = flag(
        None, "for a bare backbone (a trained model stores it)", rare=True
    )
    normalize: bool | None = flag(None, "for a bare backbone; cosines do not depend on it", rare=True)
    override: bool = flag(False, "allow these flags to contradict the model's stored settings", rare=True)
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = flag(
        "fp32", "precision of the encoder; published tables use fp32", rare=True
    )
    backend: str = flag("torch", BACKENDS.help_text(), choices=BACKENDS, rare=True)
    max_tokens_per_batch: int | None = flag(None, BATCH_TOKENS_HELP, rare=True)
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")

    def __post_init__(self) -> None:
        as_flag_values(self)
        if self.sizes and self.is_grid:
            raise UserError("--sizes and a grid (--grid, --layers, --dims) contradict each other", "give one of them")
        check_least(self, "max_tokens_per_batch", "max_length")
        for name in ("layers", "dims"):
            _numbers(name, getattr(self, name))

    @property
    def is_grid(self) -> bool:
        """Whether the sizes are a grid."""
        return bool(self.grid or self.layers or self.dims)

    @property
    def name(self) -> str:
        """The name of the model in tables."""
        return self.label or Path(self.model_name_or_path).name or self.model_name_or_path

    @property
    def deepest_layer(self) -> int | None:
        """The deepest layer needed, so that no weights above it are read; None if the flags alone do not tell."""
        if self.is_grid:
            return max(_numbers("layers", self.layers), default=None)
        words = [word.strip() for word in (self.sizes or "").split(",") if word.strip()]
        return max((Size.parse(word).layer for word in words), default=None) if all(":" in w for w in words) else None

    def selected_sizes(self, model: NestedEncoder | ModelInfo) -> Sizes:
        """Return the sizes to measure, by default those that the model stores. Raises UserError if it lacks one."""
        if self.is_grid:
            layers, dims = grid_axes(self.layers, self.dims, model)
            return Sizes(Size(layer, dim) for layer in layers for dim in dims)
        return model.check(Sizes.parse(self.sizes, model.sizes) if self.sizes else model.sizes)

    def configured(self, config: EncoderConfig) -> EncoderConfig:
        """Return the model's configuration changed by the flags. Raises UserError if they contradict it."""
        return config.with_flags(self)


def grid_layers(num_layers: int) -> list[int]:
    """Return the layers N·{1..6}/6 of a backbone of N layers, rounded, without repeats: the rows of published grids.

    Example:
        >>> grid_layers(12)
        [2, 4, 6, 8, 10, 12]
    """
    return sorted({max(1, int(num_layers * i / _GRID_LAYERS + 0.5)) for i in range(1, _GRID_LAYERS + 1)})


def grid_dims(hidden_size: int) -> list[int]:
    """Return 8, 16, 32, … below the hidden size, and the hidden size: the columns of published grids.

    Example:
        >>> grid_dims(384)
        [8, 16, 32, 64, 128, 256, 384]
    """
    dims, dim = [], _SMALLEST_DIM
    while dim < hidden_size:
        dims.append(dim)
        dim *= 2
    return [*dims, hidden_size]


def grid_axes(layers: str | None, dims: str | None, model: NestedEncoder | ModelInfo) -> tuple[list[int], list[int]]:
    """Return the layers and dims of a grid, both ascending.

    Args:
        layers: The flag, such as `2,4,6`; None for `grid_layers`, and for a fitted model its layers among them and 0.
        dims: The flag, such as `32,128`; None for `grid_dims`.
        model: The model.

    Raises:
        UserError: A flag cannot be read, or the model does not have a layer or dim.
    """
    projected = model.config.projected_layers
    usual = grid_layers(model.num_layers)
    rows = _numbers("layers", layers) or [layer for layer in projected if layer in (0, *usual)] or usual
    columns = _numbers("dims", dims) or grid_dims(model.hidden_size)
    model.check(Sizes(Size(layer, dim) for layer in rows for dim in columns))
    return rows, columns


def _numbers(name: str, text: str | None) -> list[int]:
    """Return the ascending distinct numbers of a flag such as 2,4,6; an empty list if it was not given."""
    least = 0 if name == "layers" else 1
    words = (text or "").replace(",", " ").split()
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and int(word) >= least)]
    if wrong or (text is not None and not words):
        reason = f": {wrong[0]!r} is not a number from {least}" if wrong else ""
        raise UserError(f"cannot read --{name} {text}{reason}", f"write numbers from {least}: 2,4,6")
    return sorted({int(word) for word in words})


def average(cells: Sequence[Cell]) -> float:
    """Return the mean of the cells' values; NaN if one is NaN, since means over fewer sets are not comparable."""
    return math.fsum(cell.value for cell in cells) / len(cells)


def size_table(cells: Sequence[Cell], text: Callable[[Cell], str] | None = None) -> str:
    """Return a text table: one row per size, one column per data set and measure, and an average column.

    Args:
        cells: Values; the average is over the first measure of each data set.
        text: Formats one cell; four decimals by default. Missing and NaN values are shown as a dash.

    Example:
        >>> print(size_table([Cell("STS-B", "spearman", Size(2, 32), 0.8123, 1379)]))
        size   STS-B
        2:32  0.8123
    """
    sizes = sorted({cell.size for cell in cells if cell.size is not None})
    columns = list(dict.fromkeys((cell.dataset, cell.measure) for cell in cells))
    sets = list(dict.fromkeys(dataset for dataset, _ in columns))
    first = [next(column for column in columns if column[0] == dataset) for dataset in sets]
    by_column = {(cell.size, cell.dataset, cell.measure): cell for cell in cells}
    heads = [name if (name, measure) in first else f"{name} {measure}" for name, measure in columns]
    rows = [["size", *heads, *(["Average"] if len(sets) > 1 else [])]]
    for size in sizes:
        row = [str(size)]
        for dataset, measure in columns:
            cell = by_column.get((size, dataset, measure))
            row.append(_MISSING if cell is None or math.isnan(cell.value) else (text or _plain)(cell))
        if len(sets) > 1:
            row.append(_mean([by_column.get((size, *column)) for column in first], size, text))
        rows.append(row)
    return "\n".join(align_columns(rows, marks="*"))


def finish_with_table(common: CommonArguments, table: str, summary: str, results: Results) -> None:
    """End a command: print a table and a summary line, or with --json the results without values of single texts.

    Args:
        common: Decides between text and JSON, whose summary goes to the log.
        table: The table, such as `size_table` returns.
        summary: One line that says what was measured.
        results: The content of the result file.
    """
    if not common.json:
        print(table)
    finish(common, f"{table}\n{summary}" if common.json else summary, results.without_values().to_json())


def _mean(cells: Sequence[Cell | None], size: Size, text: Callable[[Cell], str] | None) -> str:
    present = [cell for cell in cells if cell is not None]
    value = average(present) if len(present) == len(cells) else math.nan
    return _MISSING if math.isnan(value) else (text or _plain)(Cell("Average", "", size, value, len(present)))


def _plain(cell: Cell) -> str:
    return f"{cell.value:.4f}"
