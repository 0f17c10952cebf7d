"""Whether stores belong together, by their specs: queries with passages, and the parts of one store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store.spec import StoreSpec, job_difference, same_fingerprint

# Queries and passages must share these, or their inner product means nothing.
_GEOMETRY = ("pooling", "normalize")


def check_same(queries: StoreSpec, passages: StoreSpec) -> None:
    """Check that queries and passages can be scored against each other.

    Args:
        queries: The spec of the queries. Its `passage_size` is the size that the passages must have.
        passages: The spec of the passages.

    Raises:
        UserError: The sizes do not match, the fingerprints are of different models, or pooling or normalize differs;
            the message names the difference.
    """
    if not _comparable_layers(queries, passages):
        if queries.passage_size != passages.size:
            raise _other_size(queries, passages)
        _check_model(queries, passages)
    elif queries.size.dim != passages.size.dim:
        raise UserError(
            f"queries and passages differ in dim: {queries.size} and {passages.size}",
            "layers of this model may differ, dims may not: take one dim for both",
        )
    for name in _GEOMETRY:
        left, right = getattr(queries, name), getattr(passages, name)
        if left != right:
            what = f"queries and passages differ in {name}: {left!r} and {right!r}"
            raise UserError(what, "encode both with one model, at one size")


def check_parts(parts: Sequence[tuple[StoreSpec, Path]]) -> None:
    """Check that folders are all parts of one job.

    Args:
        parts: The spec and the folder of each, in the order of their numbers.

    Raises:
        UserError: Parts are of different jobs, or a part is missing or named twice.
    """
    job, folder = parts[0]
    for spec, other in parts[1:]:
        if difference := job_difference(job, spec, ignore=("part",)):
            raise UserError(
                f"{folder} and {other} are not parts of one store: {difference}", "name the folders of one encoding job"
            )
    found = [spec.part for spec, _ in parts]
    if len(found) != job.parts or found != list(range(len(found))):
        # A damaged number of parts may be too large for a list of them.
        missing = [part for part in range(min(job.parts, len(found) + 10)) if part not in found]
        what = f"parts {missing} of {job.parts} are missing" if missing else f"a part is named twice: {found}"
        raise UserError(what, "encode every --dataset_shard_index, and name each part once")


def _comparable_layers(queries: StoreSpec, passages: StoreSpec) -> bool:
    """Return whether projections brought two different layers into one space, so that their embeddings are comparable."""
    same_space = bool(queries.shared_space) and queries.shared_space == passages.shared_space
    return same_space and queries.size.layer != passages.size.layer


def _other_size(queries: StoreSpec, passages: StoreSpec) -> UserError:
    if queries.size.dim == passages.size.dim and (queries.shared_space or passages.shared_space):
        spaces = [spec.shared_space or "none" for spec in (queries, passages)]
        return UserError(
            f"queries at {queries.size} and passages at {passages.size} are not in one space: {' and '.join(spaces)}",
            "encode both with one model that starbucks fit made, or at one layer",
        )
    if queries.space is None:
        return UserError(
            f"queries and passages differ in size: {queries.size} and {passages.size}",
            "encode both with one model, at one size; passages of another layer need a model that was trained for them "
            "or that starbucks fit made",
        )
    wanted = queries.passage_size
    return UserError(
        f"queries at {queries.size} of this model are scored against passages at {wanted}, these are at {passages.size}",
        f"encode the passages at {wanted}, or use other queries",
    )


def _check_model(queries: StoreSpec, passages: StoreSpec) -> None:
    shallow, deep = sorted((queries, passages), key=lambda spec: spec.size.layer)
    fingerprint = deep.fingerprint
    if shallow.size.layer < deep.size.layer:
        if len(deep.lineage) < shallow.size.layer:
            raise UserError(
                f"the {deep.kind} at {deep.size} do not record the fingerprints of lower layers, so they cannot be "
                f"compared with the {shallow.kind} at {shallow.size}",
                f"encode the {deep.kind} again with the model of the {shallow.kind}",
            )
        fingerprint = deep.lineage[shallow.size.layer - 1]
    if same_fingerprint(shallow.fingerprint, fingerprint):
        return
    if queries.model_name != passages.model_name:
        what = f"queries and passages come from different models: {_model(queries)} and {_model(passages)}"
    else:
        what = (
            f"queries and passages come from different weights or settings of {passages.model_name or 'one model'}: "
            f"fingerprints {queries.fingerprint} and {passages.fingerprint}"
        )
    raise UserError(what, "encode both with one model, at one size")


def _model(spec: StoreSpec) -> str:
    return f"{spec.model_name or 'unnamed'} ({spec.fingerprint})"
