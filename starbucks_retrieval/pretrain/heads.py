"""A backbone's hidden states, and its language-modelling head applied to states truncated to d numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.architectures import ArchitectureLayout, layers_of, truncated_view
from starbucks_retrieval.models.loading import load_backbone, quiet_transformers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadLayout:
    """The parts of a head, as attribute paths inside a masked language model.

    Attributes:
        dense: The linear layer of the transform.
        norm: Its layer normalisation.
        activation: Its activation; None for GELU.
    """

    dense: str
    norm: str
    activation: str | None = None


_ROBERTA = HeadLayout("lm_head.dense", "lm_head.layer_norm")

# Keyed by the `model_type` of a Hugging Face configuration. tests/pretrain checks each line against the model's logits.
HEADS: dict[str, HeadLayout] = {
    "bert": HeadLayout(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.transform.transform_act_fn",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA,
    "electra": HeadLayout(
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_predictions.activation"
    ),
    "distilbert": HeadLayout("vocab_transform", "vocab_layer_norm", "activation"),
    "modernbert": HeadLayout("head.dense", "head.norm", "head.act"),
}


@dataclass(frozen=True)
class Head:
    """The parts of a model's language-modelling head.

    The vocabulary matrix is as wide as the word embeddings, E, which is the backbone's width D except in ELECTRA.

    Attributes:
        dense: The linear layer of the transform.
        activation: What follows it.
        norm: The layer normalisation that follows that.
        vocabulary: The linear layer from E to the vocabulary.
    """

    dense: nn.Linear
    activation: Callable[[Tensor], Tensor]
    norm: nn.Module
    vocabulary: nn.Linear

    def transform(self, states: Tensor) -> Tensor:
        """Return norm(act(x @ W[:, :d]ᵀ + b)), which at d = D is the head's transform: [..., d] -> [..., E].

        Source: the released code of Starbucks (arXiv 2410.13230).
        """
        weight = self.dense.weight[:, : states.shape[-1]]
        return self.norm(self.activation(functional.linear(states, weight, self.dense.bias)))

    def linear(self, states: Tensor) -> Tensor:
        """Return x @ W[:, :d]ᵀ: [..., d] -> [..., E]. Source: Starbucks (arXiv 2410.13230), eq. 7."""
        return functional.linear(states, self.dense.weight[:, : states.shape[-1]])


def head_of(model: Any) -> Head:
    """Return the head of a Hugging Face masked language model.

    Args:
        model: The model, as `load_masked_lm` returns it.

    Returns:
        The head, whose parts are the model's own modules.

    Raises:
        UserError: The architecture has no such head.
    """
    layout = head_layout_of(model.config)
    activation = attrgetter(layout.activation)(model) if layout.activation else functional.gelu
    dense, norm = model.get_submodule(layout.dense), model.get_submodule(layout.norm)
    return Head(dense, activation, norm, model.get_output_embeddings())


def head_layout_of(config: Any) -> HeadLayout:
    """Return the head layout of an architecture.

    Args:
        config: The Hugging Face configuration, of which `model_type` is read.

    Raises:
        UserError: The architecture has no such head.
    """
    if config.model_type not in HEADS:
        problem = f"the architecture {config.model_type!r} has no language-modelling head over masked tokens"
        raise UserError(problem, f"pre-training supports {', '.join(sorted(HEADS))}")
    return HEADS[config.model_type]


def load_masked_lm(
    name_or_path: str, *, dropout: float | None = None, seed: int = 0, from_scratch: bool = False
) -> tuple[Any, Any, EncoderConfig]:
    """Load a masked language model in float32, its tokenizer, and its stored configuration.

    A checkpoint without a head, such as a sentence-transformers model, gets a random one over its word embeddings.

    Args:
        name_or_path: Folder or hub name.
        dropout: Replaces the model's dropout probabilities.
        seed: Seeds a new head, and from scratch all weights.
        from_scratch: Take the architecture and the tokenizer alone, with random weights.

    Raises:
        UserError: As `load_backbone`, and for architectures without a masked language model.
    """
    from transformers import AutoModelForMaskedLM

    # load_backbone checks everything but the head.
    backbone, tokenizer, config = load_backbone(name_or_path, dropout=dropout)
    if config.head:
        raise UserError(
            f"{name_or_path} has modules after pooling ({', '.join(config.head)}), which would not fit another backbone",
            "pre-train the model that it was made from; starbucks train takes models with such modules",
        )
    hf_config = backbone.config
    del backbone
    head_layout_of(hf_config)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if from_scratch:
            model, report = AutoModelForMaskedLM.from_config(hf_config, dtype=torch.float32), None
        else:
            model, report = AutoModelForMaskedLM.from_pretrained(
                name_or_path, config=hf_config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
    if hf_config.model_type == "mpnet":
        from starbucks_retrieval.models.attention import share_bias

        share_bias(model.base_model)
    if report and report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"]))
        log.info("this backbone has no complete language-modelling head; initialised from seed %d", seed)
        log.debug("%s lacks %s", name_or_path, names)
    return model, tokenizer, config


def hidden_states(
    backbone: Any, layout: ArchitectureLayout, layers: Sequence[int], input_ids: Tensor, attention_mask: Tensor
) -> dict[int, Tensor]:
    """Return the hidden states at several layers, from one pass that ends at the deepest of them.

    As for pooled outputs, the state at layer n is the output of the model truncated to n layers, final norm included.

    Args:
        backbone: The model without its head.
        layout: Its layout, from `layout_of`.
        layers: The layers to return, counted from 1.
        input_ids: Token ids [batch, tokens].
        attention_mask: [batch, tokens], 0 for padding.

    Returns:
        {layer: [batch, tokens, hidden]}.
    """
    deepest = max(layers)
    model = truncated_view(backbone, layout, deepest)
    found: dict[int, Tensor] = {}
    stack = layers_of(backbone, layout)
    hooks = [stack[number - 1].register_forward_hook(partial(_keep, found, number)) for number in {*layers} - {deepest}]
    try:
        last = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    if layout.final_norm is not None:
        norm = backbone.get_submodule(layout.final_norm)
        found = {number: norm(state) for number, state in found.items()}
    return found | {deepest: last}


def _keep(found: dict[int, Tensor], number: int, module: nn.Module, inputs: Any, output: Any) -> None:
    found[number] = output[0] if isinstance(output, tuple) else output


def embedded(backbone: Any, ids: Tensor) -> Tensor:
    """Return the first layer's input for a batch of texts.

    Args:
        backbone: The model without its head.
        ids: Token ids [batch, tokens].

    Returns:
        [batch, tokens, hidden].
    """
    return widened(backbone, backbone.embeddings(input_ids=ids))


def widened(backbone: Any, vectors: Tensor, bias: bool = True) -> Tensor:
    """Project vectors from the width of the word embeddings to that of the layers: [..., E] -> [..., D].

    Only ELECTRA's small models have two widths, and a projection between their embeddings and their layers.

    Args:
        backbone: The model without its head.
        vectors: [..., E].
        bias: Whether to add the projection's bias.

    Returns:
        [..., D]; `vectors` itself if the model has no projection.
    """
    project = getattr(backbone, "embeddings_project", None)
    if project is None:
        return vectors
    return functional.linear(vectors, project.weight, project.bias if bias else None)


def position_embeddings(backbone: Any, tokens: int) -> Tensor:
    """Return the learned embeddings of the first positions of a text padded on the right.

    Args:
        backbone: A model with learned positions, without its head.
        tokens: The number of positions.

    Returns:
        [tokens, hidden], projected as by `widened`, without the bias.
    """
    table = backbone.embeddings.position_embeddings.weight
    # RoBERTa and its kin number positions from after the padding token's id.
    start = getattr(backbone.embeddings, "padding_idx", -1) + 1
    return widened(backbone, table[start : start + tokens], bias=False)
