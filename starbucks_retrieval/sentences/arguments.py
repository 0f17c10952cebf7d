"""The flags that name a model, its sizes, and how sentences are encoded with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.sizes import Size, Sizes

if TYPE_CHECKING:
    from starbucks_retrieval.models import EncoderConfig

# Settings that a model stores about itself; a flag that says otherwise needs --override.
_STORED = ("pooling", "normalize")
_SMALLEST_DIM = 8
_GRID_LAYERS = 6


@dataclasses.dataclass
class SentenceArguments:
    """A model and its sizes."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    sizes: str | None = flag(None, "sizes such as 2:32,6:128, cup names or all (default: all the model's own)")
    grid: bool = flag(False, "every pair of --layers (default: N·{1..6}/6) and --dims (default: 8,16,32,… and all)")
    layers: str | None = flag(None, "layers of a grid: 2,4,6")
    dims: str | None = flag(None, "dimensions of a grid: 32,64,128")
    label: str | None = flag(None, "how tables call the model (default: its folder's name)")

    encode_is_query: bool = flag(False, "use the model's prefix and length of queries, not of passages")
    max_length: int | None = flag(None, "tokens of a sentence (default: the model's own length)")
    pooling: Literal["cls", "mean", "last"] | None = flag(None, "for a bare backbone (a trained model stores it)")
    normalize: bool | None = flag(None, "likewise; cosines do not depend on it")
    override: bool = flag(False, "let these flags contradict what the model stores")
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = flag("fp32", "arithmetic; tables are made in fp32")
    backend: str = flag("torch", BACKENDS.help_text(), choices=BACKENDS)
    max_tokens_per_batch: int | None = flag(None, "rows x longest of a batch (default: 4096 on a CPU, 65536 on a GPU)")
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")

    def __post_init__(self) -> None:
        if self.sizes and self.is_grid:
            raise UserError("--sizes and a grid (--grid, --layers, --dims) contradict each other", "give one of them")
        for name in ("max_tokens_per_batch", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} is below 1", "leave it out, or raise it")
        for name in ("layers", "dims"):
            _numbers(name, getattr(self, name))

    @property
    def is_grid(self) -> bool:
        """Whether the sizes are a grid."""
        return bool(self.grid or self.layers or self.dims)

    @property
    def name(self) -> str:
        """How tables call the model."""
        return self.label or Path(self.model_name_or_path).name or self.model_name_or_path

    @property
    def deepest(self) -> int | None:
        """The deepest layer asked for where the flags alone tell it, so that no weights above it are read."""
        if self.is_grid:
            return max(_numbers("layers", self.layers), default=None)
        words = [word.strip() for word in (self.sizes or "").split(",") if word.strip()]
        return max((Size.parse(word).layer for word in words), default=None) if all(":" in w for w in words) else None

    def wanted(self, num_layers: int, hidden_size: int, model_sizes: Sizes) -> Sizes:
        """The sizes to measure. Raises UserError for those that the model does not have."""
        if self.is_grid:
            layers = _numbers("layers", self.layers) or grid_layers(num_layers)
            dims = _numbers("dims", self.dims) or grid_dims(hidden_size)
            sizes = Sizes([Size(layer, dim) for layer in layers for dim in dims])
        else:
            sizes = Sizes.parse(self.sizes, model_sizes) if self.sizes else model_sizes
        return sizes.check(num_layers, hidden_size)

    def configured(self, config: EncoderConfig) -> EncoderConfig:
        """The model's configuration with the flags' changes. Raises UserError where they contradict it."""
        changes = {name: getattr(self, name) for name in _STORED if getattr(self, name) is not None}
        for name, value in changes.items():
            stored = getattr(config, name)
            if config.source and value != stored and not self.override:
                raise UserError(
                    f"--{name} {value} contradicts the model's own {stored!r} ({config.source})",
                    "leave the flag out, or add --override",
                )
        return dataclasses.replace(config, **changes)


def grid_layers(num_layers: int) -> list[int]:
    """Layers N·{1..6}/6 of a backbone of N layers, rounded, each once; the published grids' rows."""
    return sorted({max(1, int(num_layers * i / _GRID_LAYERS + 0.5)) for i in range(1, _GRID_LAYERS + 1)})


def grid_dims(hidden_size: int) -> list[int]:
    """8, 16, 32, … below the width, and the width itself; the published grids' columns."""
    dims, dim = [], _SMALLEST_DIM
    while dim < hidden_size:
        dims.append(dim)
        dim *= 2
    return [*dims, hidden_size]


def _numbers(name: str, text: str | None) -> list[int]:
    """The ascending distinct numbers of a flag such as 2,4,6; none where it was not given."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words) or (text is not None and not words):
        raise UserError(f"cannot read --{name} {text}", "write numbers from 1: 2,4,6")
    return sorted({int(word) for word in words})
