"""The door of `demo`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_door, setup_logging
from starbucks_retrieval.demo.settings import LONG, SHORT


@dataclasses.dataclass
class DemoArguments:
    """Demonstration."""

    output: str | None = flag(None, "folder for everything (default: demo-out, or demo-short-out with --short)")
    short: bool = flag(False, "a smaller collection and less training: under two minutes")


def main(argv: Sequence[str]) -> None:
    """Parse, demonstrate, print the table."""
    (arguments, common), _ = parse_flags(
        [DemoArguments, CommonArguments],
        argv,
        "starbucks demo",
        "The whole pipeline on the documentation of this machine's own Python, offline: encode at every size, train, "
        "and compare. A second call keeps what is finished.",
    )
    setup_logging(common)
    from starbucks_retrieval.demo.api import demo
    from starbucks_retrieval.demo.report import closing
    from starbucks_retrieval.demo.table import Row, text_table

    settings = dataclasses.replace(SHORT if arguments.short else LONG, seed=common.seed)
    summary = demo(arguments.output or ("demo-short-out" if arguments.short else "demo-out"), settings)
    table = text_table([Row(**row) for row in summary["rows"]])
    if not common.json:
        print(f"\n{table}\n", flush=True)
    words = closing(summary)
    finish(common, f"\n{table}\n\n{words}" if common.json else words, summary)


if __name__ == "__main__":
    sys.exit(run_door(main))
