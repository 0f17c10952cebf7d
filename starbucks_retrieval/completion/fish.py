"""The script for fish."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.completion.tree import Flag, Stage

# Position decides, not whether a word was seen: `export` is a stage and a sub-command of `store`.
_HEAD = """# Completion of starbucks for fish; made by `starbucks completion fish`.
function __starbucks_at
    set -l words (commandline -opc)
    set -e words[1]
    set -l count (count $argv)
    test (count $words) -ge $count; or return 1
    test $count -eq 0; or test "$words[1..$count]" = "$argv"
end

function __starbucks_next
    set -l words (commandline -opc)
    test (math (count $words) - 1) -eq (count $argv); and __starbucks_at $argv
end

complete -c starbucks -e
"""


def fish(stages: Sequence[Stage]) -> str:
    """The script."""
    parents = {stage.words[0] for stage in stages if len(stage.words) > 1}
    lines = []
    for stage in stages:
        *before, name = stage.words
        at = " ".join(["__starbucks_next", *before])
        lines.append(f"complete -c starbucks -n '{at}' -f -a {name} -d {_quoted(stage.help)}")
    for stage in stages:
        if len(stage.words) == 1 and stage.words[0] in parents:
            continue
        at = " ".join(["__starbucks_at", *stage.words])
        lines += [f"complete -c starbucks -n '{at}' {_flag(flag)}" for flag in stage.flags]
    return _HEAD + "\n".join(lines) + "\n"


def _flag(flag: Flag) -> str:
    value = {
        "choice": f" -x -a {_quoted(' '.join(flag.choices))}",
        "switch": "",
        "number": " -x",
        "file": " -r -F",
    }[flag.kind]
    return f"-l {flag.name}{value} -d {_quoted(flag.help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
