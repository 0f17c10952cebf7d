"""What training data must be, asked by `train` of what it has read and by its dry run of what it looks at."""

from __future__ import annotations

from dataclasses import dataclass

from starbucks_retrieval.data import Group, Passage, Records
from starbucks_retrieval.errors import UserError


@dataclass(frozen=True)
class Lacking:
    """How many of the rows of a collection have no hard negatives, and how many no teacher's scores."""

    rows: int
    negatives: int
    scores: int


def check_rows(name: str, found: Lacking, group_size: int, with_scores: bool, whole: bool = True) -> None:
    """Raise UserError where no row has the negatives, or some row lacks the scores, that training asks for.

    `whole` says whether all rows were looked at: of some alone nobody can say that no row has negatives.
    """
    wanted = group_size - 1
    if whole and wanted and found.negatives == found.rows:
        raise UserError(
            f"--train_group_size {group_size} asks for {wanted} hard negatives a query, but {name} has none",
            "set --train_group_size 1 (in-batch negatives only), or give groups with negatives",
        )
    if with_scores and (found.scores or (wanted and found.negatives)):
        raise UserError(
            f"distillation needs a teacher's scores, and {max(found.scores, found.negatives)} "
            f"queries of {name} lack them",
            "give rows with positive_scores and negative_scores, as mine --save_scores true writes them",
        )


def check_first(name: str, first: Group | None, corpus: Records[Passage] | None) -> Group:
    """The first group. Raises UserError where there is none, and where it holds ids and nothing has their texts."""
    if first is None:
        raise UserError(f"{name} holds no training groups", "check the path and the split")
    if first.passages is None and corpus is None:
        raise UserError(f"the groups of {name} hold ids without texts", "name the corpus with --corpus_path")
    return first


def check_inline(name: str, group: Group) -> dict[str, Passage]:
    """The texts of a group in a collection whose first group has texts. Raises UserError where it holds ids only."""
    if group.passages is None:
        raise UserError(
            f"{name}: query {group.query_id} holds ids, the first rows hold texts",
            "keep rows with texts and rows with ids in files of their own",
        )
    return group.passages


def unknown_document(group: Group, docid: str, corpus: Records[Passage] | None) -> UserError:
    """The error for an id that the corpus has not got."""
    return UserError(
        f"query {group.query_id} names the document {docid}, which {corpus.name if corpus else ''} lacks",
        "give the corpus that the training groups or qrels were made for",
    )
