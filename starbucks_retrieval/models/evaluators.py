"""What mteb and beir pass to a model, and what mteb wants to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.cutting import count_parameters
from starbucks_retrieval.models.token_encoder import TokenEncoder
from starbucks_retrieval.sizes import Size


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
