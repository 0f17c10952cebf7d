"""Checks of paths, names and sizes on the command line that need no model, before torch is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import SIZE_ALIASES, Size


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
    is_path = text.startswith((".", "/", "~")) or text.count("/") > 1 or ("/" in text and path.parent.is_dir())
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
}


def check_flag(name: str, value: Any) -> None:
    """Check the value of a flag that was given.

    Args:
        name: The name of the flag; flags that are not in `CHECKS` are not checked.
        value: Its value, or a list of them.

    Raises:
        UserError: A value names a local path that does not exist, or is no size.
    """
    for one in value if isinstance(value, list) else [value]:
        if name in CHECKS and isinstance(one, str):
            CHECKS[name](one, name)
