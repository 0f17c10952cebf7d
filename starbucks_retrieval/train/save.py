"""A training module as a plain model folder, and back."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from starbucks_retrieval.train.lora import FOLDER, has_lora, merged, read_adapter, save_adapter
from starbucks_retrieval.train.module import TrainingModule

_PREFIX = "encoder.backbone."


def save_model(module: TrainingModule, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write the encoder; `state` holds the module's weights where they had to be gathered from several processes."""
    backbone = module.encoder.backbone
    if state is None:
        weights = backbone.state_dict()
    else:
        weights = {name.removeprefix(_PREFIX): weight for name, weight in state.items() if name.startswith(_PREFIX)}
    folder.mkdir(parents=True, exist_ok=True)
    if has_lora(backbone):
        save_adapter(weights, folder)
        weights = merged(weights, module.lora_scale)
    # Master weights are float32 whatever the training computed in.
    module.encoder.save_pretrained(folder, {name: weight.float() for name, weight in weights.items()})


def load_model(module: TrainingModule, folder: Path) -> None:
    """Read a saved encoder's weights into a module that is already built."""
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

    # FSDP: each process keeps its part of the whole weights.
    set_model_state_dict(backbone, weights, options=StateDictOptions(full_state_dict=True, strict=strict))
