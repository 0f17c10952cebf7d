"""What all doors share: flags from dataclasses and files, logging, progress, summaries, exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import errno
import json
import logging
import os
import re
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from starbucks_retrieval.errors import UserError

T = TypeVar("T")
log = logging.getLogger("starbucks_retrieval")


def flag(default: Any = None, help: str = "", *, factory: Callable[[], Any] | None = None, **metadata: Any) -> Any:
    """Return a dataclass field that becomes a command-line flag.

    Args:
        default: Its value when it is not given.
        help: One line for `--help`.
        factory: Makes the default of a flag that takes several values.
        metadata: `required=True` refuses a command line without it; `choices` restricts the values to the names of an
            iterable, such as a `Registry`, or of what a function returns, read when the parser is built.
    """
    metadata["help"] = help
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass
class CommonArguments:
    """Flags of every door."""

    seed: int = flag(42, "seed of everything random")
    log_level: Literal["debug", "info", "warning", "error"] = flag("info", "what is logged to standard error")
    quiet: bool = flag(False, "print errors and results only")
    json: bool = flag(False, "end with one JSON object on standard output")


def flag_types(cls: type) -> dict[str, Any]:
    """Return the type of each flag of a dataclass, by name; for a flag with `choices` the Literal of its names."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        choices = field.metadata.get("choices")
        if choices is not None:
            hints[field.name] = Literal[tuple(choices() if callable(choices) else choices)]
    return hints


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise UserError(message, f"see {self.prog} --help")


def parser_for(classes: Sequence[type], prog: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """An argparse parser with one flag per dataclass field, spelled with underscores."""
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [flags]",
        description=description,
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )
    for cls in classes:
        group = parser.add_argument_group((cls.__doc__ or cls.__name__).splitlines()[0].rstrip("."))
        hints = flag_types(cls)
        for field in dataclasses.fields(cls):
            if field.init:
                _add_flag(group, field, hints[field.name])
    return parser


def _add_flag(group: argparse._ArgumentGroup, field: dataclasses.Field, hint: Any) -> None:
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    help_text = field.metadata.get("help", "")
    if default not in (None, dataclasses.MISSING, "", [], False):
        help_text += f" (default: {default})"
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text.replace("%", "%%")}
    kind, many = _kind(hint)
    if kind is bool:
        options.update(type=_boolean, nargs="?", const=True, metavar="true|false")
    elif typing.get_origin(kind) is Literal:
        options["choices"] = typing.get_args(kind)
    else:
        options.update(type=kind, metavar=kind.__name__.upper())
    if many:
        options.update(nargs="+", action="extend")  # --run a b and --run a --run b are the same
    group.add_argument(f"--{field.name}", **options)


