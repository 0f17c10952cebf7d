"""The script for zsh: a `_starbucks` for a folder of fpath, or to be sourced after compinit."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.completion.tree import Flag, Stage

_FRAME = """#compdef starbucks
# Completion of starbucks for zsh; made by `starbucks completion zsh`.

_starbucks() {
    local curcontext=$curcontext stage
    local -a stages
    if ((CURRENT == 2)); then
        stages=(
%(stages)s
        )
        _describe -t stages 'stage' stages
        return
    fi
    stage=$words[2]
    # What follows is parsed as if the stage were the command.
    shift words
    ((CURRENT--))
    case $stage in
%(cases)s
    *)
        _files
        ;;
    esac
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _starbucks "$@"
else
    compdef _starbucks starbucks
fi
"""


def zsh(stages: Sequence[Stage]) -> str:
    """The script."""
    tops = [stage for stage in stages if len(stage.words) == 1]
    cases = []
    for top in tops:
        children = [stage for stage in stages if len(stage.words) > 1 and stage.words[0] == top.words[0]]
        body = _commands(children) if children else _arguments(top, "        ")
        cases.append(f"    {top.words[0]})\n{body}\n        ;;")
    return _FRAME % {
        "stages": "\n".join(f"            {_described(top.words[0], top.help)}" for top in tops),
        "cases": "\n".join(cases),
    }


def _commands(children: Sequence[Stage]) -> str:
    described = "\n".join(f"                {_described(child.words[1], child.help)}" for child in children)
    cases = "\n".join(
        f"        {child.words[1]})\n{_arguments(child, '            ')}\n            ;;" for child in children
    )
    return (
        "        if ((CURRENT == 2)); then\n"
        f"            stages=(\n{described}\n            )\n"
        "            _describe -t commands 'sub-command' stages\n"
        "            return\n"
        "        fi\n"
        "        stage=$words[2]\n"
        "        shift words\n"
        "        ((CURRENT--))\n"
        f"        case $stage in\n{cases}\n        esac"
    )


def _arguments(stage: Stage, indent: str) -> str:
    lines = [f"{indent}    {_quoted(_flag(one))} \\" for one in stage.flags]
    return "\n".join([f"{indent}_arguments -S \\", *lines, f"{indent}    '*:file:_files'"])


def _flag(flag: Flag) -> str:
    """An option as _arguments reads it."""
    help_text = "".join("\\" + c if c in "[]\\" else c for c in flag.help)
    value = {
        "choice": f":{flag.name}:({' '.join(flag.choices)})",
        "switch": f"::{flag.name}:(true false)",
        "number": f":{flag.name}: ",
        "file": f":{flag.name}:_files",
    }[flag.kind]
    if flag.name == "help":
        return f"--help[{help_text}]"
    # `*` before: may be given again; several values run to the next flag.
    values = f":*-*{value}" if flag.many else value
    return f"{'*' if flag.many else ''}--{flag.name}[{help_text}]{values}"


def _described(name: str, line: str) -> str:
    return _quoted(f"{name}:{line}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
