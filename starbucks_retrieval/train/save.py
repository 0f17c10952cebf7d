"""A training module as a plain model folder, and back."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from starbucks_retrieval.train.lora import FOLDER, has_lora, load_adapter, merged, save_adapter
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
    from starbucks_retrieval.models.load import load_backbone

    if (folder / FOLDER).is_dir():
        load_adapter(module.encoder.backbone, folder)
        return
    backbone, _, _ = load_backbone(str(folder))
    module.encoder.backbone.load_state_dict(backbone.state_dict())
