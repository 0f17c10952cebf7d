"""The sizes that tables show, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.report.inputs import Inputs, is_grid
from starbucks_retrieval.sizes import SIZE_ALIASES, Size, Sizes


@dataclass(frozen=True)
class ReportSizes:
    """Sizes in ascending order; `cups` names those that are rungs of the papers' six-step ladder."""

    sizes: tuple[Size, ...]
    cups: dict[Size, str]

    def __iter__(self) -> Iterator[Size]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, size: Size | None) -> str:
        """`Tall 6:128`, `6:128` where it is no such rung, `no size` where a file names none."""
        if size is None:
            return "no size"
        cup = self.cups.get(size)
        return f"{cup} {size}" if cup else str(size)

    def __str__(self) -> str:
        return ", ".join(map(str, self.sizes))


def choose_report_sizes(inputs: Inputs, asked: str | None) -> ReportSizes:
    """The sizes asked for, else those of the files that hold a list, else the default sizes that lie on the grid.

    A grid of one layer, or of one dim, is shown whole. Cup names go to six sizes in the papers' proportions (2:32 …
    12:768, or the same of another backbone), and to those of them that are asked for. Raises UserError for sizes that
    cannot be read or that nothing was measured at.
    """
    measured = {size for method in inputs.methods for _, size in method.cells if size is not None}
    members = sorted(inputs.members or (_default(measured) & measured if is_grid(measured) else measured))
    cups = _cups(set(members) or measured)
    if asked is not None:
        whole = Sizes(members) if members else None
        sizes = tuple(Sizes.parse(asked, whole))
        cups = cups or _cups(measured)
        if not measured & set(sizes):
            known = ", ".join(map(str, sorted(measured))) or "no size"
            raise UserError(f"nothing was measured at {asked}", f"the files hold {known}")
        return ReportSizes(sizes, cups)
    return ReportSizes(tuple(members), cups)


def _default(measured: set[Size]) -> set[Size]:
    if not measured:
        return set()
    return set(Sizes.default(max(size.layer for size in measured), max(size.dim for size in measured)))


def _cups(sizes: set[Size]) -> dict[Size, str]:
    """Names of the six rungs in the papers' proportions, if all six are among `sizes`."""
    members = sorted(_default(sizes))
    if len(members) != len(SIZE_ALIASES) or not set(members) <= sizes:
        return {}
    return {rung: cup.capitalize() for rung, cup in zip(members, SIZE_ALIASES)}
