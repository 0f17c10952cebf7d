"""Tevatron's flags are ours, are replaced, or are answered; its page says the same as the parser."""

from __future__ import annotations

import sys

import pytest
from conftest import save_model
from docs.pages import ROOT

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.cli.flags import parser_for
from starbucks_retrieval.cli.tevatron import IGNORED, REFUSED, ROWS, SAME, find_row, replace_flags
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.__main__ import main as encode
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import SearchArguments
from starbucks_retrieval.train import TrainArguments
from starbucks_retrieval.train.__main__ import main as train

sys.path.append(str(ROOT / "docs" / "_hooks"))
from tevatron import PAGE, with_tables


def our_flags(command: str) -> set[str]:
    from starbucks_retrieval.cli import CommonArguments

    arguments = {"train": TrainArguments, "encode": EncodeArguments, "search": SearchArguments}[command]
    parser = parser_for([arguments, CommonArguments], "x", "x")
    return {name.removeprefix("--") for name in parser._option_string_actions}


def test_the_page_has_the_table():
    page = PAGE.read_text("utf-8")
    assert with_tables(page) == page, "run python docs/_hooks/tevatron.py"
    assert "`--save_text`" in page and with_tables(page.replace("| ignored |", "| remove |")) == page


@pytest.mark.parametrize("command", ["train", "encode", "search"])
def test_every_row_fits_our_flags(command):
    ours = our_flags(command)
    for row in [row for row in ROWS if row.command == command and row.is_flag]:
        for name in row.flags:
            assert (name in ours) == (row.ours == SAME), (command, name)
            assert find_row(command, name) is row, f"{name} has two rows"
        if row.ours not in (SAME, IGNORED, REFUSED):
            assert row.ours.removeprefix("--").removesuffix("=").split()[0] in ours, row
        assert row.note or row.ours not in (IGNORED, REFUSED), f"{row.flags} says nothing"


@pytest.mark.parametrize(
    ("command", "typed", "read_as"),
    [
        ("encode", "--bf16 --output_dir temp --normalize", "--dtype bf16 --normalize"),
        ("encode", "--bf16=true --fp16 false --pooling=avg", "--dtype bf16 --pooling mean"),
        ("encode", "--dtype bfloat16 --encoded_save_path e", "--dtype bf16 --encode_output_path e"),
        ("search", "--save_text --depth 1000 --cpu_search", "--save_format tevatron --depth 1000 --device cpu"),
        ("train", "--pooling eos --padding_side right --lora", "--pooling last --lora"),
        ("train", "--pooling last --q_max_len=32", "--pooling last --query_max_len 32"),
        ("evaluate", "--save_text", "--save_text"),
        ("encode", "a.yaml --batch_size -1", "a.yaml --batch_size -1"),
    ],
)
def test_words_are_replaced_and_each_change_is_said(command, typed, read_as, capsys):
    assert replace_flags(command, typed.split()) == read_as.split()
    said = capsys.readouterr().err
    assert bool(said) == (typed != read_as)
    replace_flags(command, [*typed.split(), "--quiet"])
    assert not capsys.readouterr().err


def test_a_refused_flag_gets_the_whole_replacement(capsys):
    words = "--model_name_or_path m --lora_name_or_path a --append-eos-token --dataset_path d --encode_output_path e"
    assert run_command(encode, words.split()) == 2
    what, hint = capsys.readouterr().err.splitlines()
    assert what == "error: starbucks encode has no --lora_name_or_path, --append_eos_token of Tevatron"
    assert "starbucks convert --model_name_or_path BASE --lora_name_or_path ADAPTERS --output_dir MODEL" in hint
    assert "starbucks convert --model_name_or_path MODEL --append_eos_token --output_dir NEW" in hint
    assert run_command(train, ["--model_name_or_path", "m", "--output_dir", "o", "--train_yaml", "t.yaml"]) == 2
    assert "list the sets: --dataset_path A B" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "hint"),
    [("bf16: true", "write dtype: bf16"), ("output_dir: temp", "remove it"), ("cache_dir: c", "HF_HOME")],
)
def test_keys_of_a_file_get_the_same_answers(key, hint, tmp_path):
    (tmp_path / "a.yaml").write_text(key)
    with pytest.raises(UserError, match="unknown key") as refused:
        encode([str(tmp_path / "a.yaml"), "--model_name_or_path", "m", "--encode_output_path", "e"])
    assert hint in refused.value.hint


