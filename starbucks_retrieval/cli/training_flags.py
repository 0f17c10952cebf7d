"""The flags of transformers' TrainingArguments, without importing it."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

from starbucks_retrieval.cli.words import flag_chunks
from starbucks_retrieval.errors import UserError


def training_flags() -> list[str]:
    """Return the field names of transformers' TrainingArguments from its source; importing it takes seconds and torch.

    Returns:
        The names; an empty list where transformers is missing.
    """
    spec = importlib.util.find_spec("transformers")
    source = Path(spec.origin).with_name("training_args.py") if spec and spec.origin else None
    if source is None or not source.is_file():
        return []
    classes = (node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in classes if node.name == "TrainingArguments"), [])
    fields = (line.target for line in body if isinstance(line, ast.AnnAssign))
    return [target.id for target in fields if isinstance(target, ast.Name) and not target.id.startswith("_")]


def check_training_flags(words: Sequence[str], own: Iterable[str]) -> None:
    """Check the words of a command line that are flags of TrainingArguments, as far as their names tell.

    Args:
        words: The words that the stage itself does not know.
        own: Names of the flags of the stage, for the suggestion.

    Raises:
        UserError: A name is unknown, and the hint has the nearest one; or `--output_dir` is missing.
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
    if "output_dir" not in given:
        raise UserError("--output_dir is missing", "name the folder for the model")
