"""The last layer for the first token alone gives what the whole layer gives, and computes nothing else of it."""

from __future__ import annotations

import pytest
import torch
from conftest import FAMILIES, TYPICAL, save_model, slow_except

from starbucks_retrieval.models import NestedEncoder, bert
from starbucks_retrieval.models.backends.graph import PooledLayersGraph, trace
from starbucks_retrieval.sizes import Sizes


def batch() -> dict[str, torch.Tensor]:
    """Texts of 20, 11 and 1 tokens, enough of them for the layer to be shortened."""
    ids = torch.randint(5, 100, (30, 20), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(20) < torch.tensor([[20], [11], [1]]).repeat(10, 1)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("family", slow_except(TYPICAL, sorted(FAMILIES)))
def test_the_first_token_of_the_last_layer(tmp_path, family):
    save_model(tmp_path, family)
    encoder = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    encoder.config = encoder.config.__class__(pooling="cls", sizes=Sizes.parse("2:8,4:32"))
    rows = []
    for layer in encoder.backbone.modules():
        if type(layer).__name__.endswith("Intermediate"):
            layer.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[1]))
    texts = [row[mask.bool()].tolist() for row, mask in zip(*batch().values())]
    found = encoder.embed(texts, encoder.sizes)
    assert (rows == [20, 20, 20, 1]) == (family in bert.FIRST_TOKEN_FAMILIES)
    with torch.no_grad():  # the pooled outputs of `forward` are those of the truncated model, bit for bit
        expected = encoder(**batch(), layers=encoder.sizes.layers)
    assert rows[4:] == ([20] * 4 if family in bert.FIRST_TOKEN_FAMILIES else rows[:4])
    for size, vectors in found.items():
        torch.testing.assert_close(torch.from_numpy(vectors), expected[size.layer][:, : size.dim], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_graphs_for_other_back_ends_compute_no_other_token_of_it(tmp_path, pooling):
    save_model(tmp_path, "bert")
    encoder = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    encoder.config = encoder.config.__class__(pooling=pooling, sizes=Sizes.parse("2:8,4:32"))
    graph = PooledLayersGraph(encoder, (2, 4))
    program = trace(graph)
    products = [node.meta["val"].shape for node in program.graph.nodes if node.target is torch.ops.aten.linear.default]
    assert len(products) == 4 * 6
    one_token = [shape[1] == 1 for shape in products]
    assert sum(one_token) == (4 if pooling == "cls" else 0)  # query, output of the attention, feed-forward network
    assert not any(one_token[:-6])
    for part in (batch(), {name: tensor[::3, :7] for name, tensor in batch().items()}):  # with padding and without
        for expected, found in zip(graph.expected(part), program.module()(*part.values())):
            torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-5, atol=1e-6)
