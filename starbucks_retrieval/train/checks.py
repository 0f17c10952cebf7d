"""Checks of training data that the run and the dry run share."""

from __future__ import annotations

from dataclasses import dataclass

from starbucks_retrieval.data import Group, Passage, Records
from starbucks_retrieval.errors import UserError


@dataclass(frozen=True)
class MissingCounts:
    """Counts of a collection's rows, of rows without hard negatives, and of rows without a teacher's scores."""

    rows: int
    negatives: int
    scores: int


def check_rows(name: str, missing: MissingCounts, group_size: int, with_scores: bool, complete: bool = True) -> None:
    """Check that a collection has the negatives and the scores that training needs.

    Args:
        name: The collection, for messages.
        missing: The counts of its rows.
        group_size: Passages per query.
        with_scores: Whether training needs a teacher's scores.
        complete: Whether all rows were counted; if not, later rows may have negatives.

    Raises:
        UserError: No row has negatives, or some row has no scores.
    """
    wanted = group_size - 1
    if complete and wanted and missing.negatives == missing.rows:
        raise UserError(
            f"--train_group_size {group_size} needs {wanted} hard negatives per query, but {name} has none",
            "set --train_group_size 1 (in-batch negatives only), or give groups with negatives",
        )
    if with_scores and (missing.scores or (wanted and missing.negatives)):
        raise UserError(
            f"distillation needs a teacher's scores, and {max(missing.scores, missing.negatives)} "
            f"queries of {name} lack them",
            "give rows with positive_scores and negative_scores, as mine --save_scores true writes them",
        )


def check_first(name: str, first: Group | None, corpus: Records[Passage] | None) -> Group:
    """Check that a collection has groups, and texts for them.

    Args:
        name: The collection, for messages.
        first: Its first group, or None if it is empty.
        corpus: The texts of groups that hold ids, or None.

    Returns:
        `first`.

    Raises:
        UserError: There is no group, or it holds ids and there is no corpus.
    """
    if first is None:
        raise UserError(f"{name} holds no training groups", "check the path and the split")
    if first.passages is None and corpus is None:
        raise UserError(f"the groups of {name} hold ids without texts", "name the corpus with --corpus_path")
    return first


def check_inline(name: str, group: Group) -> dict[str, Passage]:
    """Return the texts of a group in a collection whose first group has texts.

    Args:
        name: The collection, for messages.
        group: Any group of it.

    Returns:
        The passages by docid.

    Raises:
        UserError: The group holds ids only.
    """
    if group.passages is None:
        raise UserError(
            f"{name}: query {group.query_id} holds ids, the first rows hold texts",
            "put rows with texts and rows with ids in separate files",
        )
    return group.passages


def unknown_document(group: Group, docid: str, corpus: Records[Passage] | None) -> UserError:
    """Return the error for an id that is not in the corpus.

    Args:
        group: The group that names the document.
        docid: The document's id.
        corpus: The corpus, whose name is in the message.

    Returns:
        The error, which the caller raises.
    """
    return UserError(
        f"query {group.query_id} names the document {docid}, which {corpus.name if corpus else ''} lacks",
        "give the corpus that the training groups or qrels were made for",
    )
