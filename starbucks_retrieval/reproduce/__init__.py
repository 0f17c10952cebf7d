"""The tables and figures of the papers, each from one command: declared rows, run, and shown beside the published scores."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.reproduce.api import reproduce

__all__ = ["ReproduceArguments", "reproduce"]


@dataclasses.dataclass
class ReproduceArguments:
    """Reproduce."""

    table: str = flag(
        "",
        "<paper>/<table or figure> as --list names them, or a YAML file; also accepted as the first word",
        required=True,
    )
    scale: Literal["tiny", "cpu", "full"] = flag(
        "tiny",
        "tiny: made-up data and a random model, a minute; cpu: all-MiniLM-L6-v2 and the sets in --data_dir, hours on two "
        "cores; full: the paper's backbone and collections, on GPUs",
    )
    seeds: int = flag(1, "runs of each trained row; scores are their means")
    only: list[str] = flag(help="rows to run; the others are shown if they were run before", factory=list)
    data_dir: str = flag("data", "folder of the sets of --scale cpu, such as data/scifact")
    output_dir: str = flag("reproduced", "folder for all jobs and tables; several tables share it")
    minutes: float | None = flag(None, "stop after this time; the same command goes on from there")

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds} runs nothing", "use 1 or more; 3 gives intervals over seeds")
        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"--minutes {self.minutes:g} is not a time", "give a number above 0")


__getattr__, __dir__ = lazy_exports(__name__, {"reproduce": ".api"})
