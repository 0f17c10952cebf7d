"""Tevatron's flags: which are ours, which are read as ours, and the replacement of the others.

One table, `ROWS`. The parser reads it when a command line has Tevatron's flags, and the tables of
docs/howto/from-tevatron.md are made of it by docs/_hooks/tevatron.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from starbucks_retrieval.cli.words import flag_chunks
from starbucks_retrieval.errors import UserError

SAME = "the same"
IGNORED = "ignored"
REFUSED = "refused"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        command: Our command.
        flags: Tevatron's flags without dashes, or one text that describes a behaviour.
        ours: `SAME`, `IGNORED` or `REFUSED`; else our flag with its value, which the words of Tevatron's are replaced by.
            A flag that ends in `=` takes Tevatron's value. In a row without flags, ours is shown only.
        note: What is different, for the page; for a refused flag, the hint of the error too.
        values: Tevatron's values → ours, of a flag that exists in both.
    """

    command: str
    flags: tuple[str, ...]
    ours: str
    note: str = ""
    values: Mapping[str, str] = {}

    @property
    def is_flag(self) -> bool:
        """Whether the row is about flags, not about a behaviour."""
        return all(" " not in name for name in self.flags)


_POOLING = {"eos": "last", "avg": "mean", "first": "cls"}
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_MERGE = "starbucks convert --model_name_or_path BASE --lora_name_or_path ADAPTERS --output_dir MODEL merges the adapters; use MODEL"
_EOS = (
    "starbucks convert --model_name_or_path MODEL --append_eos_token --output_dir NEW stores it in the tokenizer, once; "
    "use NEW without the flag. Tokenizers of BERT and Qwen3-Embedding end texts with a special token by themselves"
)
_TOKENIZER = "remove it: the tokenizer and configuration in the model's folder are used"
_CACHE = "remove it, and set the environment variable HF_HOME to the folder"
_POOLING_NOTE = "`eos` is read as `last`, `avg` as `mean`, `first` as `cls`"