README = """
starbucks convert --model_name_or_path mistral --append_eos_token --output_dir mistral-eos
starbucks train --output_dir retriever-mistral --model_name_or_path mistral-eos --lora
    --lora_target_modules q_proj,k_proj,v_proj,o_proj,down_proj,up_proj,gate_proj --save_steps 50
    --dataset_name msmarco.jsonl --query_prefix Query:_ --passage_prefix Passage:_ --pooling eos --normalize
    --temperature 0.01 --per_device_train_batch_size 2 --gradient_checkpointing --train_group_size 2 --learning_rate 1e-4
    --query_max_len 32 --passage_max_len 56 --num_train_epochs 1 --logging_steps 10 --overwrite_output_dir
    --gradient_accumulation_steps 1 --objective full
starbucks encode --output_dir=temp --model_name_or_path retriever-mistral --lora --query_prefix Query:_
    --passage_prefix Passage:_ --bf16 --pooling eos --normalize --encode_is_query --per_device_eval_batch_size 128
    --query_max_len 32 --passage_max_len 56 --dataset_name msmarco.jsonl --encode_output_path emb/query-dev.pkl
starbucks encode --output_dir=temp --model_name_or_path retriever-mistral --lora --query_prefix Query:_
    --passage_prefix Passage:_ --bf16 --pooling eos --normalize --per_device_eval_batch_size 128 --query_max_len 32
    --passage_max_len 56 --dataset_name corpus.jsonl --dataset_number_of_shards 2 --dataset_shard_index 0
    --encode_output_path emb/corpus.0.pkl
starbucks encode --output_dir=temp --model_name_or_path retriever-mistral --lora --query_prefix Query:_
    --passage_prefix Passage:_ --bf16 --pooling eos --normalize --per_device_eval_batch_size 128 --query_max_len 32
    --passage_max_len 56 --dataset_name corpus.jsonl --dataset_number_of_shards 2 --dataset_shard_index 1
    --encode_output_path emb/corpus.1.pkl
starbucks search --query_reps emb/query-dev.pkl --passage_reps emb/corpus*.pkl --depth 3 --batch_size 64 --save_text
    --save_ranking_to emb/rank.txt
"""


@pytest.mark.slow
def test_the_command_lines_of_the_readme(tmp_path, monkeypatch):
    """With the programs replaced by ours, a tiny Mistral, local files, and no --append_eos_token, which convert stores."""
    pytest.importorskip("peft")
    import json

    from transformers import AutoTokenizer

    from starbucks_retrieval.__main__ import _main as starbucks

    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "mistral", "mistral")
    tokenizer = AutoTokenizer.from_pretrained("mistral")
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.add_special_tokens({"eos_token": "[SEP]"})
    tokenizer.save_pretrained("mistral")
    passages = [{"docid": f"d{i}", "title": "", "text": f"w{i} w{i + 1} w{i + 2}"} for i in range(6)]
    rows = [
        {
            "query_id": f"q{i}",
            "query": f"w{i}",
            "positive_passages": [passages[i]],
            "negative_passages": [passages[i - 1]],
        }
        for i in range(4)
    ]
    for name, lines in (("corpus.jsonl", passages), ("msmarco.jsonl", rows)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in README.strip().replace("\n    ", " ").splitlines():
        assert run_command(starbucks, line.split()[1:]) == 0, line
    assert AutoTokenizer.from_pretrained("retriever-mistral")("w1 w2")["input_ids"][-1] == tokenizer.eos_token_id
    found = [line.split("\t") for line in (tmp_path / "emb" / "rank.txt").read_text().splitlines()]
    assert len(found) == 12 and {len(cells) for cells in found} == {3} and found[0][0] == "q0"
