"""The rivals: the published computation, written here from its description, without what we do differently.

It runs every layer, keeps and stacks all hidden states, pads batches in corpus order, and multiplies queries with
passages into one tensor of products. Pooling is [CLS], scores are dot products, temperature 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from starbucks_retrieval.sizes import Sizes


def load(folder: str) -> Any:
    """The bare Hugging Face model of a folder, in float32."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()


def cls_states(model: Any, batch: Any) -> Tensor:
    """[CLS] after the embeddings and after every layer, [layers + 1, batch, hidden], out of all states stacked."""
    stacked = torch.stack(
        model(**batch, output_hidden_states=True).hidden_states
    )  # [layers + 1, batch, tokens, hidden]
    return stacked[:, :, 0]


@torch.no_grad()
def encode(model: Any, tokenizer: Any, texts: Iterable[str], max_length: int, batch_size: int = 64) -> np.ndarray:
    """Every state of every text, [texts, layers + 1, hidden]: a size is sliced out of it afterwards."""
    kept = []
    for batch in _batches(texts, batch_size):
        inputs = tokenizer(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt").to(
            model.device
        )
        kept.append(np.array(cls_states(model, inputs).transpose(0, 1).float().cpu()))  # a copy: a view keeps the stack
    return np.concatenate(kept)


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    stream = iter(texts)
    while batch := list(islice(stream, size)):
        yield batch


def srl_loss(model: Any, queries: Any, passages: Any, sizes: Sizes) -> Tensor:
    """SRL of padded queries and their passages, group after group, the positive first; summed over the sizes."""
    layers = list(sizes.layers)
    q, p = cls_states(model, queries)[layers], cls_states(model, passages)[layers]
    products = q[:, :, None, :] * p[:, None, :, :]  # [layers, queries, passages, hidden]
    targets = torch.arange(q.shape[1], device=q.device) * (p.shape[1] // q.shape[1])
    teacher = products[-1].sum(-1).detach().softmax(-1)
    total = products.new_zeros(())
    for size in sizes:
        scores = products[layers.index(size.layer), :, :, : size.dim].sum(-1)
        total = total + functional.cross_entropy(scores, targets)
        if size != sizes.full:
            total = total + functional.kl_div(scores.log_softmax(-1), teacher, reduction="batchmean")
    return total


def smae_loss(model: Any, decoder: Any, batch: dict[str, Tensor], sizes: Sizes) -> Tensor:
    """SMAE of a BertForMaskedLM and a one-layer decoder: logits of every token, everything again for every size.

    Half the sum of both losses, averaged over the sizes.
    """
    states = model.bert(
        input_ids=batch["encoder_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
    ).hidden_states
    head = model.cls.predictions
    mask = batch["attention_mask"][:, None, None].to(states[0].dtype)
    blocked = (1 - mask) * torch.finfo(states[0].dtype).min  # [batch, 1, 1, tokens]

    def transform(cut: Tensor) -> Tensor:
        dense = head.transform.dense
        projected = functional.linear(cut, dense.weight[:, : cut.shape[-1]], dense.bias)
        return head.transform.LayerNorm(head.transform.transform_act_fn(projected))

    def cross_entropy(vectors: Tensor, labels: Tensor) -> Tensor:
        logits = functional.linear(vectors, head.decoder.weight, head.decoder.bias)  # [batch, tokens, vocabulary]
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)

    total = states[0].new_zeros(())
    for size in sizes:
        cut = states[size.layer][:, :, : size.dim]
        encoder = cross_entropy(transform(cut), batch["encoder_labels"])
        inputs = model.bert.embeddings(input_ids=batch["decoder_ids"])
        first = transform(cut)[:, :1]
        decoded = decoder(torch.cat([first, inputs[:, 1:]], dim=1), blocked)
        decoded = decoded[0] if isinstance(decoded, tuple) else decoded
        total = total + (encoder + cross_entropy(transform(decoded), batch["decoder_labels"])) / 2
    return total / len(sizes)
