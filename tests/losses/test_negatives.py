"""Further negatives, and negatives that are left out, equal their definition, written here with numpy in float64."""

import dataclasses

import numpy as np
import pytest
import torch

from starbucks_retrieval import Size, Sizes, UserError
from starbucks_retrieval.losses.base import Options
from starbucks_retrieval.losses.batch import Batch
from starbucks_retrieval.losses.mrl import METHOD, MRL
from starbucks_retrieval.losses.separate import SingleSize, SingleSizeOptions

FULL, SMALL, GROUP, COUNT = Size(1, 6), Size(1, 3), 2, 4
TEMPERATURE = 0.3


def rows(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(COUNT, 6)), rng.normal(size=(COUNT * GROUP, 6))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def batch_of(queries, passages, excluded=None, guide=None):
    tensors = [torch.from_numpy(part) for part in (queries, passages)]
    mask = None if excluded is None else torch.from_numpy(excluded)
    return Batch({1: tensors[0]}, {1: tensors[1]}, mask, guide=guide)


def definition(queries, passages, options, excluded=None, guide=None):
    """InfoNCE at the full size, one query and one negative at a time."""
    q, p = unit(queries), unit(passages)
    gq, gp = (q, p) if guide is None else guide
    total = 0.0
    for i in range(COUNT):
        limit = gq[i] @ gp[i * GROUP] + (
            np.inf if options.false_negative_margin is None else options.false_negative_margin
        )
        terms = [q[i] @ p[i * GROUP]]
        for j in range(COUNT * GROUP):
            known = excluded is not None and excluded[i, j]
            if j != i * GROUP and not known and gq[i] @ gp[j] <= limit:
                terms.append(q[i] @ p[j])
        for j in range(COUNT):
            if j == i or (excluded is not None and excluded[i, j * GROUP]):
                continue
            if options.query_negatives and gq[i] @ gq[j] <= limit:
                terms.append(q[i] @ q[j])
            if options.passage_negatives and gp[i * GROUP] @ gp[j * GROUP] <= limit:
                terms.append(p[i * GROUP] @ p[j * GROUP])
        logits = np.array(terms) / TEMPERATURE
        total += np.log(np.exp(logits).sum()) - logits[0]
    return total / COUNT


def known_positives():
    excluded = np.zeros((COUNT, COUNT * GROUP), dtype=bool)
    excluded[0, 2] = excluded[2, 1] = True  # another query's positive, and a negative
    return excluded


CASES = [
    {"query_negatives": True},
    {"passage_negatives": True},
    {"query_negatives": True, "passage_negatives": True, "false_negative_margin": 0.0},
    {"false_negative_margin": 0.1},
    {"false_negative_margin": -0.2},
]


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("changes", CASES)
def test_the_loss_equals_its_definition(changes, masked, guided):
    options = SingleSizeOptions(normalize=True, temperature=TEMPERATURE, **changes)
    queries, passages = rows()
    excluded = known_positives() if masked else None
    guide = tuple(unit(part) for part in rows(5)) if guided else None
    tensors = None if guide is None else tuple(torch.from_numpy(guide[i]) for i in (0, 1, 0))
    found = SingleSize(Sizes([FULL]), FULL, options)(batch_of(queries, passages, excluded, tensors)).total.item()
    assert found == pytest.approx(definition(queries, passages, options, excluded, guide), rel=1e-10)


def test_the_margin_changes_something_here():
    queries, passages = rows()
    plain = SingleSizeOptions(normalize=True, temperature=TEMPERATURE)
    masked = dataclasses.replace(plain, false_negative_margin=0.0)
    assert definition(queries, passages, plain) > definition(queries, passages, masked) + 0.01


def test_every_size_leaves_out_what_the_full_size_leaves_out():
    options = dataclasses.replace(METHOD.variants["mrl"], normalize=True, false_negative_margin=0.0)
    objective = MRL(Sizes([SMALL, FULL]), FULL, options)
    queries, passages = rows()
    scores = unit(queries) @ unit(passages).T
    above = scores > scores[np.arange(COUNT), np.arange(COUNT) * GROUP][:, None]
    plain = dataclasses.replace(options, false_negative_margin=None)
    expected = MRL(Sizes([SMALL, FULL]), FULL, plain)(batch_of(queries, passages, above)).total
    torch.testing.assert_close(objective(batch_of(queries, passages)).total, expected)


def test_the_mask_has_no_gradient_and_extremes_stay_finite():
    queries, passages = (torch.from_numpy(part).requires_grad_() for part in rows())
    options = SingleSizeOptions(
        normalize=True, temperature=TEMPERATURE, false_negative_margin=-10.0, query_negatives=True
    )
    loss = SingleSize(Sizes([FULL]), FULL, options)(Batch({1: queries}, {1: passages})).total
    loss.backward()
    assert loss.item() == 0 and queries.grad is not None and not queries.grad.isnan().any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_negatives": True, "in_batch": False}, "are in-batch negatives"),
        ({"false_negative_margin": 0.1, "contrastive_weight": 0.0, "distil_weight": 1.0}, "belong to InfoNCE"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Options(**changes)
