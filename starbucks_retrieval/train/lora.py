"""Low-rank adapters through peft: put into the backbone for training, merged in what is saved."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import umask_permissions

FOLDER = "adapter"
_NAME = "default"


def add_lora(backbone: nn.Module, rank: int, alpha: int, dropout: float, targets: str) -> None:
    """Freeze a backbone and put trainable adapters into it, in place; its class and the paths to its layers stay.

    Raises UserError without peft and for names that no module has.
    """
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    modules: Any = targets if targets == "all-linear" else targets.split(",")
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=modules)
    try:
        inject_adapter_in_model(config, backbone, adapter_name=_NAME)
    except ValueError as error:
        raise UserError(f"--lora_target_modules {targets}: {error}", "name linear modules of the backbone") from None
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_("lora_" in name)


def require_peft() -> None:
    """Raise UserError where peft is not installed."""
    if not importlib.util.find_spec("peft"):
        raise UserError("--lora needs peft", "pip install 'starbucks-retrieval[lora]'")


def has_lora(backbone: nn.Module) -> bool:
    """Whether adapters were put into a backbone."""
    return any("lora_" in name for name, _ in backbone.named_parameters())


def merged(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """A backbone's weights with adapters as plain ones: W + scale · B A in place of W, A and B."""
    plain = {name.replace(".base_layer.", "."): weight for name, weight in state.items() if ".lora_" not in name}
    for name, weight in state.items():
        if ".lora_A." in name:
            target = name.replace(f".lora_A.{_NAME}", "")
            up = state[name.replace(".lora_A.", ".lora_B.")]
            delta = scale * (up.float() @ weight.float())
            plain[target] = plain[target] + delta.to(plain[target])
    return plain


def save_adapter(state: dict[str, Tensor], folder: Path) -> None:
    """Write the adapters alone, for resuming: a merged weight does not tell its parts."""
    from safetensors.torch import save_file

    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    found = {name: weight.contiguous().cpu() for name, weight in state.items() if ".lora_" in name}
    with umask_permissions(folder / FOLDER):
        save_file(found, str(folder / FOLDER / "adapter.safetensors"))


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """What save_adapter wrote."""
    from safetensors.torch import load_file

    return load_file(str(folder / FOLDER / "adapter.safetensors"))
