"""Completion: every flag of every stage, in scripts that real shells run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from typing import get_args

import pytest
from conftest import slow_except

from starbucks_retrieval.__main__ import STAGES, stage_module
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.completion import Shell, completion_script, main, stage_parsers


@pytest.fixture(scope="module")
def scripts():
    return {shell: completion_script(shell) for shell in get_args(Shell)}


def test_parsers_have_the_flags_of_their_stages(capsys):
    found = list(stage_parsers())
    assert list(dict.fromkeys(words[0] for words, *_ in found)) == list(STAGES)
    assert ("store", "verify") in [words for words, *_ in found]
    for words, _, parser in found:
        if parser is None:
            continue
        with pytest.raises(SystemExit):  # and the stages parse as before
            stage_module(words[0]).main([*words[1:], "--help"])
        shown = set(re.findall(r"^  (?:-h, )?(--\w+)", capsys.readouterr().out, re.MULTILINE))
        assert {option for option in parser._option_string_actions if option != "-h"} == shown, words


def test_every_flag_is_in_every_script(scripts):
    for shell, script in scripts.items():
        found = set(re.findall(r"\w+", script))
        for words, _, parser in stage_parsers():
            flags = {option.lstrip("-") for option in parser._option_string_actions} if parser else set()
            assert found >= {*words, *flags, "learning_rate", "per_device_train_batch_size"}, shell


@pytest.mark.parametrize(
    "module",
    slow_except(
        [["starbucks_retrieval.completion"]],
        [["starbucks_retrieval", "completion"], ["starbucks_retrieval.completion"]],
    ),
)
def test_a_shell_that_evaluates_the_script_is_silent(module):
    command = f'eval "$({shlex.join([sys.executable, "-m", *module, "bash"])})"; complete -p starbucks'
    done = subprocess.run([bash_program(), "--norc", "-uc", command], capture_output=True, text=True)
    assert done.stdout.startswith("complete ") and done.stderr == ""


def test_the_command(capsys):
    assert run_command(main, ["fish", "--json"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert figures["shell"] == "fish" and "complete -c starbucks" in figures["script"] and not err
    assert run_command(main, []) == 2
    assert "--shell" in capsys.readouterr().err
    assert run_command(main, ["powershell"]) == 2
    assert "fish" in capsys.readouterr().err


def bash_program() -> str:
    program = shutil.which("bash")
    if program is None:
        pytest.skip("needs bash on PATH")
    return program


@pytest.fixture
def bash(tmp_path, scripts):
    """Complete a command line whose last word is being typed, in a folder with some files."""
    program = bash_program()
    path = tmp_path / "starbucks.bash"
    path.write_text(scripts["bash"])
    (tmp_path / "here").mkdir()
    for name in ("run a.trec", "run b.trec", "corpus.jsonl"):
        (tmp_path / "here" / name).touch()

    def complete(*words: str) -> list[str]:
        line = shlex.join(["starbucks", *words])
        driver = (
            f"source {shlex.quote(str(path))}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=(); "
            '_shtab_starbucks; printf "%s\\n" "${COMPREPLY[@]+"${COMPREPLY[@]}"}"'
        )
        # Without a PATH: completing starts no program, so it is instant.
        command, here = [program, "--norc", "-uc", driver], tmp_path / "here"
        done = subprocess.run(command, capture_output=True, text=True, cwd=here, env={"PATH": ""})
        assert not done.stderr
        return sorted(done.stdout.split("\n")[:-1]) if done.stdout.strip() else []

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["enc"], ["encode"]),
        (["st"], ["store", "sts"]),
        (["--v"], ["--version"]),
        (["encode", "--backend", ""], ["auto", "onnx", "openvino", "torch"]),
        (["encode", "--backend", "o"], ["onnx", "openvino"]),
        (["encode", "--backend", "onnx", "--dataset_pa"], ["--dataset_path"]),
        (["encode", "--overwrite", "t"], ["true"]),
        (["encode", "--overwrite", "--shard_s"], ["--shard_size"]),
        (["encode", "--shard_size", "c"], []),
        (["encode", "--dataset_path", "c"], ["corpus.jsonl"]),
        (["encode", "c"], ["corpus.jsonl"]),
        (["evaluate", "--run", "run"], ["run a.trec", "run b.trec"]),
        (["evaluate", "--run", "run a.trec", "run b"], ["run b.trec"]),
        (["evaluate", "--run", "run a.trec", "--qr"], ["--qrels"]),
        (["store", "ver"], ["verify"]),
        (["store", "verify", "c"], ["corpus.jsonl"]),
        (["store", "verify", "corpus.jsonl", "--log_level", "w"], ["warning"]),
        (["train", "--per_device_tr"], ["--per_device_train_batch_size"]),
        (["completion", "f"], ["fish"]),
        (["unknown", "--x"], []),
    ],
)
def test_bash_completes(bash, words, expected):
    assert bash(*words) == expected


def test_bash_completes_every_flag_of_every_stage(bash):
    for words, _, parser in stage_parsers():
        if parser and words[0] not in ("train", "pretrain"):
            assert bash(*words, "-") == sorted(parser._option_string_actions)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("enc", ["encode"]),
        ("store ver", ["verify"]),
        ("encode --backend o", ["onnx", "openvino"]),
        ("encode --dataset_pa", ["--dataset_path"]),
        ("evaluate --run r", ["run.trec"]),
    ],
)
def test_fish_completes(tmp_path, scripts, line, expected):
    program = shutil.which("fish")
    if program is None:
        pytest.skip("needs fish on PATH")
    (tmp_path / "run.trec").touch()
    path = tmp_path / "starbucks.fish"
    path.write_text(scripts["fish"])
    command = f"source {shlex.quote(str(path))}; complete -C {shlex.quote('starbucks ' + line)}"
    done = subprocess.run([program, "--no-config", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert not done.stderr
    assert sorted(found.split("\t")[0] for found in done.stdout.splitlines()) == expected


def test_tcsh_reads_the_script(tmp_path, scripts):
    program = shutil.which("tcsh")
    if program is None:
        pytest.skip("needs tcsh on PATH")
    path = tmp_path / "starbucks.tcsh"
    path.write_text(scripts["tcsh"])
    command = [program, "-f", "-c", f"source {shlex.quote(str(path))}; complete starbucks"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and "verify" in done.stdout


ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; cd {folder}; autoload -Uz compinit; compinit -D -u; eval \\"\\$(<{script})\\""
zpty -w shell "zstyle ':completion:*' list-colors '' ; zstyle ':completion:*' menu no; setopt NO_BEEP NO_ALWAYS_LAST_PROMPT; LISTMAX=0; print READY"
zpty -r shell out '*READY*READY*'
zpty -n -w shell {line}$'\\t'
zpty -r shell out {expected}
print -r -- $out
zpty -d shell
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("store ver", ["verify"]),
        ("encode --dataset_pa", ["--dataset_path"]),
        ("encode --backend o", ["onnx", "openvino"]),
        ("evaluate --run r", ["run.trec"]),
    ],
)
def test_zsh_completes(tmp_path, scripts, line, expected):
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("needs zsh on PATH")
    (tmp_path / "run.trec").touch()
    path = tmp_path / "_starbucks"
    path.write_text(scripts["zsh"])
    pattern = shlex.quote("*".join(["", *expected, ""]))  # zsh waits until it has shown these words in this order
    driver = ZSH.format(folder=tmp_path, script=path, line=shlex.quote("starbucks " + line), expected=pattern)
    done = subprocess.run([program, "-f", "-c", driver], capture_output=True, text=True)
    assert all(word in done.stdout for word in expected)
