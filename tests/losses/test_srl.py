"""Properties of SRL that golden vectors do not check: nested scores, exclusions, refusals."""

from __future__ import annotations

import pytest
import torch

from starbucks_retrieval import Size, Sizes, UserError
from starbucks_retrieval.losses.batch import Batch, BatchViews
from starbucks_retrieval.losses.functional import positive_columns
from starbucks_retrieval.losses.srl import SRL, SRLOptions


def batch(queries=3, group=2, width=8, layers=2):
    generator = torch.Generator().manual_seed(0)
    q = {n: torch.randn(queries, width, generator=generator, dtype=torch.float64) for n in range(1, layers + 1)}
    p = {n: torch.randn(queries * group, width, generator=generator, dtype=torch.float64) for n in range(1, layers + 1)}
    return q, p


def srl(q, p, sizes, options, excluded=None):
    return SRL(sizes, sizes.full, options)(Batch(q, p, excluded))


@pytest.mark.parametrize("normalize", [False, True])
def test_nested_dims_equal_separate_products(normalize):
    q, p = batch()
    views = BatchViews(Batch(q, p), normalize)
    views.scores(Size(1, 5))  # the order of the calls makes no difference
    for size in Sizes.parse("1:2,1:5,1:8,2:3,2:8"):
        scores = views.scores(size)
        a, b = q[size.layer][:, : size.dim], p[size.layer][:, : size.dim]
        if normalize:
            a, b = torch.nn.functional.normalize(a), torch.nn.functional.normalize(b)
        torch.testing.assert_close(scores, a @ b.T)


def test_a_zero_vector_has_a_finite_gradient_under_cosine():
    q, p = batch()
    q[1] = torch.zeros_like(q[1]).requires_grad_()
    loss = srl(q, p, Sizes.parse("1:4,2:8"), SRLOptions(normalize=True, temperature=0.05))
    loss.total.backward()
    assert torch.isfinite(q[1].grad).all()


def test_an_excluded_passage_is_as_if_absent():
    q, p = batch(queries=1, group=4)
    sizes = Sizes.parse("1:4,2:8")
    excluded = torch.tensor([[False, False, True, False]])
    without = {layer: rows[[0, 1, 3]] for layer, rows in p.items()}
    masked = srl(q, p, sizes, SRLOptions(), excluded)
    absent = srl(q, without, sizes, SRLOptions())
    torch.testing.assert_close(masked.total, absent.total)
    for name, part in absent.parts.items():
        torch.testing.assert_close(masked.parts[name], part)


def test_exclusion_survives_float32():
    q, p = ({n: rows.float().requires_grad_() for n, rows in side.items()} for side in batch())
    excluded = torch.zeros(3, 6, dtype=torch.bool)
    excluded[0, 1:] = True  # query 0 has no negatives left
    loss = srl(q, p, Sizes.parse("1:4,2:8"), SRLOptions(temperature=0.01), excluded)
    loss.total.backward()
    assert torch.isfinite(loss.total) and all(torch.isfinite(rows.grad).all() for rows in q.values())
    assert not q[1].grad[0].any()


def test_the_teacher_gets_no_gradient_from_the_alignment():
    q, p = batch()
    q[2].requires_grad_()
    loss = srl(q, p, Sizes.parse("1:4,2:8"), SRLOptions(kl_weight=5.0))
    (with_kl,) = torch.autograd.grad(loss.total, q[2])
    loss = srl(q, p, Sizes.parse("1:4,2:8"), SRLOptions(kl_weight=0.0))
    (without,) = torch.autograd.grad(loss.total, q[2])
    torch.testing.assert_close(with_kl, without)
    assert not any(name.startswith("kl") for name in loss.parts)


def test_sizes_without_their_full_size_are_refused():
    q, p = batch()
    with pytest.raises(UserError, match="lack their full size 2:8"):
        srl(q, p, Sizes.parse("1:8,2:4"), SRLOptions())


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"kl_temperature": -1.0},
        {"kl_weight": -1.0},
        {"kl_space": "coords"},
        {"kl_teacher": "same_dim"},
    ],
)
def test_contradictory_options_are_refused(settings):
    with pytest.raises(UserError) as caught:
        SRLOptions(**settings)
    assert caught.value.hint


def test_groups_must_divide():
    assert positive_columns(3, 6).tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="groups"):
        positive_columns(3, 7)
