"""A tokenizer whose pieces are letters, so that a word of n letters is n pieces; and texts for it."""

from __future__ import annotations

import gzip
import json
import string
from functools import cache

import numpy as np

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIALS, ".", "!", "?", *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
MASK = VOCABULARY.index("[MASK]")


@cache
def letters(**changes):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    if changes.pop("words", True):
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if changes.pop("special", True):
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", **changes}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def read(ids):
    """Ids as text again: pieces of one word run together."""
    return " ".join(VOCABULARY[i] for i in ids).replace(" ##", "")


def random_texts(count, seed=0, longest=60):
    """Documents of up to `longest` words of one to five letters, now and then ending a sentence; no two are equal."""
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(count):
        words = ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 6))) for _ in range(rng.integers(5, longest))]
        name = "".join(string.ascii_lowercase[10 + int(digit)] for digit in str(number))
        texts.append(" ".join([name, *(word + "." * bool(rng.random() < 0.2) for word in words)]))
    return texts


def lines_file(path, texts):
    data = "".join(text + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def jsonl_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
