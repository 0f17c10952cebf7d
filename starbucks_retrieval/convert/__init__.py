"""Convert a published checkpoint, pickled weights included, to a folder of safetensors without running any of its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.convert.api import convert

__all__ = ["ConvertArguments", "convert"]


@dataclass
class ConvertArguments:
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
    pooling: Literal["cls", "mean", "last"] | None = flag(
        None, "likewise its pooling (default: that of a sentence-transformers folder)"
    )
    normalize: bool | None = flag(None, "likewise: its embeddings are compared by cosine")
    query_prefix: str | None = flag(None, "likewise: the text before every query")
    passage_prefix: str | None = flag(None, "likewise: the text before every passage")
    query_max_len: int | None = flag(None, "likewise: tokens of a query at most")
    passage_max_len: int | None = flag(None, "likewise: tokens of a passage at most")
    append_eos_token: bool = flag(
        False,
        "let the tokenizer end every text with its end-of-sequence token, as Tevatron's flag does; for pooling last",
        rare=True,
    )
    override: bool = flag(False, "let these flags contradict the settings that the checkpoint stores", rare=True)
    overwrite_output_dir: bool = flag(False, "replace an earlier model in the output folder")


__getattr__, __dir__ = lazy_exports(__name__, {"convert": ".api"})
