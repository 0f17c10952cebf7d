"""The published pre-training losses, read literally: whole models, all logits, everything again for every size."""

from __future__ import annotations

import copy

import torch
import transformers
from torch import nn
from torch.nn import functional

IGNORED = -100


def transform(model, states):
    """What a family's head does before its vocabulary, at full width."""
    family = model.config.model_type
    if family == "bert":
        return model.cls.predictions.transform(states)
    if family == "electra":
        return model.generator_predictions(states)
    if family == "distilbert":
        return model.vocab_layer_norm(model.activation(model.vocab_transform(states)))
    if family == "modernbert":
        return model.head(states)
    return model.lm_head.layer_norm(functional.gelu(model.lm_head.dense(states)))


def dense_weight(model):
    family = model.config.model_type
    if family == "bert":
        return model.cls.predictions.transform.dense.weight
    if family == "electra":
        return model.generator_predictions.dense.weight
    if family == "distilbert":
        return model.vocab_transform.weight
    if family == "modernbert":
        return model.head.dense.weight
    return model.lm_head.dense.weight


def cut(states, dim):
    """Zeros from `dim` on: a dense layer restricted to its first inputs is the dense layer of these."""
    return torch.cat([states[..., :dim], torch.zeros_like(states[..., dim:])], dim=-1)


def mean_ce(model, vectors, labels):
    logits = model.get_output_embeddings()(vectors)
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def states_of(model, batch):
    backbone = getattr(model, model.base_model_prefix)
    found = list(
        backbone(
            input_ids=batch["encoder_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
        ).hidden_states
    )
    if model.config.model_type == "modernbert":
        found[1:-1] = [backbone.final_norm(state) for state in found[1:-1]]
    return found


def projected(model, states, dim, projection):
    if projection == "linear":
        return states[..., :dim] @ dense_weight(model)[:, :dim].T
    return transform(model, cut(states, dim))


def bottleneck(model, states, dim, projection):
    if projection == "identity":
        return states[:, 0]
    vector = projected(model, states, dim, projection)[:, 0]
    backbone = getattr(model, model.base_model_prefix)
    return backbone.embeddings_project(vector) if hasattr(backbone, "embeddings_project") else vector


def embedded(model, ids):
    backbone = getattr(model, model.base_model_prefix)
    vectors = backbone.embeddings(input_ids=ids)
    return backbone.embeddings_project(vectors) if hasattr(backbone, "embeddings_project") else vectors


def basic_decoder(model, layers, vectors, attention_mask):
    """A transformers model of the decoder's layers, run over vectors that are embedded already."""
    backbone = getattr(model, model.base_model_prefix)
    config = copy.deepcopy(backbone.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: len(layers)]
    small = transformers.AutoModel.from_config(config).to(vectors.dtype).eval()
    small.get_submodule({"distilbert": "transformer", "modernbert": ""}.get(config.model_type, "encoder")).__setattr__(
        "layers" if config.model_type == "modernbert" else "layer", layers
    )
    if config.model_type == "modernbert":
        small.final_norm = backbone.final_norm
    if config.model_type == "mpnet":
        small.encoder.relative_attention_bias = backbone.encoder.relative_attention_bias
    if hasattr(small, "embeddings_project"):
        small.embeddings_project = nn.Identity()

    class Embedded(nn.Module):
        def forward(self, *inputs, **keywords):
            return vectors

    small.embeddings = Embedded()
    return small(inputs_embeds=vectors, attention_mask=attention_mask).last_hidden_state


def enhanced_decoder(model, layer, first, tokens, visible):
    """One layer, head by head and row by row; BERT's names."""
    attention, backbone = layer.attention, getattr(model, model.base_model_prefix)
    inner, width = attention.self, first.shape[-1]
    heads, size = inner.num_attention_heads, width // inner.num_attention_heads
    positions = backbone.embeddings.position_embeddings.weight
    if hasattr(backbone.embeddings, "padding_idx"):
        positions = positions[backbone.embeddings.padding_idx + 1 :]
    if hasattr(backbone, "embeddings_project"):
        positions = positions @ backbone.embeddings_project.weight.T
    outputs = []
    for b in range(len(first)):
        keys = torch.cat([first[b, None], tokens[b, 1:]])
        rows = []
        for i in range(tokens.shape[1]):
            query = first[b] + positions[i]
            seen = visible[b, i].nonzero().squeeze(1)
            if len(seen) == 0:
                rows.append(torch.zeros_like(query))
                continue
            context = []
            for h in range(heads):
                some = slice(h * size, (h + 1) * size)
                q = inner.query(query)[some]
                k, v = inner.key(keys[seen])[:, some], inner.value(keys[seen])[:, some]
                context.append(torch.softmax(k @ q / size**0.5, 0) @ v)
            attended = attention.output.LayerNorm(attention.output.dense(torch.cat(context)) + query)
            inside = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(attended))
            rows.append(layer.output.LayerNorm(layer.output.dense(inside) + attended))
        outputs.append(torch.stack(rows))
    return torch.stack(outputs)


def loss(model, layers, batch, sizes, projection="transform", enhanced=False, half=False):
    """{name: mean} and their total, the mean over sizes of encoder's plus decoder's loss."""
    parts, total = {}, 0.0
    for size in sizes:
        states = states_of(model, batch)[size.layer]
        heads = projected(model, states, size.dim, "linear" if projection == "linear" else "transform")
        encoder = mean_ce(model, heads, batch["encoder_labels"])
        parts[f"enc/{size}"] = encoder
        total = total + encoder
        if layers is None:
            continue
        first = bottleneck(model, states, size.dim, projection)
        if enhanced:
            if projection == "linear":
                first = functional.layer_norm(first, first.shape[-1:])
            found = enhanced_decoder(model, layers[0], first, embedded(model, batch["ids"]), batch["visible"])
        else:
            vectors = embedded(model, batch["decoder_ids"]).clone()
            vectors[:, 0] = first
            found = basic_decoder(model, layers, vectors, batch["attention_mask"])
        decoder = mean_ce(model, transform(model, found), batch["decoder_labels"])
        parts[f"dec/{size}"] = decoder
        total = total + decoder
    return total / len(sizes) / (2 if half else 1), parts
