"""A pre-training module as a plain model folder with its head, and the decoder beside it for going on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer, umask_permissions
from starbucks_retrieval.models.loading import quiet_transformers
from starbucks_retrieval.pretrain.module import PretrainingModule

FILE = Path("decoder") / "decoder.safetensors"
_MODEL, _DECODER = "model.", "decoder."


def save_model(module: PretrainingModule, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write backbone and head as transformers does (safetensors, no weight twice), tokenizer, starbucks.json, decoder.

    `state` holds the module's weights where they had to be gathered from several processes. The decoder is only read by
    `load_model`; a folder without it is as good a backbone.
    """
    from safetensors.torch import save

    state = module.state_dict() if state is None else state
    folder.mkdir(parents=True, exist_ok=True)
    if module.decoder is not None:
        with atomic_writer(folder / FILE) as file:
            file.write(save({name: weight.cpu().contiguous() for name, weight in _part(state, _DECODER).items()}))
    weights = _part(state, _MODEL)
    for tied in module.model.all_tied_weights_keys:
        weights.pop(tied, None)
    with quiet_transformers(), umask_permissions(folder):
        module.model.save_pretrained(folder, state_dict=weights)
    if module.tokenizer is not None:
        module.tokenizer.save_pretrained(folder)
    module.encoder_config.save(folder)


def load_model(module: PretrainingModule, folder: Path) -> None:
    """Read what `save_model` wrote into a module built alike, bit for bit. Raises UserError where something is missing."""
    from safetensors.torch import load_file
    from transformers import AutoModelForMaskedLM

    with quiet_transformers():
        model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    module.model.load_state_dict(model.state_dict())
    if module.decoder is not None:
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}", "resume from a checkpoint that was made with a decoder")
        module.decoder.load_state_dict(load_file(folder / FILE))


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    # Master weights are float32 whatever the training computed in.
    return {name.removeprefix(prefix): value.float() for name, value in state.items() if name.startswith(prefix)}
