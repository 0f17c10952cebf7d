"""The layer lists of the supported architectures, views of a model with fewer layers, their weights and input limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import shown
from starbucks_retrieval.sizes import Size

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class ArchitectureLayout:
    """Attribute paths inside a bare backbone.

    Args:
        layers: The path of the list of layers.
        final_norm: The path of the norm after the last layer, if there is one.
        causal: Attention is causal, so only a text's last token depends on the whole text.
    """

    layers: str
    final_norm: str | None = None
    causal: bool = False

    def layer_of(self, weight: str) -> int:
        """Return the number, from 1, of the layer that a weight belongs to; 0 for weights outside the layers.

        Example:
            >>> ArchitectureLayout("encoder.layer").layer_of("encoder.layer.0.output.dense.weight")
            1
        """
        stack = self.layers + "."
        return int(weight[len(stack) :].split(".", 1)[0]) + 1 if weight.startswith(stack) else 0


_BERT = ArchitectureLayout("encoder.layer")
_LLAMA = ArchitectureLayout("layers", "norm", causal=True)

# Keyed by the `model_type` of a Hugging Face configuration. tests/models checks each line against a truncated model.
LAYOUTS: dict[str, ArchitectureLayout] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "mpnet": _BERT,
    "distilbert": ArchitectureLayout("transformer.layer"),
    "modernbert": ArchitectureLayout("layers", "final_norm"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "eurobert": ArchitectureLayout("layers", "norm"),
    "gemma3_text": _LLAMA,
    "nomic_bert": ArchitectureLayout("layers"),
}


def layout_of(config: Any) -> ArchitectureLayout:
    """Return the layout of a Hugging Face configuration.

    Args:
        config: The configuration, of which `model_type` is read.

    Raises:
        UserError: The architecture is not in `LAYOUTS`.

    Example:
        >>> from types import SimpleNamespace
        >>> layout_of(SimpleNamespace(model_type="distilbert"))
        ArchitectureLayout(layers='transformer.layer', final_norm=None, causal=False)
    """
    if config.model_type not in LAYOUTS:
        raise UserError(
            f"the architecture {config.model_type!r} is not supported", f"supported: {', '.join(sorted(LAYOUTS))}"
        )
    layout = LAYOUTS[config.model_type]
    return replace(layout, causal=False) if getattr(config, "use_bidirectional_attention", False) else layout


# Settings in the names of nomic's own code, and the value with which they agree with transformers: that of a setting of
# transformers, or a constant.
_NOMIC = {
    "n_embd": lambda config: config.hidden_size,
    "n_layer": lambda config: config.num_hidden_layers,
    "n_head": lambda config: config.num_attention_heads,
    "n_inner": lambda config: config.intermediate_size,
    "layer_norm_epsilon": lambda config: config.layer_norm_eps,
    "rotary_emb_base": lambda config: config.rope_parameters["rope_theta"],
    "rotary_emb_fraction": lambda config: 1.0,
    "rotary_emb_interleaved": lambda config: False,
    "rotary_scaling_factor": lambda config: None,
    "activation_function": lambda config: "swiglu",
    "prenorm": lambda config: False,
    "qkv_proj_bias": lambda config: False,
    "mlp_fc1_bias": lambda config: False,
    "mlp_fc2_bias": lambda config: False,
    "use_rms_norm": lambda config: False,
    "causal": lambda config: False,
}


def check_settings(config: Any, name: str) -> None:
    """Check that transformers computes what the settings of a model say.

    Configurations of nomic_bert on the hub can have settings under the names of the code in their repositories, which
    transformers does not read.

    Args:
        config: The Hugging Face configuration, with all layers.
        name: The model, for the message.

    Raises:
        UserError: A setting has another value than transformers uses.
    """
    for key, used in _NOMIC.items() if config.model_type == "nomic_bert" else ():
        value = getattr(config, key, None)
        if value is not None and value != used(config):
            raise UserError(
                f"{name}: config.json has {key}={value}, which transformers does not read: it uses {used(config)}",
                "take a version of the model whose config.json has the names of transformers",
            )


# Settings that sizes of tensors and the number of modules follow from, and the most that a model can have.
_LARGEST = {"num_hidden_layers": 1024} | dict.fromkeys(
    ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings"), 2**24
)


def check_numbers(config: Any, name: str) -> None:
    """Check that a Hugging Face configuration describes a model that can be made.

    Args:
        config: The configuration.
        name: The model, for the message.

    Raises:
        UserError: A number of layers, heads, tokens or dimensions is missing, no integer, below 1 or too large.
    """
    for key, largest in _LARGEST.items():
        value = getattr(config, key, None)
        if value is None and key not in ("num_hidden_layers", "hidden_size"):
            continue
        if type(value) is not int or not 1 <= value <= largest:
            raise UserError(
                f"{name}: config.json has {key} {shown(value)}, expected an integer from 1 to {largest:,}",
                "restore the file, or copy the model again",
            )


def cut_config(config: Any, layers: int) -> None:
    """Shorten a Hugging Face configuration to its first `layers` layers, in place.

    Args:
        config: The configuration; `layer_types` and `max_window_layers` are adapted too, where it has them.
        layers: The number of layers to keep.
    """
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:layers]
    if getattr(config, "max_window_layers", None):
        config.max_window_layers = min(config.max_window_layers, layers)
    config.num_hidden_layers = layers


def layers_of(backbone: nn.Module, layout: ArchitectureLayout) -> nn.ModuleList:
    """Return the backbone's list of layers.

    Args:
        backbone: A model without a head.
        layout: Its layout, from `layout_of`.

    Returns:
        The model's own list; layer n is at index n - 1.
    """
    layers = backbone.get_submodule(layout.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def truncated_view(backbone: nn.Module, layout: ArchitectureLayout, layers: int) -> nn.Module:
    """Return a model of the first `layers` layers of `backbone` that shares its modules and weights.

    Only the containers on the path to the layer list are copied: nothing is loaded, moved or changed, and views of
    different depths can run at the same time.

    Args:
        backbone: A model without a head.
        layout: Its layout, from `layout_of`.
        layers: The number of layers to keep.

    Returns:
        The view; the norm after the last layer, where there is one, is part of it.
    """
    view = shallow_copy(backbone)
    owner = view
    *path, name = layout.layers.split(".")
    for part in path:
        owner._modules[part] = shallow_copy(owner.get_submodule(part))
        owner = owner.get_submodule(part)
    stack = layers_of(backbone, layout)
    owner._modules[name] = nn.ModuleList(list(stack)[:layers])
    return view


def count_parameters(encoder: Any, size: Size) -> int:
    """Return the number of weights that an embedding at `size` needs: all but those of the layers above it.

    Layer 0 needs its token table only, another layer of a model with projections its map too, and the modules after
    pooling if there are any.

    Args:
        encoder: A `NestedEncoder`. Adapters are not counted; weights that ZeRO 3 shards are counted in full.
        size: The size, of which only the layer matters.
    """
    weights = [
        weight
        for name, weight in encoder.backbone.named_parameters()
        if encoder.layout.layer_of(name) <= size.layer and ".lora_" not in name
    ]
    if encoder.head is not None:
        weights += encoder.head.parameters()
    if encoder.projections is not None:
        parts = encoder.projections.parts([size.layer])
        weights = [*(weights if size.layer else ()), *(weight for part in parts for weight in part.parameters())]
    return sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights)  # ZeRO 3 shards weights


def token_limit(config: Any, tokenizer: Any) -> int:
    """Return the longest input, in tokens, that a backbone has positions for and its tokenizer admits.

    Args:
        config: The Hugging Face configuration; 8192 counts where `max_position_embeddings` is missing.
        tokenizer: The model's tokenizer, of which `model_max_length` is read.

    Raises:
        UserError: The tokenizer's limit is not a number, or below 1.

    Example:
        >>> from types import SimpleNamespace
        >>> roberta = SimpleNamespace(model_type="roberta", max_position_embeddings=514, pad_token_id=1)
        >>> token_limit(roberta, SimpleNamespace(model_max_length=4096))
        512
    """
    limit = int(getattr(config, "max_position_embeddings", None) or 8192)
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        limit -= config.pad_token_id + 1  # their positions start after the padding token's id
    length = tokenizer.model_max_length
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
        raise UserError(
            f"tokenizer_config.json has model_max_length {shown(length)}, expected an integer from 1",
            "restore the file, or copy the model again",
        )
    return int(min(limit, length))


def shallow_copy(module: Module) -> Module:
    """Return a module with the same members, of which others can be set without changing `module`."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = module.__dict__.copy()
    copy._modules = module._modules.copy()
    return copy
