"""Properties of the methods that golden vectors do not check: sizes visited, samples, refusals, the registry."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from starbucks_retrieval import Size, Sizes, UserError
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.losses.base import size_loss
from starbucks_retrieval.losses.batch import Batch, BatchViews
from starbucks_retrieval.losses.pairs import cosent
from starbucks_retrieval.losses.two_dmse import Draw

FULL = Size(4, 32)
SIZES = Sizes.parse("1:8,2:16,4:32")
LABELLED = [method for method in LOSSES if LOSSES[method].labelled]
ALL_VARIANTS = [(method, name) for method in LOSSES for name in LOSSES[method].variants]


def test_the_help_lists_every_variant():
    assert list(LOSSES) == ["srl", "mrl", "2dmse", "2dmse-v2", "separate", "full", "distil"]
    for name in LOSSES:
        variants = LOSSES[name].variants
        assert len(variants) == 1 or f"(variants {', '.join(variants)})" in LOSSES.help(name)


def build(method, name=None, sizes=None, **changes):
    found = LOSSES[method]
    options = found.variants[name or next(iter(found.variants))]
    default = Sizes([FULL]) if method in ("separate", "full") else SIZES
    return found.objective(sizes or default, FULL, dataclasses.replace(options, **changes))


def random_batch(queries=3, group=2, dtype=torch.float64, **more):
    generator = torch.Generator().manual_seed(0)

    def rows(count):
        return {n: torch.randn(count, 32, generator=generator, dtype=dtype).requires_grad_() for n in range(5)}

    return Batch(rows(queries), rows(queries * group), **more)


@pytest.mark.parametrize(("method", "name"), ALL_VARIANTS)
def test_a_method_uses_exactly_the_layers_it_names(method, name):
    objective = build(method, name)
    batch = random_batch()
    for step in range(4):
        drawn = objective.draw(np.random.default_rng(step))
        queries, passages = objective.layers(drawn)
        given = Batch(
            {n: batch.queries[n] for n in queries},
            {n: batch.passages[n] for n in passages},
            frozen_queries=batch.queries[0].detach(),
            frozen_passages=batch.passages[0].detach(),
        )
        loss = objective(given, drawn)
        pooled_layers = [given.queries[n] for n in queries]
        gradients = torch.autograd.grad(loss.total, pooled_layers)
        assert torch.isfinite(loss.total) and all(gradient.any() for gradient in gradients)
        assert all(not part.requires_grad for part in loss.parts.values())


@pytest.mark.parametrize(
    ("method", "name", "binary_weight"),
    [(*variant, 0.0) for variant in ALL_VARIANTS] + [(method, None, 1.0) for method in LABELLED],
)
def test_a_loss_by_query_is_the_mean_over_parts_of_the_batch(method, name, binary_weight):
    objective = build(method, name, binary_weight=binary_weight)
    batch = random_batch(4, 2)
    drawn = objective.draw(np.random.default_rng(0))
    whole = objective(batch, drawn).total
    parts = []
    for start in (0, 2):
        queries = {n: rows[start : start + 2] for n, rows in batch.queries.items()}
        parts.append(objective(Batch(queries, batch.passages, group=2, offset=2 * start), drawn).total)
    if objective.options.by_query:
        torch.testing.assert_close(sum(parts) / 2, whole)
    else:
        assert abs((sum(parts) / 2 - whole).item()) > 1e-9


def test_equal_generators_draw_the_same_and_every_choice_is_drawn():
    objective = build("2dmse", dims=(8, 16))
    draws = [objective.draw(np.random.default_rng([7, step])) for step in range(300)]
    assert draws == [objective.draw(np.random.default_rng([7, step])) for step in range(300)]
    counts = Counter((draw.layer, draw.last_dim) for draw in draws)
    assert set(counts) == {(n, d) for n in (1, 2, 3) for d in (8, 16)} and min(counts.values()) > 25
    assert all(draw.last_dim == draw.layer_dim for draw in draws)
    apart = build("2dmse", "st-3.2")
    assert any(d.last_dim != d.layer_dim for d in (apart.draw(np.random.default_rng(i)) for i in range(20)))


def test_the_published_dims():
    full = Size(12, 768)
    method = LOSSES["2dmse"].objective(Sizes([full]), full, LOSSES["2dmse"].variants["v1-paper"])
    dims = {method.draw(np.random.default_rng(i)).last_dim for i in range(200)}
    assert dims == {8, 16, 32, 64, 128, 256, 512}
    v2 = LOSSES["2dmse-v2"].objective(Sizes([full]), full, LOSSES["2dmse-v2"].variants["eq12"])
    assert {size.dim for size in v2.visited(None)} == {128, 768}
    assert v2.layers(None)[0] == tuple(range(1, 13))


def test_the_lambdas_of_eq_7_and_the_ablation_without_the_full_size():
    rng = torch.Generator().manual_seed(0)
    queries, passages = (
        {n: torch.randn(count, 32, generator=rng, dtype=torch.float64) for n in (2, 4)} for count in (3, 6)
    )
    drawn = Draw(2, 8, 8)

    def ce(layer, dim):
        scores = queries[layer][:, :dim] @ passages[layer][:, :dim].T
        return -scores.log_softmax(1)[range(3), [0, 2, 4]].mean()

    terms = [ce(4, 32), ce(2, 32), ce(4, 8), ce(2, 8)]
    for weights in ((1.0, 0.5, 2.0, 3.0), (0.0, 1.0, 1.0, 1.0)):
        loss = build("2dmse", kl_weight=0.0, term_weights=weights)(Batch(queries, passages), drawn)
        torch.testing.assert_close(loss.total, sum(weight * term for weight, term in zip(weights, terms)))


def test_the_russian_doll_of_the_retrieval_code():
    """Its loss as that code writes it: layers 2 and 3 of a list, the second one drawn, dim 8."""
    rng = torch.Generator().manual_seed(0)
    queries, passages = (
        {n: torch.randn(count, 32, generator=rng, dtype=torch.float64) for n in (3, 4)} for count in (3, 6)
    )
    targets, expected = torch.tensor([0, 2, 4]), torch.zeros((), dtype=torch.float64)
    for layer, weight in ((4, 1.0), (3, 1 / 2)):
        for dim in (32, 8):
            scores = torch.einsum("qh,ph->qp", queries[layer][:, :dim], passages[layer][:, :dim])
            expected += weight * torch.nn.functional.cross_entropy(scores, targets)
    for dim in (32, 8):
        student, teacher = (torch.cat([queries[n], passages[n]])[:, :dim] / 0.3 for n in (3, 4))
        expected += torch.nn.functional.kl_div(
            student.log_softmax(1), teacher.softmax(1), reduction="batchmean"
        )  # not weighted by the position of the layer
    method = build("2dmse", "russian-doll", layers=(2, 3))
    torch.testing.assert_close(method(Batch(queries, passages), Draw(3, 8, 8)).total, expected)


def test_sampled_srl_takes_one_layer_and_the_last():
    objective = build("srl", "starbucks-sampled")
    seen = {objective.draw(np.random.default_rng(i)).layers for i in range(20)}
    assert seen == {(1, 4), (2, 4)}
    assert [str(s) for s in objective.sampled(2)] == ["2:8", "2:16", "2:32", "4:8", "4:16", "4:32"]


@pytest.mark.parametrize("method", LOSSES)
def test_passages_of_another_depth(method):
    pairs = tuple((n, 4) for n in range(4))
    objective, batch = build(method, passage_layers=pairs), random_batch()
    drawn = objective.draw(np.random.default_rng(0))
    assert objective.layers(drawn)[1] == (4,)
    moved = Batch(batch.queries, dict.fromkeys(range(5), batch.passages[4]))
    torch.testing.assert_close(objective(batch, drawn).total, build(method)(moved, drawn).total)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("method", LABELLED)
def test_the_loss_over_rounded_passages_is_an_extra_term(method, normalize):
    excluded = torch.zeros(3, 6, dtype=torch.bool)
    excluded[0, 3] = True
    batch, fixed = random_batch(excluded=excluded), {"normalize": normalize, "temperature": 0.5}
    objective, plain = build(method, binary_weight=2.0, **fixed), build(method, **fixed)
    drawn = objective.draw(np.random.default_rng(0))
    size = objective.visited(drawn)[0]
    views = BatchViews(batch, normalize)
    queries, passages = (side[size.layer][:, : size.dim] for side in (batch.queries, batch.passages))
    if normalize:
        queries, passages = (side / side.norm(dim=1, keepdim=True) for side in (queries, passages))
    median = passages.quantile(0.5, dim=0)
    bits = median + (passages - median).abs().mean(dim=0) * (passages - median).sign()
    scores = (queries @ bits.T / 0.5).masked_fill(excluded, -torch.inf)
    extra = 2 * torch.nn.functional.cross_entropy(scores, torch.tensor([0, 2, 4]))
    expected = size_loss(views, size, plain.options) + extra
    torch.testing.assert_close(size_loss(views, size, objective.options), expected)
    assert objective(batch, drawn).total > plain(batch, drawn).total


@pytest.mark.parametrize("method", LOSSES)
def test_distillation_is_an_extra_term_at_every_visited_size(method):
    teacher = torch.tensor([[3.0, 1.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    batch, plain = random_batch(teacher=teacher), build(method)
    objective = build(method, distil_weight=2.0)
    drawn = objective.draw(np.random.default_rng(0))
    loss = objective(batch, drawn)
    terms = {name: part for name, part in loss.parts.items() if name.startswith("distil/")}
    assert set(terms) == {f"distil/{size}" for size in objective.visited(drawn)}
    views = BatchViews(batch, objective.options.normalize)
    for size in objective.visited(drawn):
        ours = views.scores(size).gather(1, batch.group_columns) / objective.options.temperature
        target = teacher.softmax(1)
        expected = (target * (target.log() - ours.log_softmax(1))).sum(1).mean()
        torch.testing.assert_close(terms[f"distil/{size}"], expected.detach())
    extra = 2 * torch.stack([terms[f"distil/{size}"] for size in objective.visited(drawn)]).mean()
    torch.testing.assert_close(loss.total, plain(batch, drawn).total + extra)


def test_aligned_scores_are_not_divided_by_the_temperature_in_their_distance():
    batch = random_batch()
    parts = build("2dmse-v2", "retrieval-score", dims=(8,), temperature=0.05)(batch).parts
    views = BatchViews(batch)
    teacher, student = (views.scores(Size(2, dim)) for dim in (32, 8))
    log_t, log_s = (scores.div(0.05).log_softmax(-1) for scores in (teacher, student))
    kl = (log_t.exp() * (log_t - log_s)).sum(-1).mean()
    distance = (student - teacher).square().mean()
    torch.testing.assert_close(parts["align/2"], ((distance + kl) / teacher.numel()).detach())


def test_cosent_counts_ordered_pairs_alone():
    labels, similarities = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.5, 0.2, 0.5])
    expected = torch.log(1 + torch.exp(torch.tensor(0.3 / 0.05)) + 1)
    torch.testing.assert_close(cosent(labels, similarities, 0.05), expected)
    assert cosent(torch.ones(3), similarities, 0.05) == 0


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("srl", {"sizes": Sizes.parse("1:7,4:32")}),
        ("mrl", {"dims": (7, 32)}),
        ("2dmse", {"dims": (7,)}),
        ("2dmse-v2", {"dims": (7,)}),
        ("separate", {"sizes": Sizes.parse("2:7")}),
    ],
)
def test_an_odd_dim_has_no_angle(method, changes):
    build(method, **changes)
    with pytest.raises(UserError, match="7 is odd"):
        build(method, angle_weight=1.0, **changes)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("srl", {"sizes": Sizes.parse("4:8"), "sampled": True}, "no second layer"),
        ("srl", {"sampled": True, "size_weights": (1.0, 1.0, 1.0)}, "sampling takes other sizes"),
        ("srl", {"cosent_weight": 1.0}, "cosines"),
        ("srl", {"contrastive_weight": 0.0}, "weight 0"),
        ("srl", {"angle_weight": -1.0}, "negative"),
        ("srl", {"binary_weight": -1.0}, "negative"),
        ("mrl", {"dims": (64,)}, "beyond"),
        ("2dmse", {"layers": (4,)}, "from 1 to 3"),
        ("2dmse", {"dims": (64,)}, "up to 32"),
        ("2dmse", {"shared_dim": False}, "two dims"),
        ("2dmse", {"term_weights": (1.0, 1.0)}, "λ1 to λ4"),
        ("2dmse", {"term_weights": (1.0, 1.0, 1.0, -1.0)}, "λ1 to λ4"),
        ("2dmse", {"term_weights": (0.0, 0.0, 0.0, 0.0)}, "λ1 to λ4"),
        ("2dmse", {"term_weights": (1.0, 1.0, 0.0, 0.0), "always_full": False}, "last two terms"),
        ("2dmse-v2", {"layers": (5,)}, "below 4"),
        ("2dmse-v2", {"dims": (33,)}, "32 wide"),
        ("2dmse-v2", {"align_with_last": True}, "compares scores"),
        ("separate", {"sizes": SIZES}, "one size"),
    ],
)
def test_sizes_and_options_that_do_not_fit_are_refused(method, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        build(method, **changes)
    assert caught.value.hint
