"""Parity with float64 vectors computed by an independent numpy program, gradients included."""

from __future__ import annotations

import pytest
import torch

from starbucks_retrieval.models.pooling import embedding, pool
from starbucks_retrieval.objectives import PRESETS, SRLOptions, info_nce, srl
from starbucks_retrieval.objectives.scores import ladder_scores
from starbucks_retrieval.sizes import Size, Sizes

TOLERANCE = {"rtol": 0, "atol": 1e-6}


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected) -> None:
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), tensor(expected), **TOLERANCE)


def ladder(pairs) -> Sizes:
    return Sizes([Size(index + 1, dim) for index, dim in pairs])  # the vectors count their list entries from 0


def taps(values, requires_grad=False) -> dict[int, torch.Tensor]:
    return {i + 1: tensor(rows).requires_grad_(requires_grad) for i, rows in enumerate(values)}


def test_embeddings_at_every_size_and_pooling(golden):
    data = golden["encoder"]
    hidden, mask = tensor(data["hidden"]), torch.tensor(data["mask"])
    for case in data["cases"]:
        tap = pool(hidden[case["n"]], mask, case["pooling"])
        close(embedding(tap, case["d"], case["normalize"]), case["out"])


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
    q, p = taps(data["q"], True), taps(data["p"], True)
    sizes = ladder(data["pairs"])
    loss = srl(q, p, sizes, SRLOptions(**settings))
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
        total = srl(taps(data["q"]), taps(data["p"]), ladder(data["pairs"]), PRESETS[preset]).total
        close(total, data["cases"][case]["total"])


def test_srl_sts_released(golden):
    data = golden["srl_sts_ielab"]
    anchors, *others = (taps(column) for column in data["cols"])
    # anchor i's group is its positive followed by its negatives
    passages = {n: torch.stack([column[n] for column in others], 1).flatten(0, 1) for n in anchors}
    sizes = ladder(data["pairs"])
    loss = srl(anchors, passages, sizes, PRESETS["starbucks-sts-released"])
    close(loss.total, data["expected"]["total"])
    for size, ce, kl in zip(sizes, data["expected"]["ce"], data["expected"]["kl"]):
        close(loss.parts[f"ce/{size}"], ce)
        if f"kl/{size}" in loss.parts:
            close(loss.parts[f"kl/{size}"], kl)


def test_multiple_negatives_ranking_is_info_nce_over_cosines(golden):
    anchors, *others = (tensor(column) for column in golden["mnrl"]["cols"])
    passages = torch.cat(others)
    for case in golden["mnrl"]["cases"]:
        size = Size(1, case["d"])
        scores = ladder_scores({1: anchors}, {1: passages}, Sizes([size]), normalize=True)[size]
        close(info_nce(scores, torch.arange(len(anchors)), 1 / case["scale"]), case["loss"])
