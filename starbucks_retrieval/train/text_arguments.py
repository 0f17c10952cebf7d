"""The flags of `train` for objectives that need texts alone."""

from __future__ import annotations

import dataclasses

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError


@dataclasses.dataclass(kw_only=True)  # TrainArguments("my-model") keeps its first argument
class TextArguments:
    """Training on texts without labels."""

    query_path: list[str] | None = flag(
        None,
        "distil: queries, as files like queries.jsonl or BEIR folders; --dataset_path then names corpora or .txt files",
    )
    max_texts: int | None = flag(
        None,
        "distil: texts to read, an equal number from each source (default: as many as --max_steps needs, else all)",
        rare=True,
    )
    teacher_model_name_or_path: str | None = flag(
        None,
        "distil: another encoder that teaches the small sizes, a folder or hub name; the full size stays as it is (default: "
        "the model's own full embedding teaches)",
    )
    teacher_embeddings: list[str] | None = flag(
        None,
        "distil: the same, from the teacher's embeddings as encode stored them, found by document id; with --query_path "
        "those of the queries too",
    )

    def check_texts(self, labelled: bool) -> None:
        """Check these flags.

        Args:
            labelled: Whether the objective trains on queries with their passages.

        Raises:
            UserError: A flag does not belong to the objective, or is out of range.
        """
        for name in ("query_path", "max_texts", "teacher_model_name_or_path", "teacher_embeddings"):
            if labelled and getattr(self, name) is not None:
                raise UserError(f"--{name} belongs to training without labels", "add --objective distil, or drop it")
        if self.teacher_model_name_or_path and self.teacher_embeddings:
            raise UserError(
                "--teacher_model_name_or_path and --teacher_embeddings contradict each other", "give one of them"
            )
        if self.max_texts is not None and self.max_texts < 1:
            raise UserError(f"--max_texts {self.max_texts} is below 1", "leave it out, or raise it")
