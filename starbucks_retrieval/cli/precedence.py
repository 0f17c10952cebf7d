"""Flags of the stages that train, in layers: default < preset < file < flag, for ours and for transformers' alike.

A layer maps names to values. Values of our flags are typed; values of transformers' flags are command-line words, which
its own parser reads. `Default` in a layer resets a name to its default, whatever the layers below set.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from starbucks_retrieval.cli.command import quiet_unless_first, setup_logging
from starbucks_retrieval.cli.config import convert, load_config
from starbucks_retrieval.cli.flags import CommonArguments, build, flag_types, parser_for, with_underscores
from starbucks_retrieval.cli.tevatron import replace_flags
from starbucks_retrieval.cli.words import flag_chunks

T = TypeVar("T")


class Default:
    """The value that resets a name to its default."""


DEFAULT: Final = "default"  # the same on a command line or in a file
_DERIVED = "follows from other flags"

# Names of one quantity: a layer that sets one of them overrides the others in the layers below.
SAME = (
    ("warmup_steps", "warmup_ratio"),
    ("max_steps", "num_train_epochs"),
    ("bf16", "fp16"),
    ("kl_weight", "kl_divergence_weight"),
    ("fix_doc", "passage_layers", "passage_to_last_layer"),
    ("full_dim", "sub_layer_full_dim"),
    ("train_layers", "layer_list"),
    ("train_dims", "embedding_dim_list"),
)
# Other projects' names of flags of ours or of transformers', which take their values.
_ALIASES = ("warmup_ratio", "kl_divergence_weight", "passage_to_last_layer", "sub_layer_full_dim")
# A flag with one of these values is off, and does not override the other names of its quantity.
_OFF_VALUES = {
    "bf16": ("false", "no", "0", "f", "n"),
    "fp16": ("false", "no", "0", "f", "n"),
    "max_steps": ("-1", "0"),
}


@dataclass(frozen=True)
class ParsedTraining(Generic[T]):
    """The parsed command line of a stage that trains.

    Attributes:
        arguments: The stage's own flags.
        common: The flags of every command.
        rest: The words for transformers' TrainingArguments.
        sources: name → `preset NAME`, `file PATH` or `flag`; a name that is missing here has its default.
    """

    arguments: T
    common: CommonArguments
    rest: list[str]
    sources: dict[str, str]


def parse_training(
    cls: type[T],
    presets: Mapping[str, Mapping[str, Any]],
    argv: Sequence[str],
    prog: str,
    description: str,
    examples: Sequence[str] = (),
    notes: str = "",
) -> ParsedTraining[T]:
    """Parse an optional leading .yaml or .json file and flags, over the preset that either of them names.

    Logging is set up before the arguments are built, so that their messages are printed. Of several processes only the
    first logs.

    Args:
        cls: The dataclass of the stage's own flags.
        presets: Preset name → values by flag name.
        argv: The words of the command line.
        prog: The command, as `starbucks train`.
        description: One sentence for `--help`.
        examples: Command lines for `--help`.
        notes: Text before the flags in `--help`.

    Raises:
        UserError: A value has the wrong type, or a required flag is missing.
    """
    parser = parser_for([cls, CommonArguments], prog, description, examples, notes)
    hints = flag_types(cls) | flag_types(CommonArguments)
    words = replace_flags(prog.split()[-1], [with_underscores(word) for word in argv])
    layers: list[tuple[str, dict[str, Any]]] = []
    if words and not words[0].startswith("-"):
        path = words.pop(0)
        layers.append((f"file {path}", _layer_of(load_config(path), hints, _resettable(presets))))
    words, reset = _take_resets(words, _resettable(presets))
    namespace, unknown = parser.parse_known_args(words)
    layers.append(("flag", dict.fromkeys(reset, Default) | vars(namespace) | _by_name(unknown)))
    preset = resolve(layers).get("preset", (None, ""))[0]
    if preset in presets:
        layers.insert(0, (f"preset {preset}", _layer_of(presets[preset], hints, frozenset())))
    resolved = resolve(layers)
    values = {name: value for name, (value, _) in resolved.items() if name in hints}
    rest = [word for name, (value, _) in resolved.items() if name not in hints for word in value]
    common = quiet_unless_first(build(CommonArguments, values, prog))
    setup_logging(common)
    sources = {name: source for name, (_, source) in resolved.items()}
    return ParsedTraining(build(cls, values, prog), common, rest, sources)


def resolve(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, tuple[Any, str]]:
    """Return the value and the source of every name.

    Args:
        layers: (source, values by name) pairs; each overrides those before it.
    """
    resolved: dict[str, tuple[Any, str]] = {}
    for source, values in layers:
        for name, value in values.items():
            for other in (name, *(() if _is_off(name, value) else same_as(name))):
                if other == name or other not in values:
                    resolved.pop(other, None)
        resolved |= {name: (value, source) for name, value in values.items() if value is not Default}
    return resolved


def same_as(name: str) -> tuple[str, ...]:
    """Return the other names of the quantity that `name` sets.

    Args:
        name: A flag without dashes, such as `warmup_steps`.

    Returns:
        The others, such as `warmup_ratio`; none for a flag whose quantity has one name.
    """
    return tuple(other for names in SAME if name in names for other in names if other != name)


def flag_sources(
    parsed: ParsedTraining[Any], settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, tuple[Any, str]]:
    """Return the value and the source of every flag of a stage that trains.

    Args:
        parsed: The command line.
        settings: Values of transformers' TrainingArguments, by name.
        defaults: Their defaults.
    """
    rows: dict[str, tuple[Any, str]] = {}
    for instance in (parsed.arguments, parsed.common):
        for field in dataclasses.fields(instance):
            value = getattr(instance, field.name)
            rows[field.name] = (value, _source(field.name, value, field.default, parsed.sources))
    for name, value in settings.items():
        if name not in rows:
            source = _source(name, value, defaults.get(name), parsed.sources)
            # transformers itself changes some defaults.
            rows[name] = (value, DEFAULT if source == _DERIVED else source)
    return rows


def _source(name: str, value: Any, default: Any, sources: Mapping[str, str]) -> str:
    if name in sources:
        return sources[name]
    by = next((other for other in same_as(name) if other in sources), None)
    if by and (by in _ALIASES or value != default):
        return f"{sources[by]}, as {by}"
    return DEFAULT if value == default else _DERIVED


def _is_off(name: str, value: Any) -> bool:
    if name not in _OFF_VALUES:
        return False
    # Values of transformers' flags are words: `--bf16 false` or `--bf16=false`.
    return value is Default or " ".join(value).replace("=", " ").lower().partition(" ")[2] in _OFF_VALUES[name]


def _resettable(presets: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return the names for which the word `default` means a reset: those that a preset sets."""
    names = {"preset", *(name for preset in presets.values() for name in preset)}
    return frozenset(names | {other for name in names for other in same_as(name)})


