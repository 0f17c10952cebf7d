"""What the tests of exporting share: models with settings, and exports read back."""

from __future__ import annotations

import dataclasses
import os
import re
import runpy
from pathlib import Path

import numpy as np
from conftest import save_model

from starbucks_retrieval import NestedEncoder, Size, Sizes
from starbucks_retrieval.export import ExportArguments, export

SIZE = Size(3, 12)


def some_texts() -> list[str]:
    """Seven texts of 1 to 70 words."""
    rng = np.random.default_rng(0)
    return [" ".join(f"w{k}" for k in rng.integers(0, 95, length)) for length in (1, 30, 4, 12, 70, 5, 18)]


def model_of(folder: Path, family: str = "bert", **settings) -> NestedEncoder:
    """A saved model of a family with settings of its own; its name is its folder."""
    encoder = NestedEncoder.from_pretrained(save_model(folder, family), device="cpu")
    settings = {"sizes": Sizes.parse("1:8,3:16,4:32"), "passage_max_len": 20, "query_max_len": 20} | settings
    encoder.config = dataclasses.replace(encoder.config, **settings)
    encoder.save_pretrained(folder)
    encoder.name = str(folder)
    return encoder


def run(encoder: NestedEncoder, output: Path, to: str, size: str | None = str(SIZE), **more) -> dict:
    """Export the folder of an encoder."""
    return export(ExportArguments(encoder.name, str(output), to, size, **more))


def exported(folder: Path) -> dict[str, bytes]:
    """Every file of an export but the card, which has the folder's own name in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "README.md"
    }


def run_card(folder: Path) -> dict:
    """Run the python lines of a card from beside its folder, as its reader would; what they defined."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code
    script = folder.with_name(f"{folder.name}_card.py")
    script.write_text(code[1])
    here = Path.cwd()
    os.chdir(folder.parent)
    try:
        return runpy.run_path(str(script))
    finally:
        os.chdir(here)
