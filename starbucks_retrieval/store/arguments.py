"""The flags of `starbucks store`, a dataclass a sub-command. Paths may also come first, without their flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

_PATHS = "stores: a size's folder, an encode output, a pattern, a URL"


@dataclass
class VerifyArguments:
    """What is read."""

    path: list[str] = flag(None, _PATHS, required=True)


@dataclass
class InfoArguments:
    """What is described."""

    path: list[str] = flag(None, _PATHS, required=True)


@dataclass
class SliceArguments:
    """What is cut, and to which dims."""

    path: str = flag("", "the store to cut: a size's folder, an encode output, a pattern, a URL", required=True)
    output: str = flag("", "folder for the smaller stores, one sub-folder a size", required=True)
    dim: int | None = flag(None, "the dim to cut to")
    dims: str | None = flag(None, "several at once: 32,64,128")
    size: str | None = flag(None, "layer:dim to cut from, where PATH holds several sizes")
    overwrite: bool = flag(False, "replace another store in the output folder")

    def wanted(self) -> list[int]:
        """The dims, ascending."""
        words = [word.strip() for word in (self.dims or "").split(",") if word.strip()]
        try:
            dims = {int(word) for word in words} | ({self.dim} if self.dim is not None else set())
        except ValueError:
            raise UserError(f"cannot read --dims {self.dims}", "write 32,64,128") from None
        if not dims:
            raise UserError("no dim to cut to", "give --dim 128, or --dims 32,64,128")
        return sorted(dims)

    def source(self) -> Size | None:
        """The size to cut from."""
        return Size.parse(self.size) if self.size else None


@dataclass
class MergeArguments:
    """What becomes one store."""

    path: list[str] = flag(None, "the parts: folders, encode outputs, a pattern, URLs", required=True)
    output: str = flag("", "folder for the whole store, one sub-folder a size", required=True)
    shard_size: int | None = flag(None, "rows of a shard (default: that of the parts)")
    size: str | None = flag(None, "layer:dim, to merge this size only (default: all there are)")
    overwrite: bool = flag(False, "replace another store in the output folder")

    def wanted(self) -> Size | None:
        """The one size to merge, if it is but one."""
        return Size.parse(self.size) if self.size else None


@dataclass
class ExportArguments:
    """What is written for other programs."""

    path: str = flag("", "the store: a size's folder, an encode output, a pattern, a URL", required=True)
    output: str = flag("", "a local file; with --to npy a folder", required=True)
    to: Literal["parquet", "arrow", "npy"] = flag(
        None, "columns id and embedding in one file, or vectors.npy and ids.txt (line n is row n)", required=True
    )
    size: str | None = flag(None, "layer:dim, where PATH holds several sizes")
    overwrite: bool = flag(False, "replace what is there")

    def wanted(self) -> Size | None:
        """The size to export."""
        return Size.parse(self.size) if self.size else None


@dataclass
class ImportArguments:
    """What is taken from Tevatron's or ielab's pickles."""

    path: list[str] = flag(None, "pickles of (vectors, ids), in the order of the corpus", required=True)
    output: str = flag("", "folder for the store, one sub-folder a size", required=True)
    layer: int = flag(None, "the layer whose state the vectors are: the model's last, if it was not cut", required=True)
    dim: int | None = flag(None, "their dim, to be checked (default: what the files have)")
    encode_is_query: bool = flag(False, "the vectors are queries'")
    name: str | None = flag(
        None,
        "what to call the model. A pickle does not tell which weights made it, so search trusts this name: give "
        "queries and passages of one model the same, of two models different ones",
    )
    fingerprint: str | None = flag(None, "instead of --name: the fingerprint of the very weights, where it is known")
    pooling: Literal["cls", "mean", "last"] = flag("cls", "how the model pooled; search compares it")
    normalize: bool = flag(False, "the vectors have length 1; this is checked")
    store_dtype: Literal["float16", "float32"] | None = flag(None, "numbers on disk (default: as in the files)")
    shard_size: int = flag(16384, "rows of a shard")
    overwrite: bool = flag(False, "replace another store in the output folder")

    def stamp(self) -> str:
        """What stands for the weights in the store."""
        if bool(self.name) == bool(self.fingerprint):
            raise UserError(
                "--name is missing" if not self.name else "--name and --fingerprint contradict each other",
                "the pickle does not say which model made it: give queries and passages of one model one --name",
            )
        return self.fingerprint or f"imported-{self.name}"
