"""The decoder: two ways through it, what it may see, and where its layers come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import layers_of, layout_of
from starbucks_retrieval.pretrain import PretrainOptions, decoders
from starbucks_retrieval.pretrain.decoders import DecoderRows, new_decoder, sampled_labels
from starbucks_retrieval.pretrain.heads import embedded, position_embeddings

from ..conftest import slow_except
from .conftest import MASKED, TWO_STREAM, TYPICAL, masked_batch, masked_lm


def prepared(family="bert", **settings):
    model = masked_lm(family).double()
    backbone = getattr(model, model.base_model_prefix)
    decoder = new_decoder(backbone, layout_of(model.config), PretrainOptions(**settings), seed=4).eval()
    torch.manual_seed(6)
    return backbone, decoder, torch.randn(3, 4, 32, dtype=torch.float64)


@pytest.mark.parametrize("family", slow_except(["bert", "electra"], TWO_STREAM))
def test_reading_only_some_rows_equals_running_the_whole_layer(family, monkeypatch):
    backbone, decoder, first = prepared(family)
    batch = masked_batch()
    rows = DecoderRows.labelled(batch["decoder_labels"][None])
    inputs = backbone, first, embedded(backbone, batch["decoder_ids"]), batch["attention_mask"].bool(), rows
    short = decoder(*inputs)
    monkeypatch.setattr(decoders, "FAMILIES", ())
    torch.testing.assert_close(short, decoder(*inputs))
    assert short.shape == (3, int((batch["decoder_labels"] != -100).sum()), 32)


@pytest.mark.parametrize("family", TWO_STREAM)
def test_when_all_is_visible_enhanced_decoding_is_the_layer_itself(family):
    # With one token everywhere, keys that equal the queries, and nothing hidden, two streams are one.
    backbone, decoder, _ = prepared(family, decoder="enhanced")
    first = torch.randn(1, 2, 32, dtype=torch.float64)
    tokens = position_embeddings(backbone, 6) + first[0][:, None]
    tokens[:, 0] = first[0]
    labels = torch.full((1, 2, 6), 9)
    labels[:, :, 0] = -100
    queries = position_embeddings(backbone, 6).expand(2, -1, -1)
    found = decoder(
        backbone, first, tokens, torch.ones(2, 6, 6, dtype=torch.bool), DecoderRows.labelled(labels), queries
    )
    own = decoder._whole(backbone, first, tokens, torch.ones(2, 6, dtype=torch.bool))[:, :, 1:].flatten(1, 2)
    torch.testing.assert_close(found, own)


@pytest.mark.parametrize("family", ["bert", "electra", "distilbert"])
def test_a_token_reaches_its_own_prediction_only_through_the_vector(family):
    backbone, decoder, first = prepared(family, decoder="enhanced")
    batch = masked_batch(enhanced=True)
    queries = position_embeddings(backbone, 12).expand(4, -1, -1)
    rows = DecoderRows.labelled(torch.where(batch["attention_mask"].bool(), batch["ids"], -100)[None])

    def states(ids, vector=first):
        return decoder(backbone, vector, embedded(backbone, ids), batch["visible"], rows, queries)

    before, where = states(batch["ids"]), rows.valid[0].nonzero()
    moved_others = False
    for i in range(1, 11):
        changed = batch["ids"].clone()
        changed[:, i] = 5 + (changed[:, i] + 1) % 90
        moved = (states(changed) != before).any(-1)  # [sizes, targets]
        sees = torch.tensor([bool(batch["visible"][b, rows.index[0, b, r], i]) for b, r in where])
        assert torch.equal(moved, sees.expand(3, -1)), i  # exactly the rows that may attend to it
        own = torch.tensor([int(rows.index[0, b, r]) == i for b, r in where])
        assert not moved[:, own].any()
        moved_others |= bool(moved.any())
    assert moved_others
    # Position 0 shows the vector and never the token under it; every row but its own reads the vector.
    changed = batch["ids"].clone()
    changed[:, 0] = 50
    assert torch.equal(states(changed), before)
    assert (states(batch["ids"], first + 1) != before).any(-1).all()


@pytest.mark.parametrize("family", slow_except(TYPICAL, MASKED))
@pytest.mark.parametrize("count", [1, 2])
def test_layers_are_copies_of_the_first_or_random(family, count):
    model = masked_lm(family)
    backbone, layout = getattr(model, model.base_model_prefix), layout_of(model.config)
    copied = new_decoder(backbone, layout, PretrainOptions(decoder_layers=count))
    own = layers_of(backbone, layout)
    assert len(copied.layers) == count
    for layer, source in zip(copied.layers, own):
        for (name, weight), other in zip(layer.named_parameters(), source.parameters()):
            assert torch.equal(weight, other) and weight is not other, name
    options = PretrainOptions(decoder_layers=count, decoder_init="random")
    random, same, other = (new_decoder(backbone, layout, options, seed).state_dict() for seed in (1, 1, 2))
    assert random.keys() == copied.state_dict().keys()
    assert all(torch.equal(random[name], same[name]) for name in random)
    matrices = [name for name in random if random[name].dim() > 1]
    assert not any(torch.equal(random[name], other[name]) for name in matrices)
    assert not any(torch.equal(random[name], copied.state_dict()[name]) for name in matrices)


def test_a_deeper_decoder_than_the_backbone_is_refused():
    with pytest.raises(UserError, match="5 layers"):
        prepared(decoder_layers=5)


def test_labelled_rows_hold_every_target_once():
    labels = torch.full((1, 3, 6), -100)
    labels[0, 0, [2, 5]] = torch.tensor([12, 15])
    labels[0, 2, 1] = 21
    rows = DecoderRows.labelled(labels)
    assert rows.count == 3 and rows.index.shape == (1, 3, 2)
    assert rows.targets[rows.valid].tolist() == [12, 15, 21]
    assert rows.gather(torch.arange(18).view(3, 6))[rows.valid].tolist() == [2, 5, 13]


def test_every_size_samples_equally_many_targets():
    labels = masked_batch(enhanced=True)["decoder_labels"]
    sampled = sampled_labels(labels, 5, 0.3, np.random.default_rng(1))
    total = int((labels != -100).sum())
    kept = sampled != -100
    assert kept.flatten(1).sum(1).tolist() == [round(0.3 * total)] * 5
    assert torch.equal(sampled[kept], labels.expand(5, -1, -1)[kept])
    assert len({tuple(size.flatten().tolist()) for size in kept}) == 5
