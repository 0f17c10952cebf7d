"""The model card of an export: its content, and Python lines that use it."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from typing import Any

from starbucks_retrieval.export import TARGETS, ExportArguments
from starbucks_retrieval.files import write_text
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.card import SENTENCE_TRANSFORMERS, embedding_model, front_matter
from starbucks_retrieval.sizes import Size

_CARD = Template("""\
---
$head
---
# $name: `$base` at size $size

$content, for $loader: $kept of $total parameters, $weights. Pooling: $pooling; score: $score. This export was not \
evaluated; quality and licence are those of the original model.

## Use

```python
$usage
```

$notes

Written by `starbucks export`; `export.json` records the source and the versions.
""")


_POOL = {
    "cls": "hidden[:, 0]",
    "mean": "(hidden * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)",
    "last": "hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]",
}


def write_card(
    folder: Path, encoder: NestedEncoder, size: Size, arguments: ExportArguments, figures: dict[str, Any]
) -> None:
    """Write README.md: front matter, the content of the export, Python lines that use it, and notes on the input.

    Args:
        folder: The folder of the export.
        encoder: The model, loaded up to the layer of the size.
        size: The exported size.
        arguments: The flags of the export.
        figures: The summary of the export, with the numbers of parameters.
    """
    target, config = TARGETS[arguments.to], encoder.config
    name = arguments.hub_model_id or Path(arguments.output_dir).name
    about = embedding_model(True)
    if arguments.to != SENTENCE_TRANSFORMERS:
        # Tools must not take the folder for one whose embeddings they know how to compute.
        about = embedding_model(False) | {"library": arguments.to, "task": "feature-extraction"}
    names = {
        "name": name,
        "base": public_name(arguments.model_name_or_path),
        "size": str(size),
        "layer": str(size.layer),
        "dim": str(size.dim),
        "pooling": config.pooling,
        "text": json.dumps(config.passage_prefix + "a passage", ensure_ascii=False),
        "max_length": str(encoder.max_length(False)),
        "pooled": _pooled(config.pooling, size.dim, config.normalize),
    }
    card = _CARD.substitute(
        names | {"pooling": config.pooling if size.layer else "mean of the token vectors"},
        content=_content(encoder, size, names["base"]),
        head=front_matter(name, arguments.model_name_or_path, **about),
        loader=target.loader,
        kept=f"{figures['parameters_kept']:,}",
        total=f"{figures['parameters_total']:,}",
        weights="8-bit integers" if arguments.int8 else "float32",
        score="cosine" if config.normalize else "dot product",
        usage=Template(target.usage).substitute(names).strip(),
        notes="\n".join(f"- {note}" for note in (*_notes(encoder), *target.notes(encoder, size, figures))),
    )
    write_text(folder / "README.md", card)


def _content(encoder: NestedEncoder, size: Size, base: str) -> str:
    """Return what the export is, without the full stop of a sentence."""
    if size.layer == 0:
        return f"One vector of {size.dim} dimensions per token, made from the text encoder `{base}` without its layers"
    cut = f"The text encoder `{base}` cut to its first {size.layer} layers"
    if encoder.projections is None:
        return f"{cut} and its embeddings to their first {size.dim} dimensions"
    return f"{cut}, and the linear map that was fitted for this layer, cut to its first {size.dim} dimensions"


def _pooled(pooling: str, dim: int, normalize: bool) -> str:
    """Return a Python expression for the embeddings, of `hidden` and `mask` padded on the right."""
    cut = f"({_POOL[pooling]})[:, :{dim}]"
    return f"torch.nn.functional.normalize({cut}, dim=-1)" if normalize else cut


def _notes(encoder: NestedEncoder) -> list[str]:
    """Return the notes that hold for every target."""
    config = encoder.config
    prefixes = f"Put {config.query_prefix!r} in front of a query and {config.passage_prefix!r} in front of a passage."
    return [
        prefixes if config.query_prefix or config.passage_prefix else "Queries and passages get no prefix.",
        f"Lengths: queries {encoder.max_length(True)}, passages {encoder.max_length(False)} tokens, special ones included.",
        f"A passage with a title is the title, {config.passage_field_separator!r} and the text; white space at both ends "
        "is stripped.",
    ]


def public_name(name_or_path: str) -> str:
    """Return the name under which a model or data set is recorded in an export.

    Args:
        name_or_path: A hub name, which is returned unchanged, or an existing local path, of which only the last part is
            kept: other machines do not have that path.

    Example:
        >>> public_name("me/my-model")
        'me/my-model'
    """
    return Path(name_or_path).resolve().name if Path(name_or_path).exists() else name_or_path
