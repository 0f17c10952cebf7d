"""The flags of `transfer`."""

from __future__ import annotations

import dataclasses

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sentences import SentenceArguments
from starbucks_retrieval.transfer.tasks import TASKS


@dataclasses.dataclass
class TransferArguments(SentenceArguments):
    """Transfer tasks."""

    data: list[str] = flag(
        help="tasks: their names, files, folders, hub names, or NAME=file", factory=lambda: list(TASKS)
    )
    folds: int = flag(10, "folds of cross-validation, and of the choice of regularisation inside each")
    jobs: int = flag(1, "classifiers trained at a time (-1: one a core)")
    output: str | None = flag(None, "JSON to write: figures and what made them")
    keep_texts: bool = flag(
        False, "write for every text whether it was told right, too, for paired tests of significance"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds < 2:
            raise UserError(f"--folds {self.folds} is below 2", "SentEval's is 10")
