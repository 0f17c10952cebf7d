"""Checks of flags, paths, names and sizes that need no model, before torch and transformers are imported."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.words import flag_chunks
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.sizes import SIZE_ALIASES, Size, check_size

# The lines about flags that a stage needs.
NO_OUTPUT = ("--output_dir is missing", "name the folder for the model")
NO_END = ("a stream of text has no end", "give the number of steps with --max_steps")
# The types whose tensors hold data; torch knows more.
_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla", "mtia", "privateuseone")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def check_model(name: str | Path, flag: str = "model_name_or_path") -> None:
    """Raise UserError for a model that can only be a local folder, and is none.

    Args:
        name: A folder or hub name.
        flag: The flag that names it, for the hint.

    Example:
        >>> check_model("sentence-transformers/all-MiniLM-L6-v2")
        >>> check_model("./no-such-model")
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: no such model folder: ./no-such-model
          check --model_name_or_path
    """
    text, path = str(name), Path(name)
    # A name on the hub has one slash at most, and its first part is not a folder that exists here.
    on_hub = _HUB_NAME.fullmatch(text) and not text.startswith(".")
    is_path = not on_hub or ("/" in text and path.parent.is_dir())
    if text and is_path and not path.exists():
        raise UserError(f"no such model folder: {text}", f"check --{flag}")


def check_collection(name: str, flag: str = "") -> None:
    """Raise UserError for a collection that can only be a local file or folder, and is none.

    Args:
        name: What `data.open_corpus` takes, or a data set of `starbucks train`: with `@weight`, or as a JSON mapping.
        flag: The flag that names it.
    """
    from starbucks_retrieval.data.sources import find_ir, find_path

    collection, at, weight = name.rpartition("@")
    if Path(name).exists() or not (at and (weight.replace(".", "", 1).isdecimal() or Path(collection).exists())):
        collection = name
    if not collection.lstrip().startswith("{") and find_ir(collection, None) is None:
        find_path(collection)


def check_sizes(text: str, flag: str = "sizes") -> None:
    """Raise UserError for text that is no list of sizes and size aliases.

    Args:
        text: Sizes such as `2:32,4:64`, size aliases, or `all`.
        flag: The flag that names them.
    """
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word.lower() not in ("all", *SIZE_ALIASES):
            Size.parse(word)


def check_depth(model: str | Path, sizes: str | None) -> None:
    """Raise UserError for sizes that are deeper than a local model, as its config.json tells.

    Args:
        model: A model folder; a hub name is not checked, nor is an architecture that names its depth otherwise.
        sizes: Sizes and size aliases; None: no sizes.
    """
    path, settings = Path(model) / "config.json", Path(model) / "starbucks.json"
    depth = read_json(path).get("num_hidden_layers") if path.is_file() else None
    if not isinstance(depth, int):
        return
    try:
        for word in (sizes or "").split(","):
            if ":" in word:
                check_size(Size.parse(word.strip()), depth, sys.maxsize, layer_0=True)
    except UserError as error:
        stored = read_json(settings).get("sizes") if settings.is_file() else None
        raise UserError(error.what, f"{error.hint}; sizes of the model: {stored}" if stored else error.hint) from None


def check_device(name: str, flag: str = "device") -> None:
    """Raise UserError for a name that no device can have, without importing torch.

    Args:
        name: `cpu`, `cuda`, `cuda:1`, `mps` ….
        flag: The flag that names it.

    Example:
        >>> check_device("cuda:1")
        >>> check_device("gpu")
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: no device gpu: the types are cpu, cuda, mps, xpu, hpu, npu, xla, mtia, privateuseone
          say --device cpu
    """
    kind, colon, number = name.partition(":")
    if kind not in _DEVICES or (colon and not (number.isascii() and number.isdigit())):
        raise UserError(f"no device {name}: the types are {', '.join(_DEVICES)}", "say --device cpu")


def check_least(arguments: Any, *names: str, least: int = 1, hint: str = "leave it out, or raise it") -> None:
    """Raise UserError for a flag of `arguments` whose value is below `least`; None is no value.

    Example:
        >>> from starbucks_retrieval.cli import CommonArguments
        >>> check_least(CommonArguments(seed=0), "seed")
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: --seed 0 is below 1
          leave it out, or raise it
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise UserError(f"--{name} {value} is below {least}", hint)


# By the name of the flag, which means the same in every stage.
CHECKS: Mapping[str, Callable[[str, str], None]] = {
    **dict.fromkeys(
        (
            *("model_name_or_path", "lora_name_or_path", "teacher_name_or_path"),
            *("teacher_model_name_or_path", "guide_model_name_or_path"),
        ),
        check_model,
    ),
    **dict.fromkeys(
        ("dataset_path", "corpus_path", "query_path", "calibration_path", "eval_dataset_path"), check_collection
    ),
    **dict.fromkeys(("sizes", "size", "query_size", "teacher_size"), check_sizes),
    "device": check_device,
}


@cache
def training_flags() -> tuple[str, ...]:
    """Return the field names of transformers' TrainingArguments from its source; importing it takes seconds and torch.

    Returns:
        The names; none where transformers is missing.
    """
    spec = importlib.util.find_spec("transformers")
    source = Path(spec.origin).with_name("training_args.py") if spec and spec.origin else None
    if source is None or not source.is_file():
        return ()
    classes = (node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in classes if node.name == "TrainingArguments"), [])
    fields = (line.target for line in body if isinstance(line, ast.AnnAssign))
    return tuple(target.id for target in fields if isinstance(target, ast.Name) and not target.id.startswith("_"))


def check_training_flags(words: Sequence[str], own: Iterable[str], required: Mapping[str, tuple[str, str]]) -> None:
    """Check the words of a command line that are flags of TrainingArguments, as far as their names tell.

    Args:
        words: The words that the stage itself does not know.
        own: Names of the flags of the stage, for the suggestion.
        required: {name of a flag that must be given: what is wrong without it, and the remedy}.

    Raises:
        UserError: A name is unknown, and the hint has the nearest one; or a required flag is missing.
    """
    given = [chunk[0][2:].partition("=")[0] for chunk in flag_chunks(words) if chunk[0].startswith("--")]
    known = training_flags()
    for name in given:
        # A flag that is on by default also has a name that turns it off.
        if known and name not in known and name.removeprefix("no_") not in known:
            near = "".join(f"--{one}, or " for one in difflib.get_close_matches(name, [*own, *known], 1))
            raise UserError(
                f"unknown argument --{name}", f"{near}see --help, and transformers' TrainingArguments for its flags"
            )
    for name, lines in required.items():
        if name not in given:
            raise UserError(*lines)
