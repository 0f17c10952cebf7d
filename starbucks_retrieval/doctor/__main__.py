"""starbucks doctor: what this machine and this installation have, lack, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_door, setup_logging
from starbucks_retrieval.errors import UserError


@dataclass
class DoctorArguments:
    """What is examined"""

    online: bool = flag(False, "try whether the hub answers; nothing outside this machine is asked otherwise")
    thorough: bool = flag(False, "import the packages of installed extras too, which takes longer")
    strict: bool = flag(False, "exit with status 2 when there is a problem (a note is none)")


def main(argv: Sequence[str]) -> None:
    """Parse, examine, print what was found."""
    (arguments, common), _ = parse_flags(
        [DoctorArguments, CommonArguments],
        argv,
        "starbucks doctor",
        "Versions, devices, space and extras of this installation, and what is wrong with it.",
    )
    setup_logging(common)
    from starbucks_retrieval.doctor.api import examine
    from starbucks_retrieval.doctor.text import as_text

    found = examine(online=arguments.online, thorough=arguments.thorough)
    if not common.json:
        print(as_text(found), flush=True)
    problems = sum(problem.serious for problem in found.problems)
    finish(
        common, f"{problems} problems, {len(found.problems) - problems} notes, {found.seconds:.1f} s", found.to_json()
    )
    if arguments.strict and problems:
        raise UserError(f"{problems} problems, the first: {found.problems[0].what}", found.problems[0].remedy)


if __name__ == "__main__":
    sys.exit(run_door(main))
