"""The tensors of a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pretrain.letters import MASK, letters, random_texts

from starbucks_retrieval.pretrain.data import MaskingCollator
from starbucks_retrieval.pretrain.masks import Masking, budgets
from starbucks_retrieval.pretrain.windows import WholeWordTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return WholeWordTokenizer(letters())


def collate(tokenizer, texts, seed=0, multiple=8, **options):
    return MaskingCollator(tokenizer, Masking(**options), multiple)(tokenizer(texts), np.random.default_rng(seed))


def test_texts_are_padded_on_the_right_between_special_tokens(tokenizer):
    batch = collate(tokenizer, ["abc de", "f"])
    assert batch["ids"].shape == (2, 8)
    assert batch["ids"][0].tolist() == [2, *tokenizer(["abc de"])[0].ids, 3, 0]
    assert batch["ids"][1].tolist() == [2, *tokenizer(["f"])[0].ids, 3, 0, 0, 0, 0, 0]
    assert batch["attention_mask"].sum(1).tolist() == [7, 3]
    assert collate(tokenizer, ["abcdefg"], multiple=8)["ids"].shape == (1, 16)
    assert collate(tokenizer, ["abcdefg"], multiple=1)["ids"].shape == (1, 9)


def test_basic_streams_agree_with_the_text(tokenizer):
    texts = random_texts(30)
    batch = collate(tokenizer, texts)
    assert set(batch) == {
        "ids",
        "attention_mask",
        "encoder_ids",
        "encoder_labels",
        "decoder_ids",
        "decoder_labels",
    }
    assert all(values.dtype == torch.int64 for values in batch.values())
    lengths = batch["attention_mask"].sum(1).numpy()
    for stream, probability in (("encoder", 0.2), ("decoder", 0.4)):
        labels = batch[f"{stream}_labels"]
        chosen = labels != -100
        assert (labels == batch["ids"])[chosen].all()
        assert (batch[f"{stream}_ids"] == batch["ids"])[~chosen].all()
        assert (batch[f"{stream}_ids"][chosen] == MASK).float().mean() > 0.7
        assert not chosen[batch["attention_mask"] == 0].any() and not chosen[:, 0].any()
        assert not (chosen & (batch["ids"] == 3)).any()
        assert (chosen.sum(1).numpy() <= budgets(lengths, probability)).all()
    assert (batch["decoder_labels"] != -100)[batch["encoder_labels"] != -100].all()
    # what stands in a token's place is drawn for each stream by itself
    both = batch["encoder_labels"] != -100
    assert (batch["encoder_ids"] != batch["decoder_ids"])[both].any()


def test_always_mask(tokenizer):
    batch = collate(tokenizer, random_texts(10), replace="always_mask")
    for stream in ("encoder", "decoder"):
        assert (batch[f"{stream}_ids"] == MASK).equal(batch[f"{stream}_labels"] != -100)


def test_enhanced_decoding_predicts_every_token_of_the_text(tokenizer):
    batch = collate(tokenizer, ["abc de", "fghij k lm"], masks="independent", decoder="enhanced")
    special = batch["ids"] < 5
    assert batch["decoder_ids"].equal(batch["ids"])
    assert batch["decoder_labels"].equal(batch["ids"].masked_fill(special, -100))
    assert batch["visible"].shape == (2, 16, 16) and batch["visible"].dtype == torch.bool
    assert batch["visible"][0, :7, 0].tolist() == [False, *[True] * 6]
    assert not batch["visible"][0, 7:].any() and not batch["visible"][0, :, 7:].any()


def test_without_a_decoder_there_is_one_stream(tokenizer):
    batch = collate(tokenizer, ["abc de"], decoder="none")
    assert set(batch) == {"ids", "attention_mask", "encoder_ids", "encoder_labels"}


def test_unknown_and_special_tokens_in_a_text_are_never_masked(tokenizer):
    text = "ab 77 [MASK] cd " * 20
    for seed in range(5):
        batch = collate(tokenizer, [text], seed, decoder_probability=0.9)
        chosen = batch["decoder_labels"] != -100
        assert not (chosen & (batch["ids"] < 5)).any()
        assert chosen.sum() >= 70
    batch = collate(tokenizer, [text], decoder="enhanced")
    assert batch["visible"][0, 1:, batch["ids"][0] == 1].sum(0).min() >= 80


def test_a_batch_follows_its_generator(tokenizer):
    texts = random_texts(8)
    first, again, other = (collate(tokenizer, texts, seed) for seed in (0, 0, 1))
    assert all(first[name].equal(again[name]) for name in first)
    assert not first["encoder_ids"].equal(other["encoder_ids"])
