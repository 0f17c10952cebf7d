"""The command `starbucks reproduce`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_flags, setup_logging
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.reproduce import ReproduceArguments

_EXAMPLES = (
    "starbucks reproduce --list",
    "starbucks reproduce starbucks/table2",
    "starbucks reproduce starbucks/table4 --scale cpu --data_dir data --dry_run",
    "starbucks reproduce my-table.yaml --scale cpu --seeds 3 --only BERT-SRL",
)


@dataclasses.dataclass
class ListArguments:
    """List."""

    list: bool = flag(False, "print the tables and figures and end")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, run what is missing of a table, and print it."""
    is_table = argv and not argv[0].startswith("-")
    words = ["--table", *argv] if is_table else ["--table", "all", *argv] if "--list" in argv else argv
    (arguments, listing, dry_run_args, common), _ = parse_flags(
        [ReproduceArguments, ListArguments, DryRunArguments, CommonArguments],
        words,
        "starbucks reproduce",
        "Run the rows of a table or figure of the papers, and print measured beside published scores and a verdict for each "
        "claim. A rerun of the same command keeps what is finished.",
        _EXAMPLES,
    )
    setup_logging(common)
    if listing.list:
        _list_tables(common)
        return
    from starbucks_retrieval.reproduce.api import preview, reproduce

    if dry_run_args.dry_run:
        rows, figures = preview(arguments)
        if not common.json:
            print(*align_columns(rows, "llrrl"), sep="\n")
            print(*(f"not run: {key}: {reason}" for key, reason in figures["not_run"].items()), sep="\n")
        finish(common, f"dry run: {figures['summary']}", {"dry_run": True, **figures})
        return
    figures = reproduce(arguments)
    if not common.json:
        print(figures["markdown"])
    told = "" if figures["complete"] else "; not complete, run the same command again"
    finish(common, f"{figures['seconds']:.0f} s; table, page and commands in {figures['output']}{told}", figures)


def _list_tables(common: CommonArguments) -> None:
    from starbucks_retrieval.reproduce.reading import find_table, read_table, table_names

    tables = {name: read_table(find_table(name)) for name in table_names()}
    if not common.json:
        rows = [["table", "rows", "what"], *([name, str(len(t.rows)), t.title] for name, t in tables.items())]
        print(*align_columns(rows, "lrl"), sep="\n")
    figures = {name: {"title": table.title, "source": table.source} for name, table in tables.items()}
    finish(common, f"{len(tables)} tables and figures", {"tables": figures})


if __name__ == "__main__":
    exit_command(main)
