"""The command `starbucks demo`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_command, setup_logging
from starbucks_retrieval.demo import LONG, SHORT


@dataclasses.dataclass
class DemoArguments:
    """Demonstration."""

    output: str | None = flag(None, "folder for everything (default: demo-out, or demo-short-out with --short)")
    short: bool = flag(False, "a smaller collection and less training: under two minutes")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, run the demonstration, print its table and what to type next."""
    (args, common), _ = parse_flags(
        [DemoArguments, CommonArguments],
        argv,
        "starbucks demo",
        "The whole pipeline on the documentation of this machine's own Python, offline: encode at every size, train, "
        "and compare. A second call keeps what is finished.",
    )
    setup_logging(common)
    from starbucks_retrieval.demo.api import demo
    from starbucks_retrieval.demo.page import score_table

    settings = dataclasses.replace(SHORT if args.short else LONG, seed=common.seed)
    summary = demo(args.output or ("demo-short-out" if args.short else "demo-out"), settings)
    table = f"\n{score_table(summary['rows']).to_string(col_space=8)}\n"
    if not common.json:
        print(table, flush=True)
    closing = [
        f"page: {summary['page']}    figure: {summary['figure']}",
        f"done in {summary['seconds']:.0f} s. What you can type next:",
        *(f"\n  {line['what']}\n  {line['command']}" for line in summary["next"]),
    ]
    finish(common, "\n".join([table, *closing] if common.json else closing), summary)


if __name__ == "__main__":
    sys.exit(run_command(main))
