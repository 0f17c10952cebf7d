"""The weights of a model as they are stored, where they were rounded to 16 bits on loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from starbucks_retrieval.models.modules_json import model_file


class StoredWeights(Mapping[str, Tensor]):
    """The weights of a backbone by name, each read from its file when it is asked for.

    Fingerprints are those of the stored model: embeddings of the same model are comparable, whatever type its weights
    have in memory. A weight that is not in the files by its name, such as one of an older layout that is converted on
    loading, is that of the backbone.

    Args:
        name_or_path: The model folder or hub name.
        files: Its safetensors files.
        backbone: The backbone that was loaded from it.
    """

    def __init__(self, name_or_path: str, files: list[str], backbone: Any) -> None:
        from safetensors import safe_open

        self._own: dict[str, Tensor] = backbone.state_dict()
        self._files = {}
        prefix = f"{backbone.base_model_prefix}."
        for file in files:
            path = model_file(name_or_path, file)
            assert path is not None  # the backbone was loaded from it
            with safe_open(path, framework="pt") as opened:
                for stored in opened.keys():  # noqa: SIM118
                    for name in (stored, stored.removeprefix(prefix)):
                        if name in self._own:
                            self._files[name] = (path, stored)

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        if name not in self._files:
            return self._own[name]
        path, stored = self._files[name]
        with safe_open(path, framework="pt") as opened:
            return opened.get_tensor(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)
