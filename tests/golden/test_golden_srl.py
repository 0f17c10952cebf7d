"""Parity with float64 vectors computed by an independent numpy program, gradients included."""

from __future__ import annotations

import pytest
import torch
from golden.parity import close, columns_batch, model_sizes, pooled_layers, tensor

from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.losses.batch import Batch, BatchViews
from starbucks_retrieval.losses.functional import info_nce
from starbucks_retrieval.losses.srl import SRL, SRLOptions
from starbucks_retrieval.models.pooling import embedding, pool
from starbucks_retrieval.sizes import Size


def test_embeddings_at_every_size_and_pooling(golden):
    data = golden["encoder"]
    hidden, mask = tensor(data["hidden"]), torch.tensor(data["mask"])
    for case in data["cases"]:
        pooled = pool(hidden[case["n"]], mask, case["pooling"])
        close(embedding(pooled, case["d"], case["normalize"]), case["out"])


CASES = [
    "paper_mean",
    "ielab_sum",
    "no_kl",
    "kl_weight_half",
    "temp_0.05",
    "kl_temp_2_rescaled",
    "weighted",
    "cosine_temp_0.02",
    "group_only",
    "grad_detached",
    "grad_attached",
    "grad_ielab_sum",
]


@pytest.mark.parametrize("name", CASES)
def test_srl(golden, name):
    data = golden["srl"]
    case = data["cases"][name]
    settings = {"size_weights" if k == "ce_weights" else k: v for k, v in case["options"].items()}
    if "size_weights" in settings:
        settings["size_weights"] = tuple(settings["size_weights"])
    q, p = pooled_layers(data["q"], True), pooled_layers(data["p"], True)
    sizes = model_sizes(data["pairs"])
    loss = SRL(sizes, sizes.full, SRLOptions(**settings))(Batch(q, p))
    close(loss.total, case["total"])
    for size, ce, kl in zip(sizes, case["ce"], case["kl"]):
        close(loss.parts[f"ce/{size}"], ce)
        if f"kl/{size}" in loss.parts:
            close(loss.parts[f"kl/{size}"], kl)
    if "grad_q" in case:
        loss.total.backward()
        for layer in q:
            close(q[layer].grad, case["grad_q"][layer - 1])
            close(p[layer].grad, case["grad_p"][layer - 1])


def test_the_suite_checks_every_srl_case(golden):
    assert set(golden["srl"]["cases"]) == set(CASES)


def test_presets_are_the_published_variants(golden):
    data = golden["srl"]
    for preset, case in (("starbucks", "paper_mean"), ("starbucks-released", "ielab_sum")):
        sizes = model_sizes(data["pairs"])
        loss = SRL(sizes, sizes.full, LOSSES["srl"].variants[preset])(
            Batch(pooled_layers(data["q"]), pooled_layers(data["p"]))
        )
        close(loss.total, data["cases"][case]["total"])


def test_srl_sts_released(golden):
    data = golden["srl_sts_ielab"]
    sizes = model_sizes(data["pairs"])
    loss = SRL(sizes, sizes.full, LOSSES["srl"].variants["starbucks-sts-released"])(columns_batch(data["cols"]))
    close(loss.total, data["expected"]["total"])
    for size, ce, kl in zip(sizes, data["expected"]["ce"], data["expected"]["kl"]):
        close(loss.parts[f"ce/{size}"], ce)
        if f"kl/{size}" in loss.parts:
            close(loss.parts[f"kl/{size}"], kl)


def test_multiple_negatives_ranking_is_info_nce_over_cosines(golden):
    anchors, *others = (tensor(column) for column in golden["mnrl"]["cols"])
    passages = torch.cat(others)
    for case in golden["mnrl"]["cases"]:
        views = BatchViews(Batch({1: anchors}, {1: passages}), normalize=True)
        close(info_nce(views.scores(Size(1, case["d"])), torch.arange(len(anchors)), 1 / case["scale"]), case["loss"])


def test_srl_sampled(golden):
    data = golden["srl_sampled_ielab"]
    sizes = model_sizes([(0, data["dims"][0]), (1, data["dims"][1]), (2, data["dims"][2])])
    method = SRL(sizes, sizes.full, LOSSES["srl"].variants["starbucks-sampled"])
    loss = method(Batch(pooled_layers(data["q"]), pooled_layers(data["p"])), method.sampled(data["sampled"] + 1))
    close(loss.total, data["total"])