def _kind(hint: Any) -> tuple[Any, bool]:
    """The scalar type behind a field's annotation, and whether the flag takes several."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is list:
        return typing.get_args(hint)[0], True
    return hint, False


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _hint(name: str, known: Iterable[str], prog: str) -> str:
    return "".join(f"{near}, or " for near in difflib.get_close_matches(name, known, 1)) + f"see {prog} --help"


def parse_flags(
    classes: Sequence[type], argv: Sequence[str], prog: str, description: str, epilog: str = "", extra: bool = False
) -> tuple[list[Any], list[str]]:
    """Build one instance of each dataclass from flags, over values from an optional leading .yaml or .json file.

    Returns the instances and, with `extra`, the words that no dataclass knows; without it they are a UserError.
    """
    parser = parser_for(classes, prog, description, epilog)
    argv = [with_underscores(word) for word in argv]
    values: dict[str, Any] = {}
    leftover: list[str] = []
    known = {field.name: cls for cls in classes for field in dataclasses.fields(cls) if field.init}
    if argv and not argv[0].startswith("-"):
        path = argv.pop(0)
        for key, value in load_config(path).items():
            name = str(key).replace("-", "_")
            if name in known:
                hint = flag_types(known[name])[name]
                values[name] = from_config(f"{path}: {name}", value, hint)
            elif extra and value is None:
                continue
            elif extra:
                leftover += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
            else:
                raise UserError(f"{path}: unknown key {name!r}", _hint(name, known, prog))
    namespace, unknown = parser.parse_known_args(argv)
    if unknown and not extra:
        name = unknown[0].partition("=")[0]
        raise UserError(f"unknown argument {name}", _hint(name, [f"--{flag}" for flag in known], prog))
    values.update(vars(namespace))
    return [build(cls, values, prog) for cls in classes], leftover + unknown


def build(cls: type[T], values: Mapping[str, Any], prog: str) -> T:
    """One instance of a dataclass of flags from those of `values` that are its own; a required one must be there."""
    own = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.init and field.name in values}  # type: ignore[arg-type]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.init and field.metadata.get("required") and own.get(field.name) in (None, "", []):
            raise UserError(f"--{field.name} is missing", f"see {prog} --help")
    return cls(**own)


def with_underscores(word: str) -> str:
    """`--kl-weight=1` as `--kl_weight=1`: flags may be written with dashes."""
    name, equals, value = word.partition("=")
    return name[:2] + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word


def load_config(path: str) -> dict[str, Any]:
    """Read a .yaml or .json mapping of flag names to values."""
    if not path.endswith((".yaml", ".yml", ".json")):
        raise UserError(
            f"unexpected argument {path!r}", "flags start with --, a configuration file ends in .yaml or .json"
        )
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's safe loader, but 2:32 is text: YAML 1.1 takes it for a number to base 60."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, re.compile(f"(?!.*:)(?:{form.pattern})", re.X) if tag.endswith(("int", "float")) else form)
                for tag, form in forms]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }  # fmt: skip
    try:
        loaded = yaml.load(read_text(path), Loader)  # JSON is YAML
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}", "mend the file's syntax") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} does not hold a mapping", "write one 'flag: value' per line")
    return loaded


def from_config(name: str, value: Any, hint: Any) -> Any:
    """A value of a configuration file as its flag's type. Raises UserError where it is of another."""
    kind, many = _kind(hint)
    items = value if isinstance(value, list) else [value]
    if not many and isinstance(value, list):
        raise UserError(f"{name} takes one value, not a list", "mend the configuration file")
    converted: list[Any] = []
    for item in items:
        if item is None:
            converted.append(None)
        elif typing.get_origin(kind) is Literal:
            if item not in typing.get_args(kind):
                choices = ", ".join(map(str, typing.get_args(kind)))
                raise UserError(f"{name}: {item!r} is none of {choices}", "mend the configuration file")
            converted.append(item)
        elif kind is bool and not isinstance(item, bool):
            raise UserError(f"{name}: {item!r} is neither true nor false", "mend the configuration file")
        else:
            try:
                converted.append(kind(item))
            except (TypeError, ValueError):
                raise UserError(
                    f"{name}: {item!r} is not of type {kind.__name__}", "mend the configuration file"
                ) from None
    return converted if many else converted[0]


def read_text(path: str | Path) -> str:
    """The text of a small UTF-8 file, or a UserError that names it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file is needed", "check the path") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start})", "convert it: iconv -f latin1 -t utf-8") from None


def quiet_unless_first(common: CommonArguments) -> CommonArguments:
    """`common`, made silent in every process but the first of those that a launcher started."""
    if os.environ.get("RANK", "0") == "0":
        return common
    return dataclasses.replace(common, quiet=True, json=False)


def setup_logging(common: CommonArguments) -> None:
    """Send this package's log to standard error, one plain line per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.ERROR if common.quiet else common.log_level.upper())


def finish(common: CommonArguments, summary: str, figures: dict[str, Any]) -> None:
    """End a door: the human summary on standard error, the figures as one JSON line on standard output if asked."""
    if not common.quiet:
        print(summary, file=sys.stderr)
    if common.json:
        print(json.dumps(figures, ensure_ascii=False), flush=True)


def progress(items: Iterable[T], total: int | None, units: str, label: str, every: float = 30.0) -> Iterator[T]:
    """Iterate with a bar on a terminal, and with a log line every half minute when standard error is not one.

    `units` is the plural of what is counted.
    """
    if log.level > logging.INFO:
        yield from items
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, total=total, unit=f" {units}", desc=label, dynamic_ncols=True)
        return
    start = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= every:
            last = now
            left = f", {(now - start) / done * (total - done):.0f} s left" if total else ""
            of = f" of {total}" if total else ""
            log.info("%s: %d%s %s, %.1f/s%s", label, done, of, units, done / (now - start), left)


def run_command(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Call a door's main and turn what escapes into an exit status: 0 done, 2 user error, 130 interrupted."""
    try:
        main(sys.argv[1:] if argv is None else argv)
        return 0
    except UserError as error:
        return _complain(error.what, error.hint)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        # The disk and its permissions are the user's world, not a bug of ours.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _complain(
                f"no space left on the disk for {error.filename or 'the output'}",
                "free some space and run the same command again; finished parts are kept",
            )
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            return _complain(
                f"{error.filename or 'a file or folder'} may not be written or read",
                "check its permissions, or choose another folder",
            )
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ESTALE, errno.EMFILE) and error.filename:
            return _complain(f"{error.filename}: {error.strerror}", "check the path and the file system it lies on")
        raise


def _complain(what: str, hint: str) -> int:
    print(f"error: {what}", file=sys.stderr)
    if hint:
        print(f"  try: {hint}", file=sys.stderr)
    return 2
