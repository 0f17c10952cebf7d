"""Distillation without labels equals its definition, written here with numpy in float64."""

import dataclasses

import numpy as np
import pytest
import torch

from starbucks_retrieval import Size, Sizes, UserError
from starbucks_retrieval.losses.batch import Batch
from starbucks_retrieval.losses.distil import Distil, DistilOptions, spread

SIZES, FULL = Sizes.parse("0:3,1:4,2:8"), Size(2, 8)


def rows(count=5, seed=0):
    rng = np.random.default_rng(seed)
    return {layer: rng.normal(size=(count, 8)) for layer in (0, 1, 2)}, rng.normal(size=(count, 8))


def as_batch(pooled, frozen, **more):
    tensors = {layer: torch.from_numpy(found) for layer, found in pooled.items()}
    return Batch(tensors, tensors, frozen_queries=torch.from_numpy(frozen), frozen_passages=torch.from_numpy(frozen))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def log_softmax_of_others(scores):
    """Log-probabilities over the other texts of each row, [texts, texts - 1]."""
    others = scores[~np.eye(len(scores), dtype=bool)].reshape(len(scores), -1)
    return others - np.log(np.exp(others).sum(axis=1, keepdims=True))


def kl(teacher, student, temperature):
    t, s = log_softmax_of_others(teacher / temperature), log_softmax_of_others(student / temperature)
    return (np.exp(t) * (t - s)).sum() / len(t)


def expected(pooled, frozen, normalize, o):
    turn = unit if normalize else np.asarray
    teacher = turn(frozen) @ turn(frozen).T
    total = 0.0
    for size in SIZES[:-1]:
        z, r = pooled[size.layer][:, : size.dim], frozen[:, : size.dim]
        cosines = unit(z) @ unit(z).T
        others = cosines[~np.eye(len(z), dtype=bool)]
        distance = 1 - (unit(z) * unit(r)).sum(1) if normalize else ((z - r) ** 2).sum(1) / (2 * (r**2).sum(1))
        total += (
            o.cosine_weight * distance.mean()
            + o.kl_weight * kl(teacher, turn(z) @ turn(z).T, o.kl_temperature or o.temperature)
            + o.asymmetric_weight * kl(teacher, turn(z) @ turn(r).T, o.kl_temperature or o.temperature)
            + o.spread_weight * (others.mean() ** 2 + max(0, (others**2).mean() - 1 / size.dim))
        ) / 2
    full = pooled[2]
    kept = (
        1 - (unit(full) * unit(frozen)).sum(1)
        if normalize
        else ((full - frozen) ** 2).sum(1) / (2 * (frozen**2).sum(1))
    )
    return total + o.full_weight * kept.mean()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"cosine_weight": 0.0, "kl_weight": 2.0, "kl_temperature": 0.3},
        {"kl_weight": 0.0, "asymmetric_weight": 0.5, "full_weight": 0.0},
        {"spread_weight": 3.0},
    ],
)
def test_the_loss_equals_its_definition(normalize, weights):
    options = DistilOptions(normalize=normalize, **{"temperature": 0.7} | weights)
    pooled, frozen = rows()
    found = Distil(SIZES, FULL, options)(as_batch(pooled, frozen)).total
    assert found.item() == pytest.approx(expected(pooled, frozen, normalize, options), rel=1e-10)


def test_sizes_without_the_full_one_run_no_layer_above_and_have_no_anchor():
    pooled, frozen = rows()
    loss = Distil(Sizes.parse("1:4"), FULL, DistilOptions())
    assert (loss.depth, loss.trained_layers) == (1, (1,))
    assert "cosine/2:8" not in loss(as_batch({1: pooled[1]}, frozen)).parts


def test_rows_of_other_processes_leave_the_mean_over_texts():
    pooled, frozen = rows(6)
    objective = Distil(SIZES, FULL, DistilOptions(asymmetric_weight=1.0))
    whole = as_batch(pooled, frozen)
    halves = []
    for start in (0, 3):
        own = {layer: found[start : start + 3] for layer, found in whole.queries.items()}
        targets = whole.frozen_passages
        part = Batch(own, whole.passages, None, None, None, 1, start, targets[start : start + 3], targets)
        halves.append(objective(part).total)
    torch.testing.assert_close(sum(halves) / 2, objective(whole).total)


@pytest.mark.parametrize("follows", ["own", "teacher"])
def test_another_teacher_gives_the_scores_and_the_targets(follows):
    pooled, frozen = rows()
    rng = np.random.default_rng(7)
    mapped, scores = rng.normal(size=(5, 8)), rng.normal(size=(5, 5))
    options = DistilOptions(normalize=True, temperature=0.7, asymmetric_weight=0.5, full_follows=follows)
    batch = as_batch(pooled, frozen)
    taught = {"teacher_scores": torch.from_numpy(scores), "teacher_targets": torch.from_numpy(mapped)}
    loss = Distil(SIZES, FULL, options)(dataclasses.replace(batch, **taught))
    learned = [*SIZES[:-1], *([FULL] if follows == "teacher" else [])]
    total = 0.0
    for size in learned:
        z, r = unit(pooled[size.layer][:, : size.dim]), unit(mapped[:, : size.dim])
        across = unit((frozen if follows == "own" else mapped)[:, : size.dim])
        terms = (1 - (z * r).sum(1)).mean() + kl(scores, z @ z.T, 0.7) + 0.5 * kl(scores, z @ across.T, 0.7)
        total += terms / len(learned)
    if follows == "own":
        total += 5 * (1 - (unit(pooled[2]) * unit(frozen)).sum(1)).mean()
    assert loss.total.item() == pytest.approx(total, rel=1e-10)


def test_spread_counts_what_is_beyond_a_random_direction():
    same = torch.ones(3, 4)
    assert spread(same, same, torch.eye(3, dtype=torch.bool)).item() == pytest.approx(1 + 1 - 1 / 4)


@pytest.mark.parametrize(
    "weights", [{"spread_weight": -1.0}, {"cosine_weight": 0.0, "kl_weight": 0.0}, {"kl_temperature": 0.0}]
)
def test_options_out_of_range_are_refused(weights):
    with pytest.raises(UserError):
        DistilOptions(**weights)


def test_the_full_size_alone_is_refused():
    with pytest.raises(UserError, match="nothing to learn"):
        Distil(Sizes([FULL]), FULL, DistilOptions())
