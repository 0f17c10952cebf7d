"""Small masked language models and masked batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES

from ..conftest import FAMILIES, save_tokenizer

# The loss of every objective, and of the variant of one.
OPTIONS = {name: PRETRAIN_OBJECTIVES[name].options for name in PRETRAIN_OBJECTIVES} | {
    "starbucks-released": PRETRAIN_OBJECTIVES["smae"].variants["starbucks-released"]
}

MASKED = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet", "modernbert")
TYPICAL = ("bert", "roberta", "modernbert")  # whose heads differ most
TWO_STREAM = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")


def masked_lm(family: str = "bert", seed: int = 0, **changes):
    """A random masked language model of a family, without dropout, all of its weights away from where they start."""
    import transformers

    name, settings = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**{**settings, **changes})
    model = transformers.AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save_masked_lm(folder: Path, family: str = "bert", seed: int = 0, **changes) -> Path:
    """The same as a Hugging Face folder with a tokenizer."""
    masked_lm(family, seed, **changes).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def masked_batch(seed: int = 0, lengths=(12, 9, 5, 12), enhanced: bool = False) -> dict[str, torch.Tensor]:
    """Texts padded to the right, with nested masks, or with the visible columns of every row."""
    rng = np.random.default_rng(seed)
    tokens = max(lengths)
    ids = np.zeros((len(lengths), tokens), dtype=np.int64)
    encoder_labels, decoder_labels = np.full_like(ids, -100), np.full_like(ids, -100)
    visible = np.zeros((len(lengths), tokens, tokens), dtype=bool)
    for b, length in enumerate(lengths):
        ids[b, :length] = [2, *rng.integers(5, 100, length - 2), 3]
        order = 1 + rng.permutation(length - 2)
        chosen = order[: max(2, length // 2)]
        decoder_labels[b, chosen] = ids[b, chosen]
        encoder_labels[b, chosen[: 1 + b]] = ids[b, chosen[: 1 + b]]
        visible[b, :length, :length] = rng.random((length, length)) < 0.5
        visible[b, :length, 0] = True
        visible[b] &= ~np.eye(tokens, dtype=bool)
    batch = {
        "ids": ids,
        "attention_mask": (ids != 0).astype(np.int64),
        "encoder_ids": np.where(encoder_labels != -100, 4, ids),
        "encoder_labels": encoder_labels,
    }
    if enhanced:
        specials = (ids == 0) | (ids == 2) | (ids == 3)
        batch |= {"decoder_labels": np.where(specials, -100, ids), "visible": visible}
    else:
        batch |= {"decoder_ids": np.where(decoder_labels != -100, 4, ids), "decoder_labels": decoder_labels}
    return {name: torch.from_numpy(value) for name, value in batch.items()}
