"""Loading a backbone from disk or hub: safetensors only, no code from the hub, only the layers that are needed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import NO_SPACE, UserError, as_os_error
from starbucks_retrieval.models import bert, projections
from starbucks_retrieval.models.architectures import check_numbers, check_settings, cut_config, layout_of
from starbucks_retrieval.models.config import EncoderConfig, find_config
from starbucks_retrieval.models.modules_json import check_hub, model_file
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.models.weight_files import weight_files
from starbucks_retrieval.sizes import Size, Sizes

# Architectures with a pooler above the last layer, which retrieval does not use; a checkpoint may lack it.
NO_POOLER = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")

_NEWER = "a newer version of transformers may have the architecture: pip install -U transformers"
_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("embedding_dropout", "mlp_dropout"),
)


def load_backbone(
    name_or_path: str,
    layers: int | None = None,
    *,
    passage_layers: bool = False,
    attn_implementation: str | None = None,
    dropout: float | None = None,
    trust_remote_code: bool = False,
    weights_dtype: Any = None,
    encode_only: bool = False,
) -> tuple[Any, Any, EncoderConfig]:
    """Load a bare Hugging Face model, its fast tokenizer and its encoder configuration.

    Args:
        name_or_path: A folder or hub name.
        layers: Load the first layers only; None loads all.
        passage_layers: Load also up to the layer of the passages that queries at `layers` are scored against.
        attn_implementation: An attention implementation of transformers; None: its default.
        dropout: Replaces every dropout probability of the model.
        trust_remote_code: Run code from the model's repository.
        weights_dtype: The torch.dtype of the weights in memory; None: float32.
        encode_only: Load a BERT as `BertBackbone`, which cannot be trained or saved, but takes half the time.

    Raises:
        UserError: The model cannot be found, is not supported or is incomplete, or has fewer layers.
    """
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    hf_config, config = read_configs(name_or_path, trust_remote_code)
    depth = int(hf_config.num_hidden_layers)
    if layers is not None:
        if passage_layers:
            layers = max(layers, config.passage_size(Size(layers, 1)).layer)
        lowest = 0 if 0 in config.projected_layers else 1
        if not isinstance(layers, int) or not lowest <= layers <= depth:
            raise UserError(
                f"no layer {layers!r} in a model of {depth} layers", f"take a layer from {lowest} to {depth}"
            )
        cut_config(hf_config, max(1, layers))  # some architectures cannot be made without a layer
        projected = tuple(layer for layer in config.projected_layers if layer <= layers)
        config = dataclasses.replace(config, projected_layers=projected)
        if config.sizes is not None:
            config = _keep_reachable(config, layers)
    set_dropout(hf_config, dropout)
    with explain_load_errors(name_or_path), quiet_transformers():
        plain = (
            encode_only and not (attn_implementation or trust_remote_code or weights_dtype) and bert.can_load(hf_config)
        )
        backbone = bert.load_bert(name_or_path, weight_files(name_or_path), hf_config) if plain else None
        if backbone is None:
            if attn_implementation:
                options["attn_implementation"] = attn_implementation
            backbone = _load_model(name_or_path, hf_config, weights_dtype, options)
        if hf_config.model_type == "mpnet":
            from starbucks_retrieval.models.attention import share_bias

            share_bias(backbone)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{name_or_path} has no tokenizer.json", "save it again with a fast tokenizer")
    if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):  # transformers makes one up where there is none
        raise UserError(f"{name_or_path} has no vocabulary", "copy the tokenizer's files into the model folder")
    backbone.config.use_cache = False
    return backbone, tokenizer, config


def set_dropout(hf_config: Any, dropout: float | None) -> None:
    """Replace every dropout probability of a configuration in place; None leaves them."""
    for name in _DROPOUTS:
        if dropout is not None and hasattr(hf_config, name):
            setattr(hf_config, name, dropout)


def read_configs(name_or_path: str, trust_remote_code: bool = False) -> tuple[Any, EncoderConfig]:
    """Read the Hugging Face configuration of a model and the configuration of its encoder.

    Args:
        name_or_path: A folder or hub name.
        trust_remote_code: Run code from the model's repository.

    Returns:
        Both; a causal backbone without a stored pooling takes that of the last token.

    Raises:
        UserError: The model cannot be found or is not supported, or a configuration is malformed.
    """
    from transformers import AutoConfig

    with explain_load_errors(name_or_path):
        hf_config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
        check_numbers(hf_config, name_or_path)
    layout = layout_of(hf_config)
    check_settings(hf_config, name_or_path)
    config = find_config(name_or_path, int(hf_config.num_hidden_layers), int(hf_config.hidden_size))
    if layout.causal and not config.source:
        config = dataclasses.replace(config, pooling="last")
    return hf_config, config


def _load_model(name_or_path: str, config: Any, weights_dtype: Any, options: dict[str, Any]) -> Any:
    """Load a bare model by transformers. Raises UserError if it is incomplete."""
    import torch
    from transformers import AutoModel

    if config.model_type in NO_POOLER:
        options["add_pooling_layer"] = False
    backbone, report = AutoModel.from_pretrained(
        name_or_path,
        config=config,
        dtype=weights_dtype or torch.float32,
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{name_or_path} lacks {len(missing)} weights of its architecture, for example {missing[0]}",
            "the checkpoint belongs to another architecture or is incomplete",
        )
    return backbone


def load_projections(name_or_path: str, config: EncoderConfig, layers: int | None = None) -> Projections | None:
    """Read the projections of a model; None for a model without them.

    Args:
        name_or_path: A folder or hub name.
        config: The configuration of the model, which says whether it has projections.
        layers: Read only those up to this layer; None reads all.

    Raises:
        UserError: The file is missing or damaged, or does not hold the layers that the configuration names.
    """
    if not config.projected_layers:
        return None
    path = projections_file(name_or_path)
    found = Projections.load(path, layers)
    expected = tuple(layer for layer in config.projected_layers if layers is None or layer <= layers)
    if found.layers != expected:
        raise UserError(f"{path} does not hold the layers that starbucks.json names", "run starbucks fit again")
    return found


def projections_file(name_or_path: str) -> str:
    """Return the path of the projections of a fitted model. Raises UserError where the model lacks the file."""
    path = model_file(name_or_path, projections.FILE)
    if path is None:
        raise UserError(f"{name_or_path} lacks {projections.FILE}", "copy the whole folder, or run starbucks fit again")
    return path


def _keep_reachable(config: EncoderConfig, layers: int) -> EncoderConfig:
    members = [size for size in config.sizes or () if size.layer <= layers]
    return dataclasses.replace(config, sizes=Sizes(members) if members else None)


@contextlib.contextmanager
def explain_load_errors(name_or_path: str) -> Iterator[None]:
    """Turn the exceptions of transformers while it loads a model into a UserError with the problem and a fix.

    Args:
        name_or_path: The model that is loaded in the `with` block, for the message.

    Raises:
        UserError: There is no such folder and no hub that answers, or the block raised any other exception.

    Example:
        >>> with explain_load_errors("./no-such-model"):
        ...     raise OSError("no config.json")
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: no such model folder: ./no-such-model
          check --model_name_or_path
    """
    check_hub(name_or_path)
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        if "safetensors" in str(error):
            raise UserError(
                f"{name_or_path} has no safetensors weights; pickled weights are not read",
                f"convert it: starbucks convert --model_name_or_path {name_or_path} --output_dir FOLDER",
            ) from None
        if Path(name_or_path).exists():
            raise UserError(
                f"{name_or_path} is not a model folder: {_first_line(error)}", "name a folder with config.json"
            ) from None
        raise UserError(
            f"cannot load {name_or_path!r}: {_first_line(error)}",
            "name a local folder, or a hub model while online",
        ) from None
    except UserError:
        raise
    except Exception as error:  # the libraries below raise dozens of types for damaged files
        if (found := as_os_error(error)) is not None and found.errno in NO_SPACE:
            raise
        if "trust_remote_code" in str(error):
            raise UserError(f"{name_or_path} needs code from its own repository, which is not run", _NEWER) from None
        if "does not recognize this architecture" in str(error):
            raise UserError(f"cannot load {name_or_path}: {_first_line(error)}", _NEWER) from None
        raise UserError(f"cannot load {name_or_path}: {_first_line(error)}", "check the model folder") from None


def _first_line(error: Exception) -> str:
    name = "" if isinstance(error, (OSError, ValueError, TypeError)) else type(error).__name__
    return ": ".join(filter(None, (name, *str(error).strip().splitlines()[:1]))) or type(error).__name__


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars of transformers and its report of unused weights, which are left out on purpose."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
