"""Completion: every flag of every stage, in scripts that real shells run."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from starbucks_retrieval.__main__ import STAGES
from starbucks_retrieval.cli import run_door
from starbucks_retrieval.completion import SHELLS, Flag, Stage, all_stages, script
from starbucks_retrieval.completion.__main__ import main

ROOT = Path(__file__).parents[1]
ODD = Flag("odd", 'it\'s [a] 100% \\ "test": $HOME `x`', "choice", ("a:b", "c"))
TOY = [
    Stage(
        ("one",),
        "the first: it's one",
        (Flag("many_files", "files", "file", (), True), Flag("count", "n", "number"), ODD),
    ),
    Stage(("two",), "has sub-commands", ()),
    Stage(("two", "one"), "the same name below", (Flag("switch", "s", "switch"), Flag("place", "p", "file"))),
    Stage(("two", "three"), "another", (Flag("pick", "p", "choice", ("x", "y"), True),)),
]


@pytest.fixture(scope="module")
def stages():
    return all_stages(STAGES, transformers=False)


def test_stages_and_flags_are_those_of_the_doors(stages, capsys):
    for stage in stages:
        door = importlib.import_module(f"starbucks_retrieval.{stage.words[0]}.__main__")
        with pytest.raises(SystemExit):
            door.main([*stage.words[1:], "--help"]) or sys.exit()
        shown = set(re.findall(r"^  (?:-h, )?--(\w+)", capsys.readouterr().out, re.MULTILINE))
        assert {flag.name for flag in stage.flags} == shown, stage.words
    assert list(dict.fromkeys(stage.words[0] for stage in stages)) == list(STAGES)
    assert ("store", "verify") in [stage.words for stage in stages]


def test_kinds_of_values(stages):
    flags = {flag.name: flag for stage in stages if stage.words == ("encode",) for flag in stage.flags}
    assert flags["backend"].choices == ("torch", "onnx", "openvino", "auto")
    kinds = [flags[name].kind for name in ("dataset_path", "shard_size", "overwrite", "normalize", "help")]
    assert kinds == ["file", "number", "switch", "switch", "switch"]
    run = next(flag for stage in stages if stage.words == ("evaluate",) for flag in stage.flags if flag.name == "run")
    assert run.many and not flags["dataset_path"].many


def test_every_flag_is_in_every_script(stages):
    for shell in SHELLS:
        words = set(re.findall(r"\w+", script(shell, stages)))
        assert words >= {flag.name for stage in stages for flag in stage.flags}, shell
        assert words >= {word for stage in stages for word in stage.words}, shell


def test_stages_that_train_have_the_flags_of_transformers():
    train, encode = all_stages({"train": "", "encode": ""})
    names = [flag.name for flag in train.flags]
    assert {"learning_rate", "per_device_train_batch_size", "output_dir", "seed", "objective"} <= set(names)
    assert len(names) == len(set(names)) and not any("-" in name for name in names)
    assert "learning_rate" not in {flag.name for flag in encode.flags}
    assert "adamw_torch" in next(flag for flag in train.flags if flag.name == "optim").choices


def test_the_doors_work_as_before_afterwards(stages, capsys):
    from starbucks_retrieval import cli

    assert cli.parser_for.__name__ == "parser_for"
    with pytest.raises(SystemExit):
        importlib.import_module("starbucks_retrieval.search.__main__").main(["--help"])
    assert "--query_reps" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_that_starts_with_it_shows_nothing(shell, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell} on PATH")
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    ask = f"{shlex.quote(sys.executable)} -m starbucks_retrieval.completion {shell}"
    line = {
        "bash": f'eval "$({ask})"; complete -p starbucks >/dev/null',
        "zsh": f'autoload -Uz compinit; compinit -D -u; eval "$({ask})"; [[ -n "${{_comps[starbucks]}}" ]]',
        "fish": f"{ask} | source; complete -c starbucks | string length -q",
    }[shell]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run([program, *bare, "-c", line], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_door(capsys):
    assert run_door(main, ["bash"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Completion of starbucks for bash") and not err
    assert run_door(main, ["fish", "--json", "--quiet"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["shell"] == "fish" and figures["script"].startswith("# Completion")
    assert run_door(main, []) == 2 and run_door(main, ["tcsh"]) == 2
    assert "--shell" in capsys.readouterr().err


@pytest.fixture
def bash(tmp_path):
    """Completes a command line, whose last word is being typed, in a folder with some files."""
    program = shutil.which("bash")
    if program is None:
        pytest.skip("needs bash on PATH")
    (tmp_path / "here").mkdir()
    for name in ("run a.trec", "run b.trec", "corpus.jsonl"):
        (tmp_path / "here" / name).touch()

    def complete(stages, *words):
        path = tmp_path / "starbucks.bash"
        path.write_text(script("bash", stages))
        line = shlex.join(["starbucks", *words])
        driver = (
            f"set -u; source {shlex.quote(str(path))}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=(); "
            '_starbucks; printf "%s\\n" "${COMPREPLY[@]+"${COMPREPLY[@]}"}"'
        )
        # Without a PATH: completing starts no program, so it is instant.
        command, here = [program, "--norc", "-c", driver], tmp_path / "here"
        done = subprocess.run(command, capture_output=True, text=True, cwd=here, env={"PATH": ""})
        # Outside of a real completion compopt has nothing to change, and says so.
        assert not [line for line in done.stderr.splitlines() if "compopt" not in line], done.stderr
        return sorted(done.stdout.split("\n")[:-1]) if done.stdout.strip() else []

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], ["--help", "--version", "one", "two"]),
        (["o"], ["one"]),
        (["one", "--"], ["--count", "--many_files", "--odd"]),
        (["one", "--many-f"], ["--many_files"]),
        (["one", "--m"], ["--many_files"]),
        (["one", "--odd", ""], ["a:b", "c"]),
        (["one", "--odd", "c"], ["c"]),
        (["one", "--odd", "=", "c"], ["c"]),
        (["one", "--odd", "="], ["a:b", "c"]),
        (["one", "--many_files", "run"], ["run a.trec", "run b.trec"]),
        (["one", "--many_files", "run a.trec", "run"], ["run a.trec", "run b.trec"]),
        (["one", "--count", "3", "--many_files", "c"], ["corpus.jsonl"]),
        (["one", "--count", ""], []),
        (["one", "--count", "3", ""], ["--count", "--many_files", "--odd"]),
        (["one", "run"], ["run a.trec", "run b.trec"]),
        (["two", ""], ["--help", "one", "three"]),
        (["two", "t"], ["three"]),
        (["two", "one", "--"], ["--place", "--switch"]),
        (["two", "one", "--switch", "t"], ["true"]),
        (["two", "one", "--switch", "true", "--pl"], ["--place"]),
        (["two", "three", "--pick", "x", ""], ["--pick", "x", "y"]),
        (["unknown", "--"], []),
    ],
)
def test_bash_completes(bash, words, expected):
    assert bash(TOY, *words) == expected


def test_bash_completes_the_real_stages(bash, stages):
    assert bash(stages, "enc") == ["encode"]
    assert bash(stages, "encode", "--backend", "o") == ["onnx", "openvino"]
    assert bash(stages, "store", "ver") == ["verify"]
    assert "--save_ranking_to" in bash(stages, "search", "--save-r")
    for stage in stages:
        if stage.flags:
            assert bash(stages, *stage.words, "--") == sorted(f"--{flag.name}" for flag in stage.flags)


@pytest.fixture
def fish(tmp_path):
    program = shutil.which("fish")
    if program is None:
        pytest.skip("needs fish on PATH")
    (tmp_path / "run.trec").touch()

    def complete(stages, line):
        path = tmp_path / "starbucks.fish"
        path.write_text(script("fish", stages))
        command = f"source {shlex.quote(str(path))}; complete -C {shlex.quote('starbucks ' + line)}"
        done = subprocess.run([program, "--no-config", "-c", command], capture_output=True, text=True, cwd=tmp_path)
        assert not done.stderr, done.stderr
        return sorted(found.split("\t")[0] for found in done.stdout.splitlines())

    return complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ["one", "two"]),
        ("two t", ["three"]),
        ("two one --", ["--place", "--switch"]),
        ("one --odd ", ["a:b", "c"]),
        ("one --many_files run", ["run.trec"]),
        ("one --co", ["--count"]),
    ],
)
def test_fish_completes(fish, line, expected):
    assert fish(TOY, line) == expected


def test_fish_reads_the_real_script(fish, stages):
    assert fish(stages, "encode --backend o") == ["onnx", "openvino"]


ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; cd {folder}; autoload -Uz compinit; compinit -D -u; source {script}"
zpty -w shell "zstyle ':completion:*' list-colors '' ; zstyle ':completion:*' menu no; setopt NO_BEEP NO_ALWAYS_LAST_PROMPT; LISTMAX=0; print READY"
zpty -r shell out '*READY*READY*'
zpty -n -w shell {line}$'\\t'
zpty -r shell out {expected}
print -r -- $out
zpty -d shell
"""


@pytest.fixture
def zsh(tmp_path):
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("needs zsh on PATH")
    (tmp_path / "run.trec").touch()

    def completes(stages, line, *words):
        path = tmp_path / "_starbucks"
        path.write_text(script("zsh", stages))
        # Waits for the words, in this order; without them until the time of the test is over.
        expected = shlex.quote("*".join(["", *words, ""]))
        driver = ZSH.format(folder=tmp_path, script=path, line=shlex.quote("starbucks " + line), expected=expected)
        done = subprocess.run([program, "-f", "-c", driver], capture_output=True, text=True)
        return all(word in done.stdout for word in words)

    return completes


def test_zsh_completes(zsh, stages):
    assert zsh(TOY, "one --c", "--count")
    assert zsh(TOY, "two t", "three")
    assert zsh(stages, "encode --backend o", "onnx", "openvino")
