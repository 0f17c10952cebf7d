"""What a model was made from, as a model card may tell it: by a name that others can find."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

# Where huggingface_hub keeps what it has downloaded.
_CACHED = re.compile(r"models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+$")
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*$", re.DOTALL | re.MULTILINE)


def base_model(name_or_path: str) -> dict[str, str | list[str]]:
    """The entry `base_model` of a card's front matter; none where no public name is known.

    A hub name is one, and so is that of a folder in the hub's cache. Any other folder has the base that its own card
    records: its own name tells nobody anything, or names a stranger's model.
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        return {"base_model": name_or_path}
    if cached := _CACHED.search(str(folder.absolute())):
        return {"base_model": cached[1].replace("--", "/")}
    found = _recorded(folder / "README.md")
    return {"base_model": found} if found else {}


def told_base(name_or_path: str) -> str:
    """The same in a sentence, which may name the folder."""
    folder = Path(name_or_path)
    known = base_model(name_or_path).get("base_model")
    if not folder.is_dir() or _CACHED.search(str(folder.absolute())):
        return f"`{known}`"
    base = known if isinstance(known, str) else ", ".join(known or ())
    return f"a local folder, `{folder.resolve().name}`" + (f", which was made from `{base}`" if base else "")


def _recorded(card: Path) -> str | list[str] | None:
    try:
        front = _FRONT_MATTER.match(card.read_text(encoding="utf-8"))
        content = yaml.safe_load(front[1]) if front else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    found = content.get("base_model") if isinstance(content, dict) else None
    names = found if isinstance(found, list) else [found]
    return found if names and all(isinstance(name, str) and _HUB_NAME.fullmatch(name) for name in names) else None