# As of Tevatron's repository in July 2026; names of its first version are included.
ROWS: tuple[Row, ...] = (
    Row("train", ("model_name_or_path", "normalize", "temperature"), SAME),
    Row("train", ("pooling",), SAME, _POOLING_NOTE, _POOLING),
    Row(
        "train",
        ("dataset_name", "dataset_config", "dataset_path", "dataset_split"),
        SAME,
        "`--dataset_path` also accepts several values, and BEIR folders",
    ),
    Row("train", ("corpus_name", "corpus_path"), SAME),
    Row(
        "train",
        ("train_yaml",),
        REFUSED,
        "list the sets: --dataset_path A B@2, or in a .yaml file with settings of each; B@2 is used twice as often",
    ),
    Row("train", ("train_group_size", "query_max_len", "query_prefix", "passage_prefix"), SAME),
    Row("train", ("passage_max_len",), SAME, "default 196 (Tevatron: 128)"),
    Row(
        "train",
        ("grad_cache", "gc_q_chunk_size", "gc_p_chunk_size"),
        SAME,
        "works for every method, and with DeepSpeed; `--max_tokens_per_chunk` sets the chunk size in tokens instead",
    ),
    Row(
        "train",
        ("lora", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
        SAME,
        "alpha is 32 (Tevatron: 64), dropout 0 (0.1); all linear modules; the saved model contains the merged adapters",
    ),
    Row("train", ("lora_name_or_path",), REFUSED, _MERGE),
    Row(
        "train",
        ("distil_temperature",),
        SAME,
        "off unless `--distil_weight` is given; default 1 (Tevatron: 0.02)",
    ),
    Row("train", ("warmup_ratio",), SAME, "default 0.1 in both; transformers' `--warmup_steps 0.1` works too"),
    Row("train", ("negatives of all processes, always",), "`--negatives_x_device`", "on by default"),
    Row(
        "train",
        ("resumes by itself from a checkpoint in the output folder",),
        "`--resume_from_checkpoint`",
        "only with this flag",
    ),
    Row("train", ("append_eos_token",), REFUSED, _EOS),
    Row(
        "train",
        ("padding_side", "pad_to_multiple_of"),
        IGNORED,
        "texts are sorted by length; padding changes no result",
    ),
    Row("train", ("attn_implementation",), IGNORED, "attention follows the architecture"),
    Row(
        "train",
        ("num_proc", "dataset_proc_num"),
        IGNORED,
        "text is tokenised while training; see --dataloader_num_workers",
    ),
    Row("train", ("tokenizer_name", "config_name"), REFUSED, _TOKENIZER),
    Row("train", ("cache_dir", "dataset_cache_dir"), REFUSED, _CACHE),
    Row("train", ("dtype",), REFUSED, "use --bf16 or --fp16: weights stay in float32 and computation uses autocast"),
    Row(
        "train",
        ("positive_passage_no_shuffle", "negative_passage_no_shuffle", "exclude_title"),
        REFUSED,
        "remove it: epochs go through a group's passages by --seed; leave the titles out of the data",
    ),
    Row(
        "train",
        ("passage_chunk_size", "encode_image", "encode_video", "encode_audio", "assets_path", "untie_encoder"),
        REFUSED,
        "not supported: text only, one vector per passage, one encoder",
    ),
    Row("train", ("train_n_passages",), "--train_group_size=", "Tevatron 1"),
    Row("train", ("q_max_len",), "--query_max_len=", "Tevatron 1"),
    Row("train", ("p_max_len",), "--passage_max_len=", "Tevatron 1"),
    Row("encode", ("model_name_or_path", "dataset_name", "dataset_config", "dataset_path", "dataset_split"), SAME),
    Row(
        "encode",
        ("encode_output_path",),
        SAME,
        "a folder of resumable [stores](../encoding.md#stores), whatever its ending, instead of a pickle",
    ),
    Row("encode", ("encode_is_query", "dataset_number_of_shards", "dataset_shard_index"), SAME),
    Row("encode", ("corpus_name", "corpus_path"), SAME),
    Row(
        "encode",
        ("per_device_eval_batch_size",),
        SAME,
        "converted to tokens; `--max_tokens_per_batch` sets tokens directly",
    ),
    Row("encode", ("bf16",), "--dtype bf16"),
    Row("encode", ("fp16",), "--dtype fp16"),
    Row("encode", ("dtype",), SAME, "`float32` is read as `fp32`, `float16` as `fp16`, `bfloat16` as `bf16`", _DTYPES),
    Row("encode", ("output_dir",), IGNORED, "nothing is written besides --encode_output_path"),
    Row(
        "encode",
        ("pooling",),
        SAME,
        f"a trained model stores it, and a flag that contradicts it is refused; {_POOLING_NOTE}",
        _POOLING,
    ),
    Row(
        "encode",
        ("normalize", "query_prefix", "passage_prefix", "query_max_len", "passage_max_len"),
        SAME,
        "likewise: a trained model stores them",
    ),
    Row("encode", ("lora",), IGNORED, "a model that was trained here contains its adapters"),
    Row("encode", ("lora_name_or_path",), REFUSED, _MERGE),
    Row("encode", ("append_eos_token",), REFUSED, _EOS),
    Row(
        "encode",
        ("padding_side", "pad_to_multiple_of"),
        IGNORED,
        "texts are sorted by length; padding changes no result",
    ),
    Row("encode", ("attn_implementation",), SAME),
    Row(
        "encode",
        ("num_proc", "dataset_proc_num", "dataloader_num_workers"),
        IGNORED,
        "a thread tokenises ahead of the model",
    ),
    Row("encode", ("tokenizer_name", "config_name"), REFUSED, _TOKENIZER),
    Row("encode", ("cache_dir", "dataset_cache_dir"), REFUSED, _CACHE),
    Row(
        "encode", ("a loop over shards with CUDA_VISIBLE_DEVICES",), "`--num_processes`", "one job, one process per GPU"
    ),
    Row("encode", ("encoded_save_path",), "--encode_output_path=", "Tevatron 1"),
    Row("encode", ("encode_num_shard",), "--dataset_number_of_shards=", "Tevatron 1"),
    Row("encode", ("encode_shard_index",), "--dataset_shard_index=", "Tevatron 1"),
    Row("encode", ("q_max_len",), "--query_max_len=", "Tevatron 1"),
    Row("encode", ("p_max_len",), "--passage_max_len=", "Tevatron 1"),
    Row(
        "search",
        ("query_reps", "passage_reps", "depth", "batch_size", "save_ranking_to", "quiet"),
        SAME,
        "a quoted pattern of parts works too",
    ),
    Row(
        "search",
        ("save_text",),
        "--save_format tevatron",
        "three columns: query, document, score. Without it the run is in TREC format and needs no conversion",
    ),
    Row("search", ("cpu_search",), "--device cpu"),
    Row("search", ("use_gpu",), "--device cuda"),
    Row("search", ("gpu_float32",), IGNORED, "results are exact on every device"),
    Row("search", ("shard_search",), IGNORED, "passages are streamed within --max_memory"),
    Row("search", ("all shards in memory",), "`--max_memory`", "passages are streamed within this limit"),
    Row(
        "search",
        ("a small collection is padded with document -1",),
        "",
        "runs have at most as many rows per query as there are passages",
    ),
)


def find_row(command: str, name: str) -> Row | None:
    """Return the row of a flag of Tevatron, or None.

    Args:
        command: Our command, such as `search`.
        name: The flag without dashes.
    """
    return next((row for row in ROWS if row.command == command and row.is_flag and name in row.flags), None)


def hint_for(command: str, name: str) -> str:
    """Return what to do about a key of a configuration file that is a flag of Tevatron's.

    Args:
        command: Our command, such as `search`.
        name: The key.

    Returns:
        The hint; empty for a key that is no flag of Tevatron, or that is the same here.
    """
    row = find_row(command, name)
    if row is None or row.ours == SAME:
        return ""
    if row.ours in (IGNORED, REFUSED):
        return row.note if row.ours == REFUSED else f"remove it: {row.note}"
    flag, _, value = row.ours.removeprefix("--").removesuffix("=").partition(" ")
    return f"write {flag}: {value}".rstrip()


def replace_flags(command: str, words: Sequence[str]) -> list[str]:
    """Return a command line with Tevatron's flags replaced by ours; each change is printed unless `--quiet` is given.

    Args:
        command: Our command, such as `encode`.
        words: The command line, flags with underscores.

    Raises:
        UserError: A flag has no replacement that could be made here; the hint says what to do.

    Example:
        >>> replace_flags("encode", ["--quiet", "--bf16", "--pooling", "eos", "--output_dir=temp"])
        ['--quiet', '--dtype', 'bf16', '--pooling', 'last']
    """
    replaced: list[str] = []
    refused: dict[str, str] = {}
    notices: list[str] = []
    for chunk in flag_chunks(words):
        flag, equals, value = chunk[0].partition("=")
        values = [value] if equals else list(chunk[1:])
        row = find_row(command, flag.removeprefix("--")) if flag.startswith("--") else None
        if row is None:
            new = list(chunk)
        elif row.ours == REFUSED:
            refused[flag] = row.note
            continue
        else:
            new = _new_words(row, flag, values, chunk)
            if new != list(chunk):
                notices.append(f"{' '.join(chunk)}: " + (f"read as {' '.join(new)}" if new else f"ignored; {row.note}"))
        replaced += new
    if refused:
        names, hints = ", ".join(refused), "; ".join(dict.fromkeys(refused.values()))
        raise UserError(f"starbucks {command} has no {names} of Tevatron", hints)
    if "--quiet" not in words:
        for notice in notices:
            print(notice, file=sys.stderr)
    return replaced


def _new_words(row: Row, flag: str, values: list[str], chunk: Sequence[str]) -> list[str]:
    if row.ours == SAME:
        return (
            [flag, *(row.values.get(value, value) for value in values)] if set(values) & set(row.values) else [*chunk]
        )
    if row.ours == IGNORED or (values[:1] and values[0].lower() in ("false", "no", "0")):
        return []
    return [row.ours[:-1], *values] if row.ours.endswith("=") else row.ours.split()
