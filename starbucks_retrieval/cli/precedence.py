"""Flags of the stages that train, in layers: default < preset < file < flag, for ours and for transformers' alike.

A layer gives values by name. Ours are typed values; those of transformers are the words of a command line, which its own
parser reads. `Default` in a layer takes a name back to its default, whatever the layers below say.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from starbucks_retrieval import cli
from starbucks_retrieval.cli import CommonArguments

T = TypeVar("T")


class Default:
    """The value that takes a name back to its default."""


DEFAULT: Final = "default"  # how a command line or a file writes it
_FOLLOWS = "follows from other flags"

# Names of one quantity: one that a layer sets takes the place of the others in the layers below.
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
# These say nothing about the others when they are off.
_SWITCHED_OFF = {
    "bf16": ("false", "no", "0", "f", "n"),
    "fp16": ("false", "no", "0", "f", "n"),
    "max_steps": ("-1", "0"),
}


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """A command line of a stage that trains: its flags, those of every stage, and the words left for transformers.

    sources: name → `preset NAME`, `file PATH` or `flag`; a name that is missing there has its default.
    """

    arguments: T
    common: CommonArguments
    rest: list[str]
    sources: dict[str, str]


def parse_training(
    cls: type[T],
    recipes: Mapping[str, Mapping[str, Any]],
    argv: Sequence[str],
    prog: str,
    description: str,
    epilog: str,
) -> Parsed[T]:
    """Parse an optional leading .yaml or .json file and flags, over the preset that either of them names.

    Logging is set up before the arguments are built, so what they have to say is printed; of several processes the first
    alone logs. Raises UserError for a value of the wrong type and for a required flag that is missing.
    """
    parser = cli.parser_for([cls, CommonArguments], prog, description, epilog)
    hints = cli.flag_types(cls) | cli.flag_types(CommonArguments)
    words = [cli.with_underscores(word) for word in argv]
    layers: list[tuple[str, dict[str, Any]]] = []
    if words and not words[0].startswith("-"):
        path = words.pop(0)
        layers.append((f"file {path}", _of_mapping(cli.load_config(path), hints, _resettable(recipes))))
    words, reset = _take_resets(words, _resettable(recipes))
    namespace, unknown = parser.parse_known_args(words)
    layers.append(("flag", dict.fromkeys(reset, Default) | vars(namespace) | _by_name(unknown)))
    named = resolve(layers).get("preset", (None, ""))[0]
    if named in recipes:
        layers.insert(0, (f"preset {named}", _of_mapping(recipes[named], hints, frozenset())))
    found = resolve(layers)
    values = {name: value for name, (value, _) in found.items() if name in hints}
    rest = [word for name, (value, _) in found.items() if name not in hints for word in value]
    common = cli.quiet_unless_first(cli.build(CommonArguments, values, prog))
    cli.setup_logging(common)
    return Parsed(cli.build(cls, values, prog), common, rest, {name: source for name, (_, source) in found.items()})


def resolve(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, tuple[Any, str]]:
    """Name → its value and source, from layers of which each goes over those before it."""
    found: dict[str, tuple[Any, str]] = {}
    for source, values in layers:
        for name, value in values.items():
            for other in (name, *(() if _is_off(name, value) else same_as(name))):
                if other == name or other not in values:
                    found.pop(other, None)
        found |= {name: (value, source) for name, value in values.items() if value is not Default}
    return found


def same_as(name: str) -> tuple[str, ...]:
    """The other names of the quantity that `name` sets."""
    return tuple(other for names in SAME if name in names for other in names if other != name)


def _is_off(name: str, value: Any) -> bool:
    if name not in _SWITCHED_OFF:
        return False
    # A value of transformers is its words: `--bf16 false` or `--bf16=false`.
    return value is Default or " ".join(value).replace("=", " ").lower().partition(" ")[2] in _SWITCHED_OFF[name]


def _resettable(recipes: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """The names that may be given the word `default`: those that a preset sets, none of which can mean it otherwise."""
    named = {"preset", *(name for recipe in recipes.values() for name in recipe)}
    return frozenset(named | {other for name in named for other in same_as(name)})


def _of_mapping(values: Mapping[Any, Any], hints: Mapping[str, Any], resettable: frozenset[str]) -> dict[str, Any]:
    """The layer of a file or a preset; null in it, and `default` where that can be meant, is the default."""
    layer: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if value is None or (value == DEFAULT and name in resettable):
            layer[name] = Default
        elif name in hints:
            layer[name] = cli.from_config(name, value, hints[name])
        else:
            items = value if isinstance(value, list) else [value]
            layer[name] = [f"--{name}", *(json.dumps(i) if isinstance(i, dict) else str(i) for i in items)]
    return layer


def _chunks(words: Sequence[str]) -> list[list[str]]:
    """A command line cut before every flag."""
    chunks: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not chunks:
            chunks.append([])
        chunks[-1].append(word)
    return chunks


def _name(chunk: Sequence[str]) -> str:
    return chunk[0].removeprefix("--").partition("=")[0]


def _take_resets(words: Sequence[str], resettable: frozenset[str]) -> tuple[list[str], list[str]]:
    """The words without `--name default` and what stands before it for that name; and the names that end so."""
    kept: list[list[str]] = []
    reset: dict[str, None] = {}
    for chunk in _chunks(words):
        name = _name(chunk)
        reset.pop(name, None)
        if name in resettable and chunk in ([f"--{name}", DEFAULT], [f"--{name}={DEFAULT}"]):
            kept = [other for other in kept if _name(other) != name]
            reset[name] = None
        else:
            kept.append(chunk)
    return [word for chunk in kept for word in chunk], list(reset)


def _by_name(words: Sequence[str]) -> dict[str, list[str]]:
    """Words that our parser does not know, by the flag that they belong to."""
    found: dict[str, list[str]] = {}
    for chunk in _chunks(words):
        found.setdefault(_name(chunk), []).extend(chunk)
    return found


def configuration(
    parsed: Parsed[Any], settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, tuple[Any, str]]:
    """Name → value and source of every flag of the stage, and of `settings`, those of transformers with `defaults`."""
    found: dict[str, tuple[Any, str]] = {}
    for instance in (parsed.arguments, parsed.common):
        for field in dataclasses.fields(instance):
            value = getattr(instance, field.name)
            found[field.name] = (value, _source(field.name, value, field.default, parsed.sources))
    for name, value in settings.items():
        if name not in found:
            source = _source(name, value, defaults.get(name), parsed.sources)
            # transformers itself makes other values of some defaults.
            found[name] = (value, DEFAULT if source == _FOLLOWS else source)
    return found


def _source(name: str, value: Any, default: Any, sources: Mapping[str, str]) -> str:
    if name in sources:
        return sources[name]
    by = next((other for other in same_as(name) if other in sources), None)
    if by and (by in _ALIASES or value != default):
        return f"{sources[by]}, as {by}"
    return DEFAULT if value == default else _FOLLOWS
