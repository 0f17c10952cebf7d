"""Convert a published checkpoint, pickled weights included, to a folder of safetensors without running any of its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starbucks_retrieval.cli import flag
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.models.config import SettingFlags

if TYPE_CHECKING:
    from starbucks_retrieval.convert.api import convert

__all__ = ["ConvertArguments", "convert"]


@dataclass
class ConvertArguments(SettingFlags):
    """Converting."""

    model_name_or_path: str = flag(
        "", "checkpoint: a folder or a hub name, with pytorch_model.bin or safetensors", required=True
    )
    output_dir: str = flag("", "folder to write, atomically", required=True)
    lora_name_or_path: str | None = flag(
        None, "adapters to merge into the weights: a folder with adapter_config.json, as Tevatron saves it"
    )
    sizes: str | None = flag(
        None, "sizes that the model was trained for, such as 2:32,12:768; starbucks.json stores them"
    )
    append_eos_token: bool = flag(
        False,
        "let the tokenizer end every text with its end-of-sequence token, as Tevatron's flag does; for pooling last",
        rare=True,
    )
    overwrite_output_dir: bool = flag(False, "replace an earlier model in the output folder")


__getattr__, __dir__ = lazy_exports(__name__, {"convert": ".api"})
