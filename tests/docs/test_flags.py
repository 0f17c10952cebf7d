"""Every flag that the documentation names belongs to the command it is named with."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest
from docs.pages import ROOT, pages, read

sys.path.append(str(ROOT / "docs" / "_hooks"))
from flags import COMMON, as_markdown, commands, flag_pages, overview

_COMMAND = re.compile(r"(?:starbucks |-m starbucks_retrieval\.)(\w+)(?: (\w+))?")
_FLAG = re.compile(r"(?<![\w-])--([A-Za-z_]\w*)")
_PROGRAMS = {"nproc_per_node", "nnodes", "constraint", "editable"}  # torchrun's and pip's


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """The names of the flags of each command."""
    from transformers import TrainingArguments

    found: dict[str, set[str]] = {}
    for command in commands():
        flags = {flag.removeprefix("--") for flag in command.flags} | {"help"}
        found[command.name] = flags
        found.setdefault(command.name.split()[0], set()).update(flags)
    hugging_face = {field.name for field in dataclasses.fields(TrainingArguments)}
    for stage in ("train", "pretrain"):
        found[stage] |= hugging_face
    return found


def command_lines(text: str):
    """Line number and text of every command line of this package, with its continuation lines."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        words = line
        while words.endswith("\\") and number + 1 < len(lines):
            number += 1
            words = words[:-1] + lines[number]
        # In running text, a command is between its own back quotes.
        pieces = (
            re.findall(r"`([^`]+)`", words) if "`" in words and not line.startswith("    ") else [words.split("  #")[0]]
        )
        yield from ((number + 1, piece) for piece in pieces if _COMMAND.search(piece))


@pytest.mark.parametrize("page", pages())
def test_commands_have_flags_that_exist(page, known):
    wrong = []
    for number, line in command_lines(read(page)):
        command = _COMMAND.search(line)
        stage = f"{command[1]} {command[2]}" if f"{command[1]} {command[2]}" in known else command[1]
        if stage not in known:
            wrong.append(f"{page}:{number}: no stage {stage}")
            continue
        unknown = [flag for flag in _FLAG.findall(line[command.end() :]) if flag not in known[stage] | _PROGRAMS]
        wrong += [f"{page}:{number}: {stage} has no --{flag}" for flag in unknown]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", [page for page in pages() if "/howto/from-" in page])
def test_tables_of_flags_name_ours(page, known):
    stage, column, wrong, seen = None, None, [], 0
    for number, line in enumerate(read(page).splitlines(), 1):
        if line.startswith("## "):
            heading = re.search(r"`starbucks (\w+)`", line)
            stage, column = heading and heading[1], None
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if "ours" in cells:
            column = cells.index("ours")
        if not (stage and cells and column is not None):
            continue
        named = _FLAG.findall(cells[column])
        if cells[column] == "the same":
            named = _FLAG.findall(cells[0])
        seen += len(named)
        wrong += [f"{page}:{number}: {stage} has no --{flag}" for flag in named if flag not in known[stage]]
    assert seen > 10 and not wrong, "\n".join(wrong)


def test_the_reference_lists_every_flag_with_its_meaning():
    for command in commands():
        text = as_markdown(command, common=True)
        for flag in command.flags:
            assert re.search(rf"^\| `{flag}` \| .* \| \S.* \|$", text, re.MULTILINE), f"{command.name} {flag}"


def test_each_command_has_a_page_of_flags():
    found = flag_pages()
    for command in commands():
        page = found[command.name.split()[0]][1]
        heading = "##" if " " in command.name else "#"
        assert (
            page.count(f"\n{heading} starbucks {command.name}\n") + page.startswith(f"# starbucks {command.name}\n")
            == 1
        )
        for title, actions in command.groups:
            for action in actions:
                assert (f"| `{action.option_strings[0]}` |" in page) == (title != COMMON), command.name
        examples = re.findall(r"```bash\n(.*?)\n```", page, re.DOTALL)
        assert all(len(line) <= 120 for text in examples for line in text.splitlines()), command.name
    for name in found:
        assert f"](flags/{name}.md)" in overview()
    assert "| `--seed` |" in overview()


def test_a_wrong_flag_is_found():
    [(number, line)] = command_lines(
        "text\n\n    starbucks train --sizes all \\\n        --size 6:128  # --not a flag\n"
    )
    assert number == 4 and _FLAG.findall(line) == ["sizes", "size"]
