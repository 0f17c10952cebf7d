"""Merge LoRA adapters, as peft and Tevatron save them, into a model."""

from __future__ import annotations

import importlib.util
from typing import Any

from starbucks_retrieval.convert.weights import read_weights
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.config import model_file
from starbucks_retrieval.models.damage import explain_damage


def merge_adapters(model: Any, name_or_path: str) -> Any:
    """Return a model with adapters merged into its weights.

    Args:
        model: The transformers model that the adapters were trained on.
        name_or_path: A folder or hub name with adapter_config.json, and adapter_model.safetensors or adapter_model.bin.

    Raises:
        UserError: peft is not installed, the adapters cannot be read, or belong to another model.
    """
    if not importlib.util.find_spec("peft"):
        raise UserError("--lora_name_or_path needs peft", "pip install 'starbucks-retrieval[lora]'")
    from peft import PeftConfig, PeftModel, set_peft_model_state_dict

    path = model_file(name_or_path, "adapter_config.json")
    if path is None:
        raise UserError(f"{name_or_path} has no adapter_config.json", "name the folder that training with --lora wrote")
    weights, _ = read_weights(name_or_path, stem="adapter_model")
    belongs = "name the model that the adapters were trained on with --model_name_or_path"
    with explain_damage(path, belongs):  # peft checks none of the values
        try:
            config = PeftConfig.from_pretrained(name_or_path)
            config.inference_mode = True
            adapted = PeftModel(model, config)
            result: Any = set_peft_model_state_dict(adapted, weights)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            line = " ".join(str(error).split())
            raise UserError(f"cannot add the adapters of {name_or_path}: {line[:200]}", belongs) from None
        lacking = [name for name in result.missing_keys if "lora_" in name]
        if result.unexpected_keys or lacking:
            example = (result.unexpected_keys or lacking)[0]
            raise UserError(f"the adapters of {name_or_path} do not fit the model, for example {example}", belongs)
        return adapted.merge_and_unload()
