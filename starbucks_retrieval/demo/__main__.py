"""The command `starbucks demo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, flag, parse_command
from starbucks_retrieval.demo import LONG, SHORT

_EXAMPLES = (
    "starbucks demo --short",
    "starbucks demo --output demo-out",
)


@dataclasses.dataclass
class DemoArguments:
    """Demonstration."""

    output: str | None = flag(None, "folder for everything (default: demo-out, or demo-short-out with --short)")
    short: bool = flag(False, "a smaller collection and less training: under two minutes")
    commands: bool = flag(False, "print the commands that each part stands for, and more to type next")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, run the demonstration, print its table and what to type next."""
    args, common = parse_command(
        [DemoArguments],
        argv,
        "starbucks demo",
        "The whole pipeline on the documentation of this machine's own Python, offline: encode at every size, train, "
        "and compare. A second call keeps what is finished.",
        _EXAMPLES,
    )
    from starbucks_retrieval.demo.api import demo
    from starbucks_retrieval.demo.page import score_table, wrapped

    settings = dataclasses.replace(SHORT if args.short else LONG, seed=common.seed)
    output = args.output or ("demo-short-out" if args.short else "demo-out")
    summary = demo(output, settings, commands=args.commands)
    table = f"\n{score_table(summary['rows']).to_string(col_space=8)}\n"
    if not common.json:
        print(table, flush=True)
    lines = summary["next"] if args.commands else summary["next"][:1]
    closing = [
        f"{summary['page']} has figures and examples; {summary['seconds']:.0f} s in all. "
        + ("Next:" if args.commands else "Next (--commands prints more):"),
        *(f"  {line['what']}\n    {wrapped(line['command'])}" for line in lines),
    ]
    finish(common, "\n".join([table, *closing] if common.json else closing), summary)


if __name__ == "__main__":
    exit_command(main)
