"""What encode() of one size takes: options, the inputs of mteb and beir, and what mteb wants to know of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import count_parameters
from starbucks_retrieval.models.token_encoder import TokenEncoder
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


def beir_texts(
    corpus: Sequence[Mapping[str, str]] | Mapping[str, Sequence[str]] | Sequence[str], separator: str
) -> list[str]:
    """Return the texts of a corpus of beir.

    Args:
        corpus: A list of passages with `title` and `text`, a mapping of such columns, or a list of texts.
        separator: Put between title and text.

    Example:
        >>> beir_texts([{"title": "Hens", "text": "They lay eggs."}, {"text": "Moths fly."}], ": ")
        ['Hens: They lay eggs.', 'Moths fly.']
    """
    if isinstance(corpus, Mapping):
        texts, titles = list(corpus["text"]), list(corpus.get("title") or [])
    elif len(corpus) and isinstance(corpus[0], Mapping):
        texts = [passage["text"] for passage in corpus]  # type: ignore[index]
        titles = [passage.get("title") or "" for passage in corpus]  # type: ignore[union-attr]
    else:
        texts, titles = list(corpus), []  # type: ignore[arg-type]
    return join_titles(texts, titles, separator)


def join_titles(texts: Sequence[str], titles: Sequence[str] | None, separator: str) -> list[str]:
    """Return each text with its title before it.

    Args:
        texts: The texts of passages.
        titles: Their titles, empty where a passage has none; None or an empty list for no titles.
        separator: Put between title and text.
    """
    if not titles:
        return list(texts)
    return [join_text(Passage("", title or "", text), separator) for title, text in zip(titles, texts)]


def mteb_inputs(
    batches: Iterable[Mapping[str, Any]], separator: str, options: Mapping[str, Any]
) -> tuple[list[str], str]:
    """Return the texts of a loader of mteb, in its order, and as what they are embedded: "query" or "document".

    Args:
        batches: Batches with a column `text`, or, as mteb gives for corpora, `title` and `body`.
        separator: Put between title and text.
        options: The other arguments of mteb: `prompt_type`, of which anything but "query" counts as documents, and
            `task_metadata`, `hf_split` and `hf_subset`, which do not matter here.

    Raises:
        TypeError: There is another argument.

    Example:
        >>> mteb_inputs([{"text": ["do hens fly?"]}], " ", {"prompt_type": "query"})
        (['do hens fly?'], 'query')
    """
    if unknown := set(options) - {"task_metadata", "hf_split", "hf_subset", "prompt_type"}:
        raise TypeError(f"encode() got an unexpected keyword argument {min(unknown)!r}")
    texts: list[str] = []
    for batch in batches:
        if "title" in batch and "body" in batch:
            texts += join_titles(batch["body"], batch["title"], separator)
        else:
            texts += batch["text"]
    prompt_type = options.get("prompt_type")
    is_query = getattr(prompt_type, "value", prompt_type) == "query"
    return texts, "query" if is_query else "document"


def mteb_model_meta(encoder: TokenEncoder, size: Size, passage_size: Size, size_name: str) -> Any:
    """Return the metadata of an encoder at one size, an `mteb.ModelMeta`.

    mteb files its results under the model's name, the fingerprint of its weights as revision, and the size.

    Args:
        encoder: The encoder.
        size: The size of queries.
        passage_size: The size of passages.
        size_name: The name of the size in results.

    Raises:
        UserError: mteb is not installed.
    """
    try:
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction
    except ImportError:
        raise UserError("the package mteb 2 is not installed", "pip install 'mteb>=2'") from None
    config, deepest = encoder.config, max(size, passage_size)
    names = ("release_date", "languages", "memory_usage_mb", "license", "open_weights", "public_training_code")
    unknown: dict[str, Any] = dict.fromkeys((*names, "public_training_data", "training_datasets", "loader"))
    return ModelMeta(
        **unknown,
        name=f"starbucks/{Path(encoder.name).name or 'model'}",
        revision=encoder.fingerprint(size.layer),
        n_parameters=count_parameters(encoder, deepest),
        max_tokens=encoder.max_length(False),
        embed_dim=size.dim,
        framework=["PyTorch"],
        similarity_fn_name=ScoringFunction.COSINE if config.normalize else ScoringFunction.DOT_PRODUCT,
        use_instructions=bool(config.query_prefix or config.passage_prefix),
        experiment_kwargs={"size": size_name},
    )
