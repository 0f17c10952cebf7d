"""The weights of a model as they are stored, where they were rounded to 16 bits on loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from starbucks_retrieval.models.loading import load_backbone
from starbucks_retrieval.models.modules_json import model_file
from starbucks_retrieval.models.weight_files import weight_files


class StoredWeights(Mapping[str, Tensor]):
    """The weights of a backbone by name, each read from its file when it is asked for.

    Fingerprints are those of the stored model: embeddings of the same model are comparable, whatever type its weights
    have in memory. If transformers converts the names of the stored weights on loading, they are all loaded again in
    float32.

    Args:
        name_or_path: The model folder or hub name.
        backbone: The backbone that was loaded from it.
        trust_remote_code: Run code from the model's repository.
    """

    def __init__(self, name_or_path: str, backbone: Any, trust_remote_code: bool = False) -> None:
        from safetensors import safe_open

        self._names = list(backbone.state_dict())
        self._load = partial(
            load_backbone, name_or_path, backbone.config.num_hidden_layers, trust_remote_code=trust_remote_code
        )
        self._loaded: dict[str, Tensor] | None = None
        self._files: dict[str, tuple[str, str]] = {}  # name: its file, and its name there
        prefix = f"{backbone.base_model_prefix}."
        for file in weight_files(name_or_path):
            path = model_file(name_or_path, file)
            assert path is not None  # the backbone was loaded from it
            with safe_open(path, framework="pt") as opened:
                for stored in opened.keys():  # noqa: SIM118
                    self._files |= {stored: (path, stored), stored.removeprefix(prefix): (path, stored)}

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        if not self._files.keys() >= set(self._names):
            self._loaded = self._loaded or self._load()[0].state_dict()
            return self._loaded[name]
        path, stored = self._files[name]
        with safe_open(path, framework="pt") as opened:
            return opened.get_tensor(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
