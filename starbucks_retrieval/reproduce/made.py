"""Made-up data and a random model, so that `--scale tiny` runs anywhere in a minute."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from starbucks_retrieval.files import atomic_folder

_TOPICS, _WORDS = 12, 8  # topics, and words of each
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_MODEL = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64}


def make_data(folder: Path) -> bool:
    """Write a random BERT of 6 layers, a collection, answers, NLI triples, scored pairs and a text, unless they are there.

    Args:
        folder: The folder, which appears complete or not at all.

    Returns:
        Whether they were written: model, beir, triples.jsonl, pairs.tsv, text.txt and answers.jsonl. Equal calls write
        equal files.
    """
    if (folder / "answers.jsonl").is_file():  # older versions did not write it
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)  # noqa: S311 - made-up texts
    with atomic_folder(folder) as out:
        _write_collection(out / "beir", rng)
        triples = (
            {"anchor": _text(rng, t), "positive": _text(rng, t), "negative": _text(rng, t + 1)} for t in range(48)
        )
        _write_lines(out / "triples.jsonl", map(json.dumps, triples))
        pairs = [(1.0 - (shift > 0), _text(rng, t), _text(rng, t + shift)) for t in range(40) for shift in (0, 1)]
        _write_lines(out / "pairs.tsv", (f"{score}\t{first}\t{second}" for score, first, second in pairs))
        _write_lines(out / "text.txt", (_text(rng, t, 30) for t in range(64)))
        questions = ({"query_id": f"a{t}", "query": _text(rng, t), "answers": [_text(rng, t, 1)]} for t in range(24))
        _write_lines(out / "answers.jsonl", map(json.dumps, questions))
        _write_model(out / "model")
    return True


def _text(rng: random.Random, topic: int, words: int = 6) -> str:
    return " ".join(f"w{topic % _TOPICS * _WORDS + rng.randrange(_WORDS)}" for _ in range(words))


def _write_collection(folder: Path, rng: random.Random) -> None:
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"d{i}", "title": "", "text": _text(rng, i, 12)} for i in range(60)]
    _write_lines(folder / "corpus.jsonl", map(json.dumps, passages))
    queries = [{"_id": f"q{i}", "text": _text(rng, i)} for i in range(48)]
    _write_lines(folder / "queries.jsonl", map(json.dumps, queries))
    for split, first in (("train", 0), ("test", 24)):
        judged = (f"q{i}\td{i + shift}\t1" for i in range(first, first + 24) for shift in (0, _TOPICS))
        _write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *judged])


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _write_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = [*_SPECIAL, *(f"w{i}" for i in range(_TOPICS * _WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=_SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, words.index(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIAL))
    options: dict[str, Any] = {"tokenizer_object": tokenizer, "model_max_length": 60, **names}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, pad_token_id=0, **_MODEL))
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        model.save_pretrained(folder)
    PreTrainedTokenizerFast(**options).save_pretrained(folder)
