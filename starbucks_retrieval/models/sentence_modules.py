"""The files that make a model folder one of sentence-transformers: modules.json and the modules it names.

They are written as plain files, so the package is not needed. Versions since 5 read the names and settings used here;
older versions do not read the newer, longer module names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.layer_maps import LayerMap
from starbucks_retrieval.models.modules_json import POOLINGS
from starbucks_retrieval.models.pooling import PooledBackbone
from starbucks_retrieval.models.weight_files import write_weights
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.sizes import Size

MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_TRANSFORMER = "sentence_bert_config.json"
_MODULE_FOLDER = re.compile(r"\d+_\w+")


def module_size(encoder: PooledBackbone) -> Size | None:
    """Return the size at which sentence-transformers reads the folder of a model: the largest of its last layer.

    Returns:
        The full size where the model was fitted, was trained for it or stores no sizes; otherwise the largest dim that
        was trained at the last layer. None if no sequence of modules gives the embeddings: see `no_modules`.
    """
    return None if no_modules(encoder) else _largest(encoder)


def no_modules(encoder: PooledBackbone) -> str | None:
    """Return why no sequence of modules gives the embeddings of a model's last layer, None where one does.

    Args:
        encoder: The model; only its settings and its projections are read.

    Returns:
        A clause for a message, such as "queries and passages are encoded at different layers".
    """
    last, projections = encoder.num_layers, encoder.projections
    if projections is not None:
        if last not in projections.layers:
            return f"layer {last}, its last, has no map" if any(projections.layers) else "it uses its token table only"
        if len(projections.map(last).inputs) > 1:
            return f"the map of layer {last} takes the outputs of several layers (`--concat_layers`)"
    if _largest(encoder) is None:
        return "queries and passages are encoded at different layers"
    return None


def _largest(encoder: PooledBackbone) -> Size | None:
    config, full = encoder.config, Size(encoder.num_layers, encoder.hidden_size)
    if config.sizes is None or config.projected_layers:
        return full if config.passage_size(full) == full else None
    members = [size for size in config.sizes if size.layer == full.layer and config.passage_size(size) == size]
    return members[-1] if members else None


def modules_note(encoder: PooledBackbone, lengths: tuple[int, int]) -> str:
    """Return a paragraph of a model card: what sentence-transformers gets of the folder, or why it gets nothing.

    Args:
        encoder: The model.
        lengths: The most tokens of a query and of a passage.
    """
    size = module_size(encoder)
    if size is None:
        return (
            f"sentence-transformers cannot read this folder: {no_modules(encoder)}. `starbucks export` writes single sizes "
            "for it where it can. Tools that read `config.json` and the weights alone get other vectors."
        )
    cut = (
        f" It cuts texts at the length of passages: set `model.max_seq_length = {lengths[0]}` before you embed queries."
        if lengths[0] != lengths[1]
        else ""
    )
    return (
        f"`SentenceTransformer` reads this folder at size {size}, with pooling, normalisation and prompts.{cut} Tools that "
        "read `config.json` and the weights alone get other vectors."
    )


def save_modules(
    folder: Path, encoder: PooledBackbone, max_length: int, projections: Mapping[str, Tensor] | None = None
) -> None:
    """Make a folder that has the weights and the tokenizer of a model one of sentence-transformers at `module_size`.

    Args:
        folder: The model folder, without modules of an earlier model: see `remove_modules`.
        encoder: The model.
        max_length: Tokens of a text at most, special ones included.
        projections: Written in place of the projections' own weights, by name.
    """
    size = module_size(encoder)
    if size is None:
        return
    found = None if encoder.projections is None else encoder.projections.map(size.layer)
    if found is not None and projections is not None:
        bias = projections.get(f"maps.{size.layer}.bias")
        found = LayerMap(projections[f"maps.{size.layer}.weight"], bias, found.inputs, found.normalize)
    write_layer_modules(folder, encoder, size, max_length, found)


def write_modules(folder: Path, config: EncoderConfig, names: list[str]) -> None:
    """Write modules.json, and the prompts and the similarity, for modules whose own files are there.

    Args:
        folder: The model folder.
        config: The configuration of the model; a module that normalises is added where it says so.
        names: The modules in order, by the names of sentence-transformers.
    """
    names = [*names, *(["Normalize"] if config.normalize else [])]
    paths = ["" if name == "Transformer" else f"{position}_{name}" for position, name in enumerate(names)]
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    write_json(
        folder / _SETTINGS,
        {
            "model_type": "SentenceTransformer",
            "prompts": {"query": config.query_prefix, "document": config.passage_prefix},
            # Their encode() adds no prefix by default; ours treats a text as a passage.
            "default_prompt_name": "document" if config.passage_prefix else None,
            "similarity_fn_name": "cosine" if config.normalize else "dot",
        },
    )
    write_json(
        folder / MODULES,
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(zip(names, paths))
        ],
    )


def write_layer_modules(
    folder: Path, encoder: PooledBackbone, size: Size, max_length: int, found: LayerMap | None
) -> None:
    """Write the modules of a layer from 1 into a folder with backbone, tokenizer and modules after pooling.

    Args:
        folder: The folder.
        encoder: The model.
        size: The size of the embeddings.
        max_length: Tokens of a text at most, special ones included.
        found: The map of the layer, cut to the dim of the size; None for a model that is not fitted.
    """
    config = encoder.config
    names = ["Transformer", "Pooling"]
    write_json(folder / _TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False, **_loading(folder)})
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": encoder.backbone.config.hidden_size,
            "include_prompt": config.include_prompt,
            **{flag: name == config.pooling for flag, name in POOLINGS.items() if flag.startswith("pooling_mode_")},
        },
    )
    if encoder.head is not None:
        names += encoder.head.kinds  # written with the backbone
    if found is None and size.dim < encoder.hidden_size:
        found = _first(encoder.hidden_size, size.dim)
    if found is not None:
        if found.normalize:
            names.append("Normalize")
        _write_linear(folder / f"{len(names)}_Dense", found)
        names.append("Dense")
    write_modules(folder, config, names)


def _loading(folder: Path) -> dict[str, Any]:
    """Return the options that load half-precision weights in float32, as our own tools do; {} for float32 weights."""
    from safetensors import safe_open

    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if any(file.get_slice(name).get_dtype() in ("F16", "BF16") for name in file.keys()):  # noqa: SIM118
                return {"model_args": {"torch_dtype": "float32"}}
    return {}


def _first(width: int, dim: int) -> LayerMap:
    """Return a map that keeps the first `dim` dimensions: the first rows of the identity.

    Their truncate_dim cuts after the last module, so after Normalize, and leaves vectors that do not have length 1.
    This map is exact: each number is multiplied by 1, and the zeros add nothing.
    """
    return LayerMap(torch.eye(width)[:dim], None, (), normalize=False)


def _write_linear(folder: Path, found: LayerMap) -> None:
    """Write a map as a Dense module without an activation."""
    dim, width = found.weight.shape
    write_json(
        folder / "config.json",
        {
            "in_features": width,
            "out_features": dim,
            "bias": found.bias is not None,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    weights = {"linear.weight": found.weight} | ({} if found.bias is None else {"linear.bias": found.bias})
    write_weights(folder / "model.safetensors", weights)


def module_files(folder: Path) -> list[str]:
    """Return the files that only sentence-transformers reads, as paths in the folder; [] for another folder."""
    if not (folder / MODULES).is_file():
        return []
    names = [_SETTINGS, _TRANSFORMER]
    for module in _module_folders(folder):
        names += sorted(f"{module.name}/{path.name}" for path in module.iterdir() if path.is_file())
    return [*(name for name in names if (folder / name).is_file()), MODULES]


def remove_modules(folder: Path) -> None:
    """Remove the files of `module_files`, and the folders that are then empty: an earlier model wrote them."""
    modules = _module_folders(folder) if (folder / MODULES).is_file() else []
    for name in module_files(folder):
        (folder / name).unlink()
    for module in modules:
        with contextlib.suppress(OSError):  # it holds other things
            module.rmdir()


def _module_folders(folder: Path) -> list[Path]:
    try:
        paths = [module.get("path") for module in read_json(folder / MODULES, list[dict[str, Any]])]
    except (OSError, UserError):
        return []
    named = [folder / path for path in paths if isinstance(path, str) and _MODULE_FOLDER.fullmatch(path)]
    return [path for path in named if path.is_dir() and not path.is_symlink()]
