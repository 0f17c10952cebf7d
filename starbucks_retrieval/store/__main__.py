"""The door of `store`: one sub-command for each thing to do with stores that are there."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from starbucks_retrieval.cli import CommonArguments, finish, parse_flags, run_command, setup_logging
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store.arguments import (
    ExportArguments,
    ImportArguments,
    InfoArguments,
    MergeArguments,
    SliceArguments,
    VerifyArguments,
)

Command = Callable[[Any, CommonArguments], None]
_SHOWN = 20  # problems on a terminal


def _verify(arguments: VerifyArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.info import readable
    from starbucks_retrieval.store.verify import verify_stores

    figures = verify_stores(arguments.path)
    problems = figures["problems"]
    state = f"{len(problems)} problems" if problems else "all as written"
    read = f"{readable(figures['bytes'])} in {figures['shards']} shards of {figures['stores']} stores read"
    finish(common, f"{read}: {state}", figures)
    if problems:
        more = [f"and {len(problems) - _SHOWN} more; --json lists all"] if len(problems) > _SHOWN else []
        what = "\n  ".join([*problems[:_SHOWN], *more])
        raise UserError(what, "run the command that wrote it again; it writes what is not whole")


def _info(arguments: InfoArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.info import as_text, describe_stores, readable

    stores = describe_stores(arguments.path)
    if not common.json:
        print("\n".join(map(as_text, stores)), flush=True)
    unfinished = sum(not store["complete"] for store in stores)
    told = f", {unfinished} of them incomplete" if unfinished else ""
    summary = f"{len(stores)} stores, {readable(sum(store['bytes'] for store in stores))}{told}"
    finish(common, summary, {"stores": stores})


def _slice(arguments: SliceArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.slice import slice_store

    figures = slice_store(arguments.path, arguments.output, arguments.wanted(), arguments.source(), arguments.overwrite)
    sizes = ", ".join(figures["sizes"])
    summary = f"{figures['rows']} rows cut from {figures['from']} to {sizes}; in {figures['output']}"
    finish(common, summary, figures)


def _merge(arguments: MergeArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.merge import merge_stores

    figures = merge_stores(
        arguments.path, arguments.output, arguments.shard_size, arguments.wanted(), arguments.overwrite
    )
    summary = f"{figures['rows']} rows at {', '.join(figures['sizes'])}, whole; in {figures['output']}"
    finish(common, summary, figures)


def _export(arguments: ExportArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.convert import export_store

    figures = export_store(arguments.path, arguments.output, arguments.to, arguments.wanted(), arguments.overwrite)
    summary = (
        f"{figures['rows']} rows at {figures['size']} as {figures['to']} ({figures['dtype']}) in {figures['output']}"
    )
    finish(common, summary, figures)


def _import(arguments: ImportArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.store.tevatron import import_pickles

    settings = dataclasses.asdict(arguments)
    files, output, layer, name = (settings.pop(key) for key in ("path", "output", "layer", "name"))
    settings["fingerprint"] = arguments.stamp()
    figures = import_pickles(files, output, layer, model_name=name or "", **settings)
    summary = (
        f"{figures['rows']} {figures['kind']} from {figures['files']} files at {figures['size']}, "
        f"fingerprint {figures['fingerprint']}; in {figures['output']}"
    )
    finish(common, summary, figures)


# name: (what it does, its flags, words that come first, what runs it)
COMMANDS: dict[str, tuple[str, type, str, Command]] = {
    "verify": ("read every file and compare its checksum", VerifyArguments, "PATH…", _verify),
    "info": ("tell what stores hold, finished or not", InfoArguments, "PATH…", _info),
    "slice": ("write smaller dims of the same layer", SliceArguments, "PATH OUTPUT", _slice),
    "merge": ("write parts as one store", MergeArguments, "PATH… OUTPUT", _merge),
    "export": ("write a store as Parquet, Arrow or plain numpy", ExportArguments, "PATH OUTPUT", _export),
    "import": ("make a store of Tevatron's or ielab's pickles", ImportArguments, "FILE… OUTPUT", _import),
}


def main(argv: Sequence[str]) -> None:
    """Choose the sub-command, parse, run it, summarise."""
    if argv and argv[0] in ("-h", "--help", "help"):
        print("usage: starbucks store <sub-command> PATH… [flags]\n")
        for name, (line, _, words, _) in COMMANDS.items():
            print(f"  {name:7} {words:13} {line}")
        print(
            "\nPaths are local or URLs such as s3://bucket/folder. starbucks store <sub-command> --help lists its flags."
        )
        return
    if not argv or argv[0] not in COMMANDS:
        what = f"store has no sub-command {argv[0]!r}" if argv else "store needs a sub-command"
        raise UserError(what, f"one of {', '.join(COMMANDS)}; starbucks store --help tells what they do")
    line, flags, words, command = COMMANDS[argv[0]]
    (arguments, common), _ = parse_flags(
        [flags, CommonArguments],
        _named(argv[1:], "OUTPUT" in words),
        f"starbucks store {argv[0]} {words}",
        f"{line[0].upper()}{line[1:]}.",
    )
    setup_logging(common)
    command(arguments, common)


def _named(argv: Sequence[str], has_output: bool) -> list[str]:
    """The paths that come first as flags: the last one as --output, the others as --path. A configuration file stays."""
    first_flag = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    paths, rest = list(argv[:first_flag]), list(argv[first_flag:])
    config = [paths.pop(0)] if paths and paths[0].endswith((".yaml", ".yml", ".json")) else []
    output = ["--output", paths.pop()] if has_output and len(paths) > 1 else []
    return [*config, *(["--path", *paths] if paths else []), *output, *rest]


if __name__ == "__main__":
    sys.exit(run_command(main))
