"""Saving and loading a training module, with LoRA adapters merged into the saved model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import umask_permissions
from starbucks_retrieval.train.module import TrainingModule

FOLDER = "adapter"
_NAME = "default"


def add_lora(backbone: nn.Module, rank: int, alpha: int, dropout: float, targets: str) -> None:
    """Freeze a backbone and add trainable LoRA adapters, in place. Its class and the paths to its layers do not change.

    Source: LoRA (arXiv 2106.09685), through the library peft.

    Args:
        backbone: The Hugging Face model.
        rank: The rank of the adapters.
        alpha: Their scale, times 1/rank.
        dropout: Dropout before the adapters.
        targets: Module names separated by commas, or `all-linear`.

    Raises:
        UserError: peft is not installed, or no module has such a name.
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
    """Raise UserError if peft is not installed."""
    if not importlib.util.find_spec("peft"):
        raise UserError("--lora needs peft", "pip install 'starbucks-retrieval[lora]'")


def has_lora(backbone: nn.Module) -> bool:
    """Return whether a backbone has adapters."""
    return any("lora_" in name for name, _ in backbone.named_parameters())


def merged(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return weights with adapters as plain weights: W + scale · B A instead of W, A and B."""
    plain = {name.replace(".base_layer.", "."): weight for name, weight in state.items() if ".lora_" not in name}
    for name, weight in state.items():
        if ".lora_A." in name:
            target = name.replace(f".lora_A.{_NAME}", "")
            up = state[name.replace(".lora_A.", ".lora_B.")]
            delta = scale * (up.float() @ weight.float())
            plain[target] = plain[target] + delta.to(plain[target])
    return plain


def save_adapter(state: dict[str, Tensor], folder: Path) -> None:
    """Write the adapters alone: a resumed run cannot recover them from merged weights."""
    from safetensors.torch import save_file

    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    adapters = {name: weight.contiguous().cpu() for name, weight in state.items() if ".lora_" in name}
    with umask_permissions(folder / FOLDER):
        save_file(adapters, str(folder / FOLDER / "adapter.safetensors"))


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read the adapters that `save_adapter` wrote."""
    from safetensors.torch import load_file

    return load_file(str(folder / FOLDER / "adapter.safetensors"))


_PREFIX = "encoder.backbone."


def save_model(module: TrainingModule, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write the encoder of a training module as a model folder, in float32 and with adapters merged.

    Args:
        module: The module.
        folder: The folder; it is created if it does not exist.
        state: The module's weights by name, if they were gathered from several processes.
    """
    backbone = module.encoder.backbone
    if state is None:
        weights = backbone.state_dict()
    else:
        weights = {name.removeprefix(_PREFIX): weight for name, weight in state.items() if name.startswith(_PREFIX)}
    folder.mkdir(parents=True, exist_ok=True)
    if has_lora(backbone):
        save_adapter(weights, folder)
        weights = merged(weights, module.lora_scale)
    # Training keeps float32 weights, whatever precision it computes in.
    module.encoder.save_pretrained(folder, {name: weight.float() for name, weight in weights.items()})


def load_model(module: TrainingModule, folder: Path) -> None:
    """Read the weights of a saved encoder into a module.

    Args:
        module: The module; its backbone is changed in place.
        folder: A model folder that `save_model` wrote. If it holds adapters, only they are read.
    """
    from starbucks_retrieval.models.loading import load_backbone

    if (folder / FOLDER).is_dir():
        _copy(read_adapter(folder), module.encoder.backbone, strict=False)
        return
    backbone, _, _ = load_backbone(str(folder))
    _copy(backbone.state_dict(), module.encoder.backbone)


def _copy(weights: dict[str, Tensor], backbone: nn.Module, strict: bool = True) -> None:
    if all(type(parameter.data) is Tensor for parameter in backbone.parameters()):
        backbone.load_state_dict(weights, strict=strict)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    # FSDP: each process keeps its shard of the weights.
    set_model_state_dict(backbone, weights, options=StateDictOptions(full_state_dict=True, strict=strict))