def _layer_of(values: Mapping[Any, Any], hints: Mapping[str, Any], resettable: frozenset[str]) -> dict[str, Any]:
    """Return the layer of a file or a preset; null resets a name, and so does `default` for names in `resettable`."""
    layer: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if value is None or (value == DEFAULT and name in resettable):
            layer[name] = Default
        elif name in hints:
            layer[name] = convert(name, value, hints[name])
        else:
            items = value if isinstance(value, list) else [value]
            layer[name] = [f"--{name}", *(json.dumps(i) if isinstance(i, dict) else str(i) for i in items)]
    return layer


def _name(chunk: Sequence[str]) -> str:
    return chunk[0].removeprefix("--").partition("=")[0]


def _take_resets(words: Sequence[str], resettable: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return the words without `--name default` and earlier values of that name; and the names that it resets."""
    kept: list[list[str]] = []
    reset: dict[str, None] = {}
    for chunk in flag_chunks(words):
        name = _name(chunk)
        reset.pop(name, None)
        if name in resettable and chunk in ([f"--{name}", DEFAULT], [f"--{name}={DEFAULT}"]):
            kept = [other for other in kept if _name(other) != name]
            reset[name] = None
        else:
            kept.append(chunk)
    return [word for chunk in kept for word in chunk], list(reset)


def _by_name(words: Sequence[str]) -> dict[str, list[str]]:
    """Group words that our parser does not know by the flag that they belong to."""
    groups: dict[str, list[str]] = {}
    for chunk in flag_chunks(words):
        groups.setdefault(_name(chunk), []).extend(chunk)
    return groups
