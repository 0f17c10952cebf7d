"""Command-line flags from dataclass fields."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeVar

from starbucks_retrieval.cli.checks import CHECKS
from starbucks_retrieval.cli.config import convert, load_config, scalar_type
from starbucks_retrieval.cli.help import RARE, FlagParser
from starbucks_retrieval.cli.tevatron import hint_for, replace_flags
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes

T = TypeVar("T")
_type_hints = cache(typing.get_type_hints)


def flag(default: Any = None, help: str = "", *, factory: Callable[[], Any] | None = None, **metadata: Any) -> Any:
    """Return a dataclass field that becomes a command-line flag.

    Args:
        default: Its value when it is not given.
        help: One line for `--help`.
        factory: Makes the default of a flag that takes several values.
        metadata: `required=True` refuses a command line without it; `rare=True` shows it among the last in `--help`;
            `choices` restricts the values to the names of an iterable, such as a `Registry`, or of what a function
            returns, read when the parser is built.

    Example:
        >>> @dataclasses.dataclass
        ... class Arguments:
        ...     batch_size: int = flag(64, "texts per batch")
        >>> (arguments,), _ = parse_flags([Arguments], ["--batch_size", "32"], "prog", "An example.")
        >>> arguments.batch_size
        32
    """
    metadata["help"] = help
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def as_flag_values(arguments: Any) -> None:
    """Replace the objects of a Python program by the text that a command line has in their place, as arguments need it.

    Args:
        arguments: A dataclass of flags, changed in place: paths, sizes and lists of sizes become text, and a single text
            for a flag that takes several becomes a list.

    Example:
        >>> @dataclasses.dataclass
        ... class Arguments:
        ...     sizes: str | None = flag(None, "sizes")
        ...     data: list[str] | None = flag(None, "files")
        ...     def __post_init__(self):
        ...         as_flag_values(self)
        >>> Arguments(["2:32", Size(6, 128)], "corpus.jsonl")
        Arguments(sizes='2:32,6:128', data=['corpus.jsonl'])
    """
    hints = _type_hints(arguments.__class__)
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if isinstance(value, list | tuple) and field.name in ("size", "sizes"):
            value = ",".join(map(str, value))
        elif isinstance(value, str | os.PathLike | list | tuple) and scalar_type(hints[field.name]) == (str, True):
            value = [_as_text(one) for one in ([value] if isinstance(value, str | os.PathLike) else value)]
        setattr(arguments, field.name, _as_text(value))


def _as_text(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, Size | Sizes) else value


@dataclasses.dataclass
class CommonArguments:
    """Flags of every command."""

    seed: int = flag(42, "seed of all random numbers")
    log_level: Literal["debug", "info", "warning", "error"] = flag("info", "lowest level logged to standard error")
    quiet: bool = flag(False, "print errors and results only")
    json: bool = flag(False, "end with one JSON object on standard output")


def flag_types(cls: type) -> dict[str, Any]:
    """Return the type of each flag of a dataclass.

    Args:
        cls: A dataclass whose fields were made by `flag`.

    Returns:
        Name → annotated type; for a flag with `choices` the Literal of its names.

    Example:
        >>> @dataclasses.dataclass
        ... class Arguments:
        ...     engine: str = flag("torch", "search engine", choices=("torch", "faiss"))
        >>> flag_types(Arguments)
        {'engine': typing.Literal['torch', 'faiss']}
    """
    hints = dict(_type_hints(cls))
    for field in dataclasses.fields(cls):
        choices = field.metadata.get("choices")
        if choices is not None:
            hints[field.name] = Literal[tuple(choices() if callable(choices) else choices)]
    return hints


def parser_for(
    classes: Sequence[type], prog: str, description: str, examples: Sequence[str] = (), notes: str = ""
) -> FlagParser:
    """Return an argparse parser with one flag per dataclass field, spelled with underscores.

    Values that are not on the command line are absent from the namespace. The first line of a class' docstring is the
    heading of its flags in `--help`, where required flags come first; flags with `rare=True` of all classes are together
    under a heading of their own. The parser raises UserError for a bad command line, where argparse would exit.

    Args:
        classes: Dataclasses whose fields were made by `flag`.
        prog: The command, as `starbucks search`.
        description: One sentence for `--help`.
        examples: Command lines for `--help`.
        notes: Text before the flags in `--help`.
    """
    parser = FlagParser(prog, description, examples, notes)
    sections: dict[str, list[tuple[dataclasses.Field, Any]]] = {}
    rare: list[tuple[dataclasses.Field, Any]] = []
    for cls in classes:
        title, hints = _title(cls), flag_types(cls)
        fields = [(field, hints[field.name]) for field in dataclasses.fields(cls) if field.init]
        rare += [(field, hint) for field, hint in fields if field.metadata.get("rare")]
        common = [(field, hint) for field, hint in fields if not field.metadata.get("rare")]
        sections[title] = sorted(common, key=partial(_need, cls))
    every_command = sections.pop(_title(CommonArguments), None)
    sections |= {RARE: rare} | ({} if every_command is None else {_title(CommonArguments): every_command})
    for title, flags in sections.items():
        group = parser.add_argument_group(title)
        for field, hint in flags:
            _add_flag(group, field, hint)
    group.add_argument("-h", "--help", action="help", help="show this help message and exit")
    return parser


def _need(cls: type, flag: tuple[dataclasses.Field, Any]) -> int:
    """Return the rank of a flag in its section: required ones, those of the class itself, inherited ones."""
    field, _ = flag
    return 0 if field.metadata.get("required") else 1 if field.name in cls.__annotations__ else 2


def _title(cls: type) -> str:
    return (cls.__doc__ or cls.__name__).splitlines()[0].rstrip(".")


def parse_flags(
    classes: Sequence[type],
    argv: Sequence[str],
    prog: str,
    description: str,
    examples: Sequence[str] = (),
    extra: bool = False,
) -> tuple[list[Any], list[str]]:
    """Build one instance of each dataclass from flags, over values from an optional leading .yaml or .json file.

    Args:
        classes: Dataclasses whose fields were made by `flag`.
        argv: The words of the command line.
        prog: The command, as `starbucks search`.
        description: One sentence for `--help`.
        examples: Command lines for `--help`.
        extra: Return words and keys that no dataclass has, instead of refusing them.

    Returns:
        The instances, and the words that no dataclass has.

    Raises:
        UserError: A flag is unknown, required and missing, or has a value of the wrong type.
    """
    parser = parser_for(classes, prog, description, examples)
    argv = replace_flags(prog.split()[-1], [with_underscores(word) for word in argv])
    values: dict[str, Any] = {}
    leftover: list[str] = []
    types_of = {name: hint for cls in classes for name, hint in flag_types(cls).items()}
    known = [field.name for cls in classes for field in dataclasses.fields(cls) if field.init]
    if argv and not argv[0].startswith("-"):
        path = argv.pop(0)
        for key, value in load_config(path).items():
            name = str(key).replace("-", "_")
            if name in known:
                values[name] = convert(f"{path}: {name}", value, types_of[name])
            elif not extra:
                raise UserError(f"{path}: unknown key {name!r}", _suggest(name, known, prog))
            elif value is not None:
                leftover += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    namespace, unknown = parser.parse_known_args(argv)
    if unknown and not extra:
        name = unknown[0].partition("=")[0]
        raise UserError(f"unknown argument {name}", _suggest(name, [f"--{flag}" for flag in known], prog))
    values.update(vars(namespace))
    return [build(cls, values, prog) for cls in classes], leftover + unknown


def build(cls: type[T], values: Mapping[str, Any], prog: str) -> T:
    """Return an instance of a dataclass of flags from those `values` that it has fields for.

    Args:
        cls: The dataclass.
        values: Values by flag name; other names are ignored, and flags without a value keep their defaults.
        prog: The command, for the hint of an error.

    Raises:
        UserError: A required flag is missing or empty, or a path does not exist.

    Example:
        >>> build(CommonArguments, {"seed": 7, "batch_size": 64}, "starbucks search")
        CommonArguments(seed=7, log_level='info', quiet=False, json=False)
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    for field in fields:
        if field.metadata.get("required") and values.get(field.name) in (None, "", []):
            raise UserError(f"--{field.name} is missing", f"see {prog} --help")
    given = {field.name: values[field.name] for field in fields if field.name in values}
    built = cls(**given)
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if name in CHECKS and isinstance(one, str):
                CHECKS[name](one, name)
    return built


