"""The command `doctor`: a report on the installation and the machine, for a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starbucks_retrieval.cli import exit_command, finish, flag, parse_command
from starbucks_retrieval.doctor import examine
from starbucks_retrieval.errors import UserError


@dataclass
class DoctorArguments:
    """Checks"""

    online: bool = flag(False, "check that the hub answers; without this flag no network is used")
    thorough: bool = flag(False, "import the packages of installed extras too, which takes longer")
    strict: bool = flag(False, "exit with status 2 if there is a problem; notes do not count")


def main(argv: Sequence[str]) -> None:
    """Parse the flags and print the report."""
    arguments, common = parse_command(
        [DoctorArguments],
        argv,
        "starbucks doctor",
        "Report versions, devices, disk space and extras of this installation, and its problems with remedies.",
        ("starbucks doctor", "starbucks doctor --online --thorough"),
    )
    report = examine(online=arguments.online, thorough=arguments.thorough)
    if not common.json:
        print(report, flush=True)
    serious = [problem for problem in report.problems if problem.serious]
    notes = len(report.problems) - len(serious)
    finish(common, f"{len(serious)} problems, {notes} notes, {report.facts['seconds']:.1f} s", report.to_json())
    if arguments.strict and serious:
        raise UserError(f"{len(serious)} problems, the first: {serious[0].what}", serious[0].remedy)


if __name__ == "__main__":
    exit_command(main)
