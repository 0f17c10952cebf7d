"""Parity of pre-training with float64 vectors computed by an independent numpy program."""

from __future__ import annotations

import pytest
import torch
from golden.parity import close, tensor
from torch import nn
from torch.nn import functional

from starbucks_retrieval.pretrain.decoders import AttentionLayer, two_stream_attention
from starbucks_retrieval.pretrain.heads import Head
from starbucks_retrieval.pretrain.module import Term, mean_cross_entropies


def linear(weight, bias=None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    layer.weight.data = weight
    if bias is not None:
        layer.bias.data = bias
    return layer


def test_a_head_over_the_first_dimensions(golden):
    data = golden["head_transform"]
    norm = nn.LayerNorm(8, eps=1e-12, dtype=torch.float64)
    norm.weight.data, norm.bias.data = tensor(data["gamma"]), tensor(data["beta"])
    head = Head(linear(tensor(data["W"]), tensor(data["b"])), functional.gelu, norm, linear(torch.eye(8)))
    for case in data["cases"]:
        close(head.transform(tensor(data["hidden"])[:, : case["d"]]), case["out"])


@pytest.mark.parametrize(
    ("mode", "weight"), [("paper", 1 / 3), ("ielab", 1 / 6), ("no_mae", 1 / 3)], ids=["paper", "ielab", "no_mae"]
)
def test_the_loss_of_three_sizes(golden, mode, weight):
    data = golden["smae"]
    terms, expected = [], {}
    for stream, name in (("enc", "enc"), ("dec", "dec"))[: 1 if mode == "no_mae" else 2]:
        labels = torch.tensor(data[f"{name}_labels"])
        for i, logits in enumerate(data[f"{name}_logits"]):
            terms.append(Term(f"{stream}/{i}", tensor(logits)[labels != -100], labels[labels != -100], weight))
            expected[f"{stream}/{i}"] = data[name][i]
    words = linear(torch.eye(7, dtype=torch.float64))  # what is given are logits already
    total, parts = mean_cross_entropies(terms, words, max_logits=14)
    close(total, data["total"][mode])
    for name, value in expected.items():
        close(parts[name], value)


def test_two_stream_attention(golden):
    data = golden["enhanced_decoding"]
    query, key, value = (linear(tensor(data[name]).T.contiguous()) for name in ("Wq", "Wk", "Wv"))
    parts = AttentionLayer(query, key, value, heads=1, dropout=0.0, finish=lambda context, residual: context)
    first = tensor(data["h"])[None, None]  # [sizes, batch, width]
    visible = torch.tensor(data["visible"][0], dtype=torch.bool)[None, None]
    context = two_stream_attention(
        parts, tensor(data["Pos"])[None, None], first, tensor(data["E"])[None], visible, True
    )
    close(context[0, 0], data["attention_out_b0"])