def with_underscores(word: str) -> str:
    """Replace the dashes in the name of a flag by underscores: flags may be written with either.

    Example:
        >>> with_underscores("--kl-weight=1e-2"), with_underscores("my-model")
        ('--kl_weight=1e-2', 'my-model')
    """
    name, equals, value = word.partition("=")
    return name[:2] + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word


def _add_flag(group: argparse._ArgumentGroup, field: dataclasses.Field, hint: Any) -> None:
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    help_text = field.metadata.get("help", "")
    if default not in (None, dataclasses.MISSING, "", [], False):
        shown = "true" if default is True else " ".join(default) if isinstance(default, list) else default
        help_text += f" (default: {shown})"
    if field.metadata.get("required"):
        help_text += " (required)"
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text.replace("%", "%%")}
    scalar, is_list = scalar_type(hint)
    if scalar is bool:
        options.update(type=_boolean, nargs="?", const=True, metavar="true|false")
    elif typing.get_origin(scalar) is Literal:
        options["choices"] = typing.get_args(scalar)
    else:
        options.update(type=scalar, metavar=scalar.__name__.upper())
    if is_list:
        options.update(nargs="+", action="extend")  # --run a b and --run a --run b are the same
    action = group.add_argument(f"--{field.name}", **options)
    action.is_switch = scalar is bool and default is False  # type: ignore[attr-defined]


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _suggest(name: str, known: Iterable[str], prog: str) -> str:
    if hint := hint_for(prog.split()[-1], name):
        return hint
    return "".join(f"{near}, or " for near in difflib.get_close_matches(name, known, 1)) + f"see {prog} --help"
