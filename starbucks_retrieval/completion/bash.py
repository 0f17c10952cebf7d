"""The script for bash, from version 3.2 on (that of macOS)."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.completion.tree import Flag, Stage

# Flags may be written with dashes, --flag=value comes as three words, and a flag that takes several values goes on taking.
_FRAME = """# Completion of starbucks for bash; made by `starbucks completion bash`.
_starbucks_flags() {
    flags='' many='' files='' switches='' choices=''
    case "$1" in
%(stages)s
    esac
}

_starbucks_choices() {
    case "$1 $2" in
%(choices)s
    esac
}

_starbucks_files() {
    local IFS=$'\\n'
    type compopt >/dev/null 2>&1 && compopt -o filenames
    COMPREPLY=($(compgen -f -- "$1"))
}

_starbucks() {
    local cur=${COMP_WORDS[COMP_CWORD]} stage=${COMP_WORDS[1]} first=2 flag='' values=0 i word
    local flags many files switches choices
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '%(names)s --help --version' -- "$cur"))
        return
    fi
    case "$stage" in
%(commands)s
    esac
    _starbucks_flags "$stage"
    [[ -n $flags ]] || return
    for ((i = first; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == --* ]]; then
            flag=${word#--} flag=${flag//-/_} values=0
        elif [[ $word != = ]]; then
            ((values++))
        fi
    done
    [[ $cur == = ]] && cur=''
    if [[ $cur == -* ]]; then
        word=${cur#-} word=${word#-}
        COMPREPLY=($(compgen -P -- -W "$flags" -- "${word//-/_}"))
        return
    fi
    if [[ -n $flag ]] && { ((values == 0)) || [[ " $many " == *" $flag "* ]]; }; then
        if [[ " $choices " == *" $flag "* ]]; then
            COMPREPLY=($(compgen -W "$(_starbucks_choices "$stage" "$flag")" -- "$cur"))
        elif [[ " $switches " == *" $flag "* ]]; then
            COMPREPLY=($(compgen -W 'true false' -- "$cur"))
        elif [[ " $files " == *" $flag "* ]]; then
            _starbucks_files "$cur"
        fi
        # Where the flag has all it needs, another may follow.
        [[ -z $cur ]] && { ((values > 0)) || [[ " $switches " == *" $flag "* ]]; } || return
    elif [[ -n $cur ]]; then
        _starbucks_files "$cur"
        return
    fi
    COMPREPLY+=($(compgen -P -- -W "$flags"))
}

complete -F _starbucks starbucks
"""


def bash(stages: Sequence[Stage]) -> str:
    """The script."""
    parents = {stage.words[0] for stage in stages if len(stage.words) > 1}
    cases, choices = [], []
    for stage in stages:
        if stage.words[0] in parents and len(stage.words) == 1:
            continue
        name = " ".join(stage.words)
        parts = {
            "flags": stage.flags,
            "many": [one for one in stage.flags if one.many],
            "files": [one for one in stage.flags if one.kind == "file"],
            "switches": [one for one in stage.flags if one.kind == "switch"],
            "choices": [one for one in stage.flags if one.kind == "choice"],
        }
        told = "\n".join(f"            {part}='{_names(those)}'" for part, those in parts.items() if those)
        cases.append(f"        '{name}')\n{told}\n            ;;")
        choices += [f"        '{name} {one.name}') echo '{' '.join(one.choices)}' ;;" for one in parts["choices"]]
    commands = []
    for parent in dict.fromkeys(stage.words[0] for stage in stages if len(stage.words) > 1):
        words = " ".join(stage.words[1] for stage in stages if stage.words[0] == parent and len(stage.words) > 1)
        commands.append(
            f"        {parent})\n"
            f"            if ((COMP_CWORD == 2)); then\n"
            f"                COMPREPLY=($(compgen -W '{words} --help' -- \"$cur\"))\n"
            f"                return\n"
            f"            fi\n"
            f'            stage="{parent} ${{COMP_WORDS[2]}}" first=3\n'
            f"            ;;"
        )
    return _FRAME % {
        "stages": "\n".join(cases),
        "choices": "\n".join(choices),
        "names": " ".join(stage.words[0] for stage in stages if len(stage.words) == 1),
        "commands": "\n".join(commands) or "        '') ;;",
    }


def _names(flags: Sequence[Flag]) -> str:
    return " ".join(one.name for one in flags)
