"""The unpadded step equals the padded one, and its parts are what the objective says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from starbucks_retrieval import NestedEncoder, Sizes
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.objectives import SRLOptions, srl
from starbucks_retrieval.train.collate import Collator
from starbucks_retrieval.train.data import Example
from starbucks_retrieval.train.module import SRLModule


@pytest.fixture
def encoder(tiny_bert):
    return NestedEncoder.from_pretrained(tiny_bert).eval()


def flat(rows, queries):
    return {
        "ids": torch.tensor([token for row in rows for token in row]),
        "lengths": torch.tensor([len(row) for row in rows]),
        "num_queries": torch.tensor(queries),
        "excluded": torch.zeros(queries, len(rows) - queries, dtype=torch.bool),
    }


def random_rows(count):
    rng = np.random.default_rng(0)
    return [rng.integers(5, 100, length).tolist() for length in rng.integers(1, 50, count)]


@pytest.mark.parametrize("max_tokens", [1, 60, 100_000])
def test_sorted_chunks_equal_the_padded_batch(encoder, max_tokens):
    sizes, options = Sizes.parse("1:8,3:16,4:32"), SRLOptions(temperature=0.5)
    rows = random_rows(4 + 8)
    module = SRLModule(encoder, sizes, options, max_tokens)
    loss = module(**flat(rows, 4))["loss"]
    loss.backward()
    ours = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    queries = encoder(**pad(rows[:4], 0), layers=sizes.layers)
    passages = encoder(**pad(rows[4:], 0), layers=sizes.layers)
    expected = srl(queries, passages, sizes, options).total
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for name, parameter in encoder.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_checkpointing_changes_nothing(encoder):
    module = SRLModule(encoder, Sizes.parse("1:8,4:32"), SRLOptions(), 100)
    batch = flat(random_rows(6), 3)
    plain = torch.autograd.grad(module(**batch)["loss"], module.encoder.backbone.embeddings.word_embeddings.weight)
    module.gradient_checkpointing_enable({"use_reentrant": True})  # as an old configuration would ask
    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for layer in module.encoder.backbone.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    again = torch.autograd.grad(module(**batch)["loss"], module.encoder.backbone.embeddings.word_embeddings.weight)
    torch.testing.assert_close(plain[0], again[0])


def test_the_loss_is_not_computed_in_bf16(encoder):
    module = SRLModule(encoder, Sizes.parse("1:8,4:32"), SRLOptions(), 100)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(**flat(random_rows(6), 3))["loss"].dtype == torch.float32


def test_collator_puts_queries_first_and_keeps_lengths(encoder):
    examples = [
        Example("w1 w2", ["0 a", "0 b"], ["w3", "w4 w5 w6"], frozenset({"0 a"})),
        Example("w7", ["0 c", "0 a"], ["w8", "w3"], frozenset({"0 c", "0 b"})),
    ]
    batch = Collator(encoder)(examples)
    assert batch["lengths"].tolist() == [4, 3, 3, 5, 3, 3]
    assert len(batch["ids"]) == 21
    assert batch["excluded"].tolist() == [[False, False, False, True], [False, True, False, False]]
    assert not Collator(encoder, mask_false_negatives=False)(examples)["excluded"].any()


def test_an_anchor_costs_nothing_until_the_full_size_moves(encoder, tiny_bert):
    sizes, batch = Sizes.parse("1:8,4:32"), flat(random_rows(6), 3)
    plain = SRLModule(encoder, sizes, SRLOptions())
    anchored = SRLModule(
        encoder, sizes, SRLOptions(), anchor=NestedEncoder.from_pretrained(tiny_bert), anchor_weight=3.0
    )
    assert len(list(anchored.parameters())) == len(list(plain.parameters()))
    assert anchored.state_dict().keys() == plain.state_dict().keys()
    first = anchored(**batch)
    torch.testing.assert_close(first["loss"], plain(**batch)["loss"])
    assert first["parts"]["anchor"] == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        for parameter in encoder.backbone.encoder.layer[3].parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    moved = anchored(**batch)
    drift = moved["parts"]["anchor"]
    assert drift > 1e-3
    torch.testing.assert_close(moved["loss"], plain(**batch)["loss"] + 3 * drift)
    rows, before = random_rows(6), NestedEncoder.from_pretrained(tiny_bert)
    with torch.no_grad():
        ours, theirs = (model(**pad(rows, 0), layers=[4])[4] for model in (encoder, before))
    torch.testing.assert_close(drift, (1 - torch.cosine_similarity(ours, theirs)).mean())
