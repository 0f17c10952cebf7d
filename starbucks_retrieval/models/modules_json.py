"""The modules of a sentence-transformers folder: modules.json and the module folders. Needs no torch."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.checks import check_model
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import FileName, Positive, check_value, read_json

# The names of our poolings in sentence-transformers, in new versions and in old ones.
POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
# Activations of a Dense module: classes of torch.nn that need no arguments.
ACTIVATIONS = ("ELU", "GELU", "Identity", "LeakyReLU", "Mish", "ReLU", "SELU", "SiLU", "Sigmoid", "Softplus", "Tanh")
_FOLDER = re.compile(r"\w[\w.-]*")  # a plain name: nothing is read or written outside the model folder


@dataclass(frozen=True)
class HeadModule:
    """A Dense or LayerNorm module between the pooling and the embedding.

    Args:
        path: Its folder inside the model folder.
        settings: The content of its config.json.

    Example:
        >>> wide = HeadModule("2_Dense", {"in_features": 4, "out_features": 8, "bias": True})
        >>> wide.kind, wide.width, wide.activation, wide.parameters
        ('Dense', 8, 'Tanh', 40)
    """

    path: str
    settings: dict[str, Any]

    @property
    def kind(self) -> str:
        """ "Dense" or "LayerNorm"."""
        return "Dense" if "out_features" in self.settings else "LayerNorm"

    @property
    def inputs(self) -> int:
        """The width of its input."""
        return int(self.settings["in_features" if self.kind == "Dense" else "dimension"])

    @property
    def width(self) -> int:
        """The width of its output."""
        return int(self.settings["out_features" if self.kind == "Dense" else "dimension"])

    @property
    def bias(self) -> bool:
        """Whether a Dense module adds a bias."""
        return bool(self.settings.get("bias", True))

    @property
    def activation(self) -> str:
        """The activation of a Dense module: one of `ACTIVATIONS`."""
        return str(self.settings.get("activation_function", "Tanh")).rsplit(".", 1)[-1]

    @property
    def use_residual(self) -> bool:
        """Whether a Dense module adds its input to its output."""
        return bool(self.settings.get("use_residual", False))

    @property
    def parameters(self) -> int:
        """The number of its weights."""
        if self.kind == "LayerNorm":
            return 2 * self.width
        residual = self.use_residual and self.inputs != self.width
        return self.inputs * self.width * (1 + residual) + self.bias * self.width


@dataclass(frozen=True)
class Module:
    """An entry of modules.json: the class of a module, and its folder.

    Attributes:
        type: The class with its package, such as "sentence_transformers.models.Pooling".
        path: A folder inside the model folder; empty for the model folder itself.
    """

    type: str
    path: str

    @property
    def kind(self) -> str:
        """The name of the class."""
        return self.type.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class ModuleList:
    """What modules.json says about an encoder.

    Args:
        pooling: "cls", "mean" or "last".
        include_prompt: The tokens of prompts are part of the mean.
        head: The folders of the modules between the pooling and the embedding.
        normalize: The last module normalises.
    """

    pooling: str = "cls"
    include_prompt: bool = True
    head: tuple[str, ...] = ()
    normalize: bool = False


def read_modules(name_or_path: str, path: str | Path) -> ModuleList:
    """Read the module list of a model of sentence-transformers.

    Args:
        name_or_path: The model folder or hub name.
        path: Its modules.json.

    Raises:
        UserError: A file is malformed or missing, or a module is not supported.
    """
    pooling, include_prompt, head, normalize = "cls", True, [], False
    pooled = False
    for module in read_json(path, list[Module]):
        kind = module.kind
        if kind == "Pooling":
            pooling, include_prompt = _pooling(name_or_path, module.path)
            pooled = True
        elif kind == "Normalize":
            normalize = True
        elif kind in ("Dense", "LayerNorm") and module.type.startswith("sentence_transformers."):
            if normalize or not pooled:
                where = "after Normalize" if normalize else "before the pooling"
                raise UserError(
                    f"{path} has a {kind} module {where}",
                    "Dense and LayerNorm modules are supported between Pooling and Normalize",
                )
            head.append(module.path)
        elif kind != "Transformer":
            raise UserError(
                f"{path} names a module of type {module.type}, which is not supported",
                "supported: Transformer, Pooling, Dense, LayerNorm and Normalize of sentence-transformers",
            )
    return ModuleList(pooling, include_prompt, tuple(head), normalize)


def read_head(name_or_path: str, paths: Sequence[str], hidden_size: int) -> tuple[HeadModule, ...]:
    """Read the settings of the modules after pooling.

    Args:
        name_or_path: A model folder or hub name.
        paths: The folders of the modules, in their order.
        hidden_size: Width of the backbone.

    Raises:
        UserError: A file is missing or malformed, a setting is not supported, or a width does not fit the one before.
    """
    modules, width = [], hidden_size
    for path in paths:
        if not _FOLDER.fullmatch(path):
            raise UserError(f"{name_or_path}: {path!r} is not the name of a module folder", "name it like 2_Dense")
        file = _module_file(name_or_path, path)
        module = HeadModule(path, read_json(file))
        _check(module, width, file)
        modules.append(module)
        width = module.width
    return tuple(modules)


def _check(module: HeadModule, width: int, file: str) -> None:
    """Raise UserError for settings that are not supported."""
    settings = module.settings
    keys = ("in_features", "out_features") if "out_features" in settings else ("dimension",)
    for key in keys:
        if key not in settings:
            what = f"{file} holds the settings of neither a Dense nor a LayerNorm module"
            raise UserError(what, "save the model again with sentence-transformers")
        check_value(settings[key], Positive, f"{file}: {key}")
    if module.inputs != width:
        raise UserError(
            f"{file} is for {module.inputs} numbers, and the module before it gives {width}",
            "the folder belongs to another model; copy the whole model again",
        )
    if module.kind == "LayerNorm":
        return
    written = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not str(written).startswith("torch.nn.") or module.activation not in ACTIVATIONS:
        raise UserError(
            f"{file}: the activation {written!r} is not supported", f"supported: {', '.join(ACTIVATIONS)} of torch.nn"
        )
    for key in ("module_input_name", "module_output_name"):
        if settings.get(key) not in (None, "sentence_embedding"):
            raise UserError(
                f"{file}: {key} is {settings[key]!r}", "Dense modules of sentence embeddings are supported only"
            )


def _pooling(name_or_path: str, folder: str) -> tuple[str, bool]:
    """Return the pooling, and whether the tokens of prompts are part of it."""
    path = _module_file(name_or_path, folder)
    content = read_json(path)
    named = check_value(content.get("pooling_mode"), str | list[str] | None, f"{path}: pooling_mode")
    modes = [named] if isinstance(named, str) else named or []
    modes = modes or [key for key, value in content.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(
            f"{name_or_path} pools by {' and '.join(modes) or 'nothing'}",
            "cls, mean and last-token pooling are supported",
        )
    return POOLINGS[modes[0]], bool(content.get("include_prompt", True))


def _module_file(name_or_path: str, folder: str) -> str:
    path = model_file(name_or_path, f"{folder}/config.json")
    if path is None:
        raise UserError(f"{name_or_path} lacks {folder}/config.json", "save the model again with sentence-transformers")
    return path


def model_file(name_or_path: str, filename: str) -> str | None:
    """Return the path of a file of a model.

    Args:
        name_or_path: A folder, or the name of a repository on the hub, whose files are downloaded once.
        filename: The file, relative to the folder.

    Returns:
        The path; None where the model has no such file, and where the hub does not answer.
    """
    if Path(name_or_path).is_dir():
        local = Path(name_or_path) / filename
        return str(local) if local.is_file() else None
    from transformers.utils import cached_file

    return cached_file(
        name_or_path,
        filename,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )


def check_hub(
    name: str, flag: str = "model_name_or_path", hint: str = "name a local folder, or a hub model while online"
) -> None:
    """Raise UserError for a model that is no folder, and that neither the hub's cache has nor a hub that answers.

    transformers would try for 40 seconds, and print each attempt.

    Args:
        name: A folder or hub name.
        flag: The flag that names it, for the hint where it can only be a folder.
        hint: The remedy where the hub does not answer.
    """
    if Path(name).exists():
        return
    check_model(name, flag)
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    if constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT):
        raise UserError(f"{name} is no folder here, and the hub cannot be reached", hint)


def reachable(url: str) -> bool:
    """Return whether a server answers within 3 seconds, with any status."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=3):  # noqa: S310 - the hub's address, or the user's HF_ENDPOINT
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class _WeightIndex:
    weight_map: dict[str, FileName]


def listed_files(index: str) -> list[str]:
    """Return the names of the files that an index of weights lists. Raises UserError for another content."""
    hint = "copy or download the whole model again"
    names = sorted(set(read_json(index, _WeightIndex, hint).weight_map.values()))
    if not names:
        raise UserError(f"{index} lists no files", hint)
    return names
