"""Options of SizedEncoder.encode: checks, prompts, and the conversion of vectors to other precisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

QUERY, DOCUMENT = "query", "document"  # the names of prompts and tasks, as in sentence-transformers
_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")  # of sentence-transformers


def check_output(output_value: str | None, precision: str | None, batch_size: int | None) -> None:
    """Raise UserError for a value of these options of `SizedEncoder.encode` that is not supported.

    Args:
        output_value: Only "sentence_embedding" is supported.
        precision: A precision of sentence-transformers' `quantize_embeddings`, or None.
        batch_size: At least 1, or None.

    Raises:
        UserError: One of them has another value.
    """
    if output_value != "sentence_embedding":
        raise UserError(
            f"output_value={output_value!r} is not supported, only 'sentence_embedding'",
            "starbucks export --to sentence-transformers writes a folder whose token embeddings can be read",
        )
    if precision not in (None, *_PRECISIONS):
        raise UserError(f"no precision {precision!r}", f"take one of {', '.join(_PRECISIONS)}")
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size {batch_size} is below 1", "leave it out, or raise it")


def quantize(vectors: np.ndarray, precision: Any) -> np.ndarray:
    """Return what sentence-transformers' `quantize_embeddings` makes of vectors.

    Args:
        vectors: float32 [texts, dim].
        precision: "int8", "uint8", "binary" or "ubinary".

    Returns:
        int8 or uint8 [texts, dim], scaled by the range of each dimension over `vectors`; or bits, eight dims a byte:
        int8 ("binary") or uint8 ("ubinary") [texts, dim / 8].

    Raises:
        UserError: sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import quantize_embeddings
    except ImportError:
        raise UserError(
            f"precision={precision!r} needs the package sentence-transformers", "pip install sentence-transformers"
        ) from None
    return quantize_embeddings(vectors, precision=precision)


def check_task(task: str | None, prompt_name: str | None) -> str | None:
    """Return as what texts are embedded: the task, or without one the name of the prompt.

    Args:
        task: "query", "document" or None.
        prompt_name: Any name, which is not checked here.

    Returns:
        "query" embeds texts as queries; everything else, None too, as passages.

    Raises:
        UserError: There is no such task.
    """
    if task not in (None, QUERY, DOCUMENT):
        raise UserError(f"no task {task!r}", f"take {QUERY!r} or {DOCUMENT!r}")
    return task or prompt_name


def find_prompt(prompts: Mapping[str, str], name: str, prompt: str | None) -> str:
    """Return the text that is put before each text.

    Args:
        prompts: The prompts of the model.
        name: The name of one of them.
        prompt: Taken in place of it, if it is not None.

    Raises:
        UserError: There is no such prompt, or `prompt` is not a string.

    Example:
        >>> find_prompt({"query": "q: "}, "query", None), find_prompt({"query": "q: "}, "query", "ask: ")
        ('q: ', 'ask: ')
    """
    if prompt is None and name in prompts:
        return prompts[name]
    if isinstance(prompt, str):
        return prompt
    if prompt is not None:
        raise UserError(f"the prompt is {prompt!r}, not a string", "write prompt='query: '")
    raise UserError(
        f"the model has no prompt {name!r}, only {' and '.join(map(repr, prompts))}",
        "take one of these names, or give the text of a prompt: prompt='query: '",
    )


def narrower(size: Size, dim: int) -> Size:
    """Return a size with fewer dims. Raises UserError if it has fewer already.

    Example:
        >>> str(narrower(Size(6, 384), 128))
        '6:128'
    """
    if not isinstance(dim, int) or not 1 <= dim <= size.dim:
        raise UserError(f"truncate_dim={dim!r} does not fit {size}", f"take a dim from 1 to {size.dim}")
    return Size(size.layer, dim)


def as_matrix(embeddings: Any, normalize: bool) -> torch.Tensor:
    """Return embeddings as a matrix of float32 or wider.

    Args:
        embeddings: An array, a tensor or a list of rows, [rows, dim] or [dim].
        normalize: Bring the rows to length 1.

    Example:
        >>> as_matrix([3, 4], normalize=True)
        tensor([[0.6000, 0.8000]])
    """
    if isinstance(embeddings, list | tuple):
        embeddings = torch.stack([torch.as_tensor(row) for row in embeddings])
    matrix = torch.atleast_2d(torch.as_tensor(embeddings))
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    return torch.nn.functional.normalize(matrix, dim=-1) if normalize else matrix


class ModelCardData:
    """The part of a SentenceTransformer that its evaluators report to; the figures are not kept."""

    def set_evaluation_metrics(self, *arguments: Any, **options: Any) -> None:
        """Accept the figures of an evaluator."""
