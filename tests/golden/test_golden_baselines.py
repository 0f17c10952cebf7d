"""Parity of the methods that the papers compare with, and of the losses for similarity tasks and distillation."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from golden.parity import close, columns_batch, pooled_layers, tensor

from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.losses.base import size_loss
from starbucks_retrieval.losses.batch import Batch, BatchViews
from starbucks_retrieval.losses.functional import kl_rows, pca_target
from starbucks_retrieval.losses.mrl import MRL, MRLOptions
from starbucks_retrieval.losses.pairs import angle_similarity, cosent
from starbucks_retrieval.losses.separate import SingleSize, SingleSizeOptions
from starbucks_retrieval.losses.two_dmse import Draw, TwoDMSE, TwoDMSEOptions
from starbucks_retrieval.losses.two_dmse_v2 import TwoDMSEv2, TwoDMSEv2Options
from starbucks_retrieval.sizes import Size, Sizes


def variant(method, name, **changes):
    return dataclasses.replace(LOSSES[method].variants[name], **changes)


def test_mrl(golden):
    data = golden["mrl"]
    batch = Batch({1: tensor(data["q"])}, {1: tensor(data["p"])})
    loss = MRL(Sizes([Size(1, 8)]), Size(1, 8), MRLOptions(dims=tuple(data["dims"])))(batch)
    close(loss.total, data["total"])
    for dim, ce in zip(data["dims"], data["ce"]):
        close(loss.parts[f"ce/1:{dim}"], ce)


V1_CASES = {
    "embeddings": {},
    "scores": {"kl_space": "scores"},
    "no_align": {"kl_weight": 0.0},
    "embeddings_tau0.3": {"kl_temperature": 0.3},
}


@pytest.mark.parametrize("name", V1_CASES)
def test_two_dmse_v1(golden, name):
    data = golden["two_dmse_v1"]
    full = Size(data["N"] + 1, len(data["q"][0][0]))
    method = TwoDMSE(Sizes([full]), full, variant("2dmse", "v1-paper", dims=(data["d"],), **V1_CASES[name]))
    drawn = Draw(data["n"] + 1, data["d"], data["d"])
    loss = method(Batch(pooled_layers(data["q"]), pooled_layers(data["p"])), drawn)
    close(loss.total, data["cases"][name]["total"])
    if V1_CASES[name].get("kl_weight", 1):
        close(loss.parts["kl"], data["cases"][name]["align"])


@pytest.mark.parametrize("weighting", ["uniform", "linear", "log"])
def test_two_dmse_of_sentence_transformers(golden, weighting):
    data = golden["two_dmse_st"]
    batch = columns_batch(data["cols"])
    full = Size(3, 8)
    changes = {"layer_weight": "one" if weighting == "uniform" else weighting, "temperature": 0.05, "normalize": True}
    method = TwoDMSE(Sizes([full]), full, variant("2dmse", "st-3.2", **changes))
    first = Draw(data["layer"] + 1, data["dim_last"], data["dim_layer"])
    for drawn, expected in ((first, data["cases"]), (Draw(2, 8, 4), data["layer1"])):
        loss = method(batch, drawn)
        close(loss.total, expected[weighting]["total"])
        close(loss.parts["ce/last"], expected[weighting]["ce_last"])
        close(loss.parts["ce/sampled"], expected[weighting]["ce_layer"])
        close(loss.parts["kl"], expected[weighting]["kl"])


def test_the_st_variant_weighs_linearly():
    assert LOSSES["2dmse"].variants["st-3.2"].layer_weight == "linear"


def test_angle_0223_is_the_paper_with_one_alignment(golden):
    data = golden["two_dmse_v1"]
    full = Size(3, 8)
    drawn = Draw(1, 4, 4)
    method = TwoDMSE(Sizes([full]), full, variant("2dmse", "angle-0223", dims=(4,)))
    loss = method(Batch(pooled_layers(data["q"]), pooled_layers(data["p"])), drawn)
    texts = [torch.cat([tensor(data["q"])[i], tensor(data["p"])[i]]) for i in (2, 0)]
    close(loss.total, sum(data["cases"]["no_align"]["ce"]) + float(kl_rows(*texts)))


def test_pca_target(golden):
    data = golden["ese_align"]
    close(pca_target(tensor(data["m"]), data["k"]), data["target_canonical"])


def test_a_low_rank_target_is_the_exact_one_up_to_signs(golden):
    rows = tensor(golden["ese_align"]["m"])
    close(pca_target(rows, 6, "lowrank").abs(), pca_target(rows, 6).abs().tolist())


def triplet_method(golden, **changes):
    data = golden["two_dmse_v2"]
    full = Size(3, 8)
    eq12 = variant("2dmse-v2", "eq12", dims=(data["k"],), temperature=0.05, normalize=True)
    eq12 = dataclasses.replace(eq12, contrastive_weight=30.0, angle_weight=1.0, **changes)
    columns = [[layer[start::3] for layer in data["layers"]] for start in range(3)]
    return TwoDMSEv2(Sizes([full]), full, eq12), columns_batch(columns)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("paper_eq12", {}),
        ("angle_code_average", {"average": True, "layers": (1, 2)}),
        ("eq11_no_full", {"full_loss": False}),
    ],
)
def test_two_dmse_v2(golden, case, changes):
    method, batch = triplet_method(golden, **changes)
    close(method(batch).total, golden["two_dmse_v2"][case])


def test_layer_weights(golden):
    for section, last in (("log_weights_12", 12), ("two_dmse_v2", 3)):
        expected = golden[section] if section == "log_weights_12" else golden[section]["weights"]
        full = Size(last, 8)
        method = TwoDMSEv2(Sizes([full]), full, TwoDMSEv2Options())
        close([method.layer_weight(i, i) for i in range(1, last + 1)], expected)


def test_angles_code_starts_at_the_embeddings_and_skips_the_last_but_one():
    full = Size(12, 768)
    method = TwoDMSEv2(Sizes([full]), full, LOSSES["2dmse-v2"].variants["angle"])
    queries, _ = method.layers(None)
    assert queries == (*range(11), 12)
    assert method.layer_weight(0, 1) == 1.0 and method.layer_weight(1, 2) == pytest.approx(0.5906, abs=1e-4)


RETRIEVAL_CASES = {
    "plain": {"align": "none"},
    "align": {"pca": "exact", "pca_sign": "canonical"},
    "full_dim": {"align": "none", "full_dim": True},
    "score": {"align": "score"},
    "fix_doc": {"align": "none", "passage_layers": ((1, 3), (2, 3))},
    "plus_dims": {"align": "none"},
    "mse_1d_last_layer_only": {"align": "none", "layers": ()},
}


@pytest.mark.parametrize("name", RETRIEVAL_CASES)
def test_two_dmse_v2_for_retrieval(golden, name):
    data = golden["two_dmse_v2_retrieval"]
    full = Size(3, 8)
    options = variant("2dmse-v2", "retrieval", dims=tuple(data["cases"][name]["dims"]), **RETRIEVAL_CASES[name])
    loss = TwoDMSEv2(Sizes([full]), full, options)(Batch(pooled_layers(data["q"]), pooled_layers(data["p"])))
    close(loss.total, data["cases"][name]["total"])


def test_distillation(golden):
    data = golden["distil_group"]
    batch = Batch({1: tensor(data["q"])}, {1: tensor(data["p"])}, teacher=tensor(data["teacher"]))
    full = Size(1, 8)
    for reduction in ("mean", "batchmean"):
        options = SingleSizeOptions(contrastive_weight=1e-4, distil_weight=1.0, distil_reduction=reduction)
        loss = SingleSize(Sizes([full]), full, options)(batch)
        close(loss.total, data[reduction]["total"])
        close(loss.parts["distil/1:8"], data[reduction]["kl"])


def test_similarity_losses(golden):
    data = golden["sts_losses"]
    x, y, labels = tensor(data["x"]), tensor(data["y"]), tensor(data["labels"])
    batch = Batch({1: x}, {1: y}, labels=labels)
    size = Size(1, 8)
    views = BatchViews(batch, normalize=True)
    close(views.scores(size).diagonal(), data["cosine"])
    close(cosent(labels, tensor(data["cosine"]), 0.05), data["cosent"])
    close(angle_similarity(x, y), data["angle_similarity"])
    scored = TwoDMSEOptions(normalize=True, contrastive_weight=0.0, cosent_weight=1.0)
    close(size_loss(views, size, scored), data["cosent"])
    angle = TwoDMSEOptions(normalize=True, contrastive_weight=0.0, angle_weight=1.0)
    close(size_loss(views, size, angle), data["angle"])


def test_the_nli_objective(golden):
    data = golden["sts_losses"]["triplet"]
    views = BatchViews(columns_batch([[data["text"]], [data["pos"]], [data["neg"]]]), normalize=True)
    options = dataclasses.replace(LOSSES["2dmse-v2"].variants["angle"])
    close(size_loss(views, Size(1, 8), options), data["total"])
