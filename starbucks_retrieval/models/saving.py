"""Write a backbone and its tokenizer as a Hugging Face folder that other tools read, and read its stored weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from starbucks_retrieval.files import umask_permissions, write_json
from starbucks_retrieval.models.loading import NO_POOLER, load_backbone, quiet_transformers
from starbucks_retrieval.models.modules_json import model_file
from starbucks_retrieval.models.weight_files import weight_files

_DIMS = ("matryoshka_dimensions", "is_matryoshka")  # vLLM reads them


def save_backbone(
    backbone: Any,
    tokenizer: Any,
    folder: str | Path,
    weights: Mapping[str, Tensor] | None = None,
    dims: Iterable[int] = (),
) -> None:
    """Write config.json, safetensors and tokenizer.

    Args:
        backbone: A bare Hugging Face model.
        tokenizer: Its fast tokenizer.
        folder: Where to write; it is created.
        weights: Written in place of the backbone's own weights, by name.
        dims: The dims that were trained at the last layer. Two or more are recorded in config.json.
    """
    for name in _DIMS:  # those of the model that training began with
        if hasattr(backbone.config, name):
            delattr(backbone.config, name)
    if len(found := sorted(set(dims))) > 1:
        backbone.config.matryoshka_dimensions = found
    weights = backbone.state_dict() if weights is None else weights
    with quiet_transformers(), umask_permissions(folder):
        backbone.save_pretrained(folder, state_dict={**_pooler(backbone), **weights})
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: Any, folder: str | Path) -> list[str]:
    """Write a tokenizer as `plain_tokenizer` returns it, so that transformers 4 reads it too.

    Args:
        tokenizer: A fast tokenizer of transformers, which stays as it is.
        folder: Where to write; it is created.

    Returns:
        The names of the files that were written.
    """
    written = [Path(name) for name in plain_tokenizer(tokenizer).save_pretrained(folder)]
    path = Path(folder) / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("tokenizer_class") == "TokenizersBackend":  # a name of version 5 for the same class
        write_json(path, content | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return [path.name for path in written]


def plain_tokenizer(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that pads on the right, with the end token where it has no padding token.

    The truncation and padding of its last call are dropped: other tools would read them from tokenizer.json.

    Args:
        tokenizer: A fast tokenizer of transformers. The copy pads with the unknown token where it has neither a padding
            token nor an end token.
    """
    plain = copy.deepcopy(tokenizer)
    plain.backend_tokenizer.no_truncation()
    plain.backend_tokenizer.no_padding()
    plain.padding_side = "right"
    if plain.pad_token is None:
        plain.pad_token = plain.eos_token or plain.unk_token
    return plain


def _pooler(backbone: nn.Module) -> dict[str, Tensor]:
    """Return zeros for the pooler that AutoModel adds to some architectures.

    No embedding reads the pooler. Without weights it would be reported missing and initialised at random at each load;
    the weights of the original, trained above the last layer, would be wrong above another one.
    """
    if backbone.config.model_type not in NO_POOLER:
        return {}
    width = int(backbone.config.hidden_size)
    return {"pooler.dense.weight": torch.zeros(width, width), "pooler.dense.bias": torch.zeros(width)}


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
