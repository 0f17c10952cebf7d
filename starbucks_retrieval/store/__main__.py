"""The command `store`: sub-commands that check, describe and convert stores. Paths may come first, without their flag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_command, readable
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.pickles import ImportArguments, import_pickles

Command = Callable[[Any, CommonArguments], None]
_SHOWN = 20  # problems on a terminal
_PATHS = "stores: the folder of a size, an output of encode, a pattern, a URL"


@dataclass
class PathArguments:
    """Stores."""

    path: list[str] = flag(None, _PATHS, required=True)


@dataclass
class SliceArguments:
    """Slicing."""

    path: str = flag("", "the store to cut: the folder of a size, an output of encode, a pattern, a URL", required=True)
    output: str = flag("", "folder for the smaller stores, one sub-folder for each size", required=True)
    dim: int | None = flag(None, "the dim to cut to")
    dims: str | None = flag(None, "several dims: 32,64,128")
    size: str | None = flag(None, "layer:dim to cut, where PATH holds several sizes")
    overwrite: bool = flag(False, "replace another store in the output folder")

    def parsed_dims(self) -> list[int]:
        """Return the dims, ascending."""
        words = [word.strip() for word in (self.dims or "").split(",") if word.strip()]
        try:
            dims = {int(word) for word in words} | ({self.dim} if self.dim is not None else set())
        except ValueError:
            raise UserError(f"--dims {self.dims} is not a list of numbers", "write 32,64,128") from None
        if not dims:
            raise UserError("no dim to cut to", "give --dim 128, or --dims 32,64,128")
        return sorted(dims)


@dataclass
class MergeArguments:
    """Merging."""

    path: list[str] = flag(None, "the parts: folders, outputs of encode, a pattern, URLs", required=True)
    output: str = flag("", "folder for the merged store, one sub-folder for each size", required=True)
    shard_size: int | None = flag(None, "rows of a shard (default: that of the parts)")
    size: str | None = flag(None, "layer:dim, to merge this size only (default: all sizes)")
    overwrite: bool = flag(False, "replace another store in the output folder")


@dataclass
class QuantiseArguments:
    """Quantising."""

    path: list[str] = flag(
        None, "stores of floating-point numbers: folders, outputs of encode, a pattern, URLs", required=True
    )
    output: str | None = flag(
        None, "folder for the quantised stores (default: int8 or binary beside the sizes, where funnels find them)"
    )
    to: Literal["int8", "binary"] = flag(None, "a byte or a bit for each number", required=True)
    size: str | None = flag(None, "layer:dim, to quantise this size only (default: all sizes)")
    overwrite: bool = flag(False, "replace another store in the output folder")


@dataclass
class StoreExportArguments:
    """Exporting."""

    path: str = flag("", "the store: the folder of a size, an output of encode, a pattern, a URL", required=True)
    output: str = flag("", "a local file; with --to npy a folder", required=True)
    to: Literal["parquet", "arrow", "npy"] = flag(
        None, "columns id and embedding in one file, or vectors.npy and ids.txt (line n is row n)", required=True
    )
    size: str | None = flag(None, "layer:dim, where PATH holds several sizes")
    overwrite: bool = flag(False, "replace an existing output")


def _size(text: str | None) -> Size | None:
    return Size.parse(text) if text else None


def _verify(args: PathArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.operations import verify_stores

    figures = verify_stores(args.path)
    problems = figures["problems"]
    state = f"{len(problems)} problems" if problems else "no problems"
    read = f"{readable(figures['bytes'])} in {figures['shards']} shards of {figures['stores']} stores read"
    finish(common, f"{read}: {state}", figures)
    if problems:
        more = [f"and {len(problems) - _SHOWN} more; --json lists all"] if len(problems) > _SHOWN else []
        what = "\n  ".join([*problems[:_SHOWN], *more])
        raise UserError(what, "run the command that wrote it again; it writes damaged and missing files")


def _info(args: PathArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.operations import as_text, describe_stores

    stores = describe_stores(args.path)
    if not common.json:
        print("\n".join(map(as_text, stores)), flush=True)
    unfinished = sum(not store["complete"] for store in stores)
    incomplete = f", {unfinished} of them incomplete" if unfinished else ""
    summary = f"{len(stores)} stores, {readable(sum(store['bytes'] for store in stores))}{incomplete}"
    finish(common, summary, {"stores": stores})


def _slice(args: SliceArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.operations import slice_store

    figures = slice_store(args.path, args.output, args.parsed_dims(), _size(args.size), args.overwrite)
    sizes = ", ".join(figures["sizes"])
    summary = f"{figures['rows']} rows cut from {figures['from']} to {sizes}; in {figures['output']}"
    finish(common, summary, figures)


def _merge(args: MergeArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.operations import merge_stores

    figures = merge_stores(args.path, args.output, args.shard_size, _size(args.size), args.overwrite)
    summary = f"{figures['rows']} rows at {', '.join(figures['sizes'])} merged; in {figures['output']}"
    finish(common, summary, figures)


def _quantise(args: QuantiseArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.convert import quantise_stores

    figures = quantise_stores(args.path, args.to, args.output, _size(args.size), args.overwrite)
    smaller = f"{readable(figures['bytes_before'])} of vectors as {readable(figures['bytes'])}"
    summary = f"{figures['rows']} rows at {', '.join(figures['sizes'])} in {args.to}, {smaller}; in {figures['output']}"
    finish(common, summary, figures)


def _export(args: StoreExportArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.convert import export_store

    figures = export_store(args.path, args.output, args.to, _size(args.size), args.overwrite)
    summary = (
        f"{figures['rows']} rows at {figures['size']} as {figures['to']} ({figures['dtype']}) in {figures['output']}"
    )
    finish(common, summary, figures)


def _import(args: ImportArguments, common: CommonArguments) -> None:
    figures = import_pickles(args)
    summary = (
        f"{figures['rows']} {figures['kind']} from {figures['files']} files at {figures['size']}, "
        f"fingerprint {figures['fingerprint']}; in {figures['output']}"
    )
    finish(common, summary, figures)


# What it does, its flags, its words before the flags, the function, and an example of these words.
COMMANDS: dict[str, tuple[str, type, str, Command, str]] = {
    "verify": ("read every file and compare its checksum", PathArguments, "PATH…", _verify, "passages queries"),
    "info": ("describe stores, complete or not", PathArguments, "PATH…", _info, "passages"),
    "slice": (
        "write smaller dims of the same layer",
        SliceArguments,
        "PATH OUTPUT",
        _slice,
        "passages/L12-D768 small --dims 32,128",
    ),
    "merge": ("write parts as one store", MergeArguments, "PATH… OUTPUT", _merge, "part-0 part-1 passages"),
    "quantise": (
        "write a byte or a bit for each number",
        QuantiseArguments,
        "PATH…",
        _quantise,
        "passages --to int8",
    ),
    "export": (
        "write a store as Parquet, Arrow or plain numpy",
        StoreExportArguments,
        "PATH OUTPUT",
        _export,
        "passages passages.parquet --size 6:128",
    ),
    "import": (
        "make a store from pickles of Tevatron or ielab/Starbucks",
        ImportArguments,
        "FILE… OUTPUT",
        _import,
        "corpus.0.pkl corpus.1.pkl passages --layer 12",
    ),
}


def main(argv: Sequence[str]) -> None:
    """Run a sub-command, and print a summary."""
    if argv and argv[0] in ("-h", "--help", "help"):
        print("usage: starbucks store <sub-command> PATH… [flags]\n")
        for name, (line, _, words, *_) in COMMANDS.items():
            print(f"  {name:8} {words:13} {line}")
        print(
            "\nPaths are local or URLs such as s3://bucket/folder. starbucks store <sub-command> --help lists its flags."
        )
        return
    if not argv or argv[0] not in COMMANDS:
        what = f"store has no sub-command {argv[0]!r}" if argv else "store needs a sub-command"
        raise UserError(what, f"use one of {', '.join(COMMANDS)}; starbucks store --help describes them")
    line, flags, words, command, example = COMMANDS[argv[0]]
    arguments, common = parse_command(
        [flags],
        _named(argv[1:], "OUTPUT" in words),
        f"starbucks store {argv[0]} {words}",
        f"{line[0].upper()}{line[1:]}.",
        (f"starbucks store {argv[0]} {example}",),
    )
    command(arguments, common)


def _named(argv: Sequence[str], has_output: bool) -> list[str]:
    """Turn leading paths into flags: the last one into --output, the others into --path. A configuration file stays."""
    first_flag = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    paths, rest = list(argv[:first_flag]), list(argv[first_flag:])
    config = [paths.pop(0)] if paths and paths[0].endswith((".yaml", ".yml", ".json")) else []
    output = ["--output", paths.pop()] if has_output and len(paths) > 1 else []
    return [*config, *(["--path", *paths] if paths else []), *output, *rest]


if __name__ == "__main__":
    exit_command(main)
