"""BERT's forward pass without transformers' model code, whose import takes longer than that of torch.

A command that answers one query needs the forward pass only. The modules have the names of `transformers.BertModel` and
compute the same operations in the same order, so weights, fingerprints and embeddings are equal, bit for bit
(tests/models/test_bert.py compares them). Nothing here is for training: there is no dropout.

Where "cls" pooling takes no other token, the last layer of transformers' own BERTs is computed for the first token alone: keys
and values for all tokens; queries, the output of the attention and the feed-forward network, 10 of the 12 width² weights of a
layer, for the first token only. Rounding aside, it is what the layer computes for this token.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from starbucks_retrieval.models.modules_json import model_file

# Architectures whose layers have BERT's modules; tests/models/test_first_token.py compares each.
FIRST_TOKEN_FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
_MIN_TOKENS = 512  # of a batch, padding included


def can_load(config: Any) -> bool:
    """Return whether `BertBackbone` computes what transformers computes for a Hugging Face configuration."""
    return (
        config.model_type == "bert"
        and config.hidden_act == "gelu"
        and not config.is_decoder
        and not config.add_cross_attention
        and not config.chunk_size_feed_forward
        and config.hidden_size % config.num_attention_heads == 0
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and getattr(config, "quantization_config", None) is None
        and getattr(config, "_attn_implementation", None) in (None, "sdpa")
    )


def load_bert(name_or_path: str, files: list[str], config: Any) -> BertBackbone | None:
    """Load the weights of a BERT as float32, from the mapped files.

    Args:
        name_or_path: A folder or hub name.
        files: The names of its safetensors files.
        config: Its Hugging Face configuration, with as many layers as are needed, for which `can_load` is true.

    Returns:
        The backbone in evaluation mode; None if the files are damaged, or name or shape the weights otherwise than the
        modules.
    """
    from safetensors import SafetensorError, safe_open

    with torch.device("meta"):  # without memory, which the weights replace
        backbone = BertBackbone(config)
    expected = {name: tensor.shape for name, tensor in backbone.state_dict().items()}
    weights: dict[str, Tensor] = {}
    for file in files:
        path = model_file(name_or_path, file)
        if path is None:
            return None
        try:
            with safe_open(path, framework="pt") as opened:
                for stored in opened.keys():  # noqa: SIM118
                    name = stored.removeprefix("bert.")
                    if name in expected:
                        weights[name] = opened.get_tensor(stored).to(torch.float32)
        except (SafetensorError, OSError):  # transformers has messages for it
            return None
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        return None
    backbone.load_state_dict(weights, assign=True)
    return backbone.requires_grad_(False).eval()


class BertBackbone(nn.Module):
    """A BERT without pooler, for inference.

    Args:
        config: A `transformers.BertConfig` for which `can_load` is true.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embeddings of the tokens."""
        return self.embeddings.word_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Return an object with `last_hidden_state` [batch, tokens, hidden].

        Args:
            input_ids: Token ids [batch, tokens].
            attention_mask: 1 for tokens and 0 for padding, [batch, tokens].
        """
        batch, tokens = input_ids.shape
        mask = None
        if not attention_mask.all():  # torch has faster kernels for attention without a mask
            mask = attention_mask.bool()[:, None, None, :].expand(batch, 1, tokens, tokens)
        hidden = self.embeddings(input_ids)
        for layer in self.encoder["layer"]:
            hidden = layer(hidden, mask)
        return SimpleNamespace(last_hidden_state=hidden)


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Leave the weights as they are: random numbers would be replaced, and on "meta" they import torch's compiler."""


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


class _Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = _Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = _Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        # Every text is of the first type, and the order of the additions decides the last bits.
        hidden = self.word_embeddings(input_ids) + self.token_type_embeddings.weight[0]
        return self.LayerNorm(hidden + self.position_embeddings.weight[: input_ids.shape[1]])


class _Residual(nn.Module):
    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        self.dense = _Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(hidden) + residual)


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        attend = nn.ModuleDict({name: _Linear(width, width) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": attend, "output": _Residual(config, width)})
        self.intermediate = nn.ModuleDict({"dense": _Linear(width, config.intermediate_size)})
        self.output = _Residual(config, config.intermediate_size)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, width = hidden.shape
        attend: Any = self.attention["self"]
        query, key, value = (
            attend[name](hidden).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scale = (width // self.heads) ** -0.5
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        context = context.transpose(1, 2).reshape(batch, tokens, width)
        attended = self.attention["output"](context, hidden)
        return self.output(functional.gelu(self.intermediate["dense"](attended)), attended)


def can_compute_first_token(layer: nn.Module, backbone: Any, inputs: Mapping[str, Tensor]) -> bool:
    """Return whether `compute_first_token` gives the first token of a layer's output.

    It does not in training, for compiled layers, and for a few texts, which have the same bits in `BertBackbone`; in graphs
    for other back ends it does for any number of texts.

    Args:
        layer: The layer.
        backbone: Its backbone.
        inputs: Those of the backbone; `attention_mask` is [batch, tokens].
    """
    config = backbone.config
    return (
        config.model_type in FIRST_TOKEN_FAMILIES
        and not torch.is_grad_enabled()
        and "attention_mask" in inputs  # which unpadded texts have not
        and type(layer).__module__.startswith("transformers.")
        and "forward" not in vars(layer)
        and config._attn_implementation == "sdpa"
        and (torch.compiler.is_compiling() or inputs["attention_mask"].numel() >= _MIN_TOKENS)
        and not config.is_decoder
        and not config.add_cross_attention
        and not config.chunk_size_feed_forward
    )


def compute_first_token(layer: Any, hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Compute a layer for the first token.

    Args:
        layer: A BERT layer of transformers, in evaluation mode.
        hidden: The output of the layer below, [batch, tokens, width].
        attention_mask: 1 for tokens and 0 for padding, [batch, tokens].

    Returns:
        [batch, 1, width].
    """
    attend, first = layer.attention.self, hidden[:, :1]
    heads = attend.num_attention_heads
    # The first tokens of a batch come last: keys and values share one cast of their input.
    key, value, query = (
        project(states).unflatten(-1, (heads, -1)).transpose(1, 2)
        for project, states in ((attend.key, hidden), (attend.value, hidden), (attend.query, first))
    )
    traced = torch.compiler.is_compiling()  # a graph serves batches with padding and without
    mask = None if not traced and attention_mask.all() else attention_mask.bool()[:, None, None]
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attend.scaling)
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), first)
    return layer.output(layer.intermediate(attended), attended)
