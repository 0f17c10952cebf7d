"""The model card that `train` writes beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from starbucks_retrieval.cli.tables import markdown_table
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.losses.base import Options
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.info import base_model, base_model_text
from starbucks_retrieval.sizes import Size, Sizes, pair_name
from starbucks_retrieval.train.arguments import TrainArguments


def write_card(
    folder: Path,
    encoder: NestedEncoder,
    arguments: TrainArguments,
    options: Options,
    recipe: dict[str, Any],
    history: Sequence[dict[str, Any]],
) -> None:
    """Write README.md: the model, its sizes with dev scores before and after training, its use and its recipe.

    Args:
        folder: The model folder.
        encoder: The trained encoder.
        arguments: The flags of the run.
        options: The options of the objective.
        recipe: Further entries of the section on training.
        history: The log of the run; its first and last dev scores are shown.
    """
    config = encoder.config
    sizes = encoder.sizes
    objective = f"{arguments.objective} {arguments.variant or ''}".strip()
    head = {
        "library_name": "starbucks_retrieval",
        "pipeline_tag": "sentence-similarity",
        **base_model(arguments.model_name_or_path),
        "tags": ["sentence-similarity", "dense-retrieval", "matryoshka", "starbucks"],
    }
    scored = [entry for entry in history if any(key.startswith("eval_") for key in entry)]
    score = "cosine" if config.normalize else "dot product"
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).strip(),
        "---",
        f"# {Path(encoder.name or folder).name}, usable at {len(sizes)} sizes",
        "",
        f"A text encoder trained with {LOSSES[arguments.objective].title}: its embedding can be taken "
        f"after any of the layers below and cut to the dims beside them. Pooling: {config.pooling}; score: {score}.",
        "",
        *_size_table(encoder, sizes, scored),
        *_depths(encoder, sizes),
        "",
        "## Use",
        "",
        "```python",
        "from starbucks_retrieval import NestedEncoder",
        "",
        f'encoder = NestedEncoder.from_pretrained("{folder.name}", layers={sizes[0].layer})',
        f'vectors = encoder.encode(["some text"], sizes="{sizes[0]}")',
        "```",
        "",
        "## Training",
        "",
        f"Base model: {base_model_text(arguments.model_name_or_path)}. "
        f"Data: {', '.join(f'`{Path(name).name}`' for name in arguments.collections)}.",
        "",
        *(f"- {name}: {value}" for name, value in ({"objective": objective} | recipe | _objective(options)).items()),
        f"- lengths: queries {config.query_max_len}, passages {config.passage_max_len} tokens",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _size_table(encoder: NestedEncoder, sizes: Sizes, scored: Sequence[dict[str, Any]]) -> list[str]:
    measures = [key[5:].split("/")[0] for key in scored[0] if key.endswith(f"/{sizes[0]}")] if scored else []
    columns = [f"{measure} {when}" for measure in measures for when in ("before", "after")]
    head = ["size", "parameters", "bytes per passage (float16)", *columns]
    rows = [head]
    for size in sizes:
        cells = [str(size), f"{parameters(encoder, size):,}", str(2 * size.dim)]
        for measure in measures:
            key = f"eval_{measure}/{size}"
            cells += [f"{scored[0][key]:.4f}", f"{scored[-1][key]:.4f}"]
        rows.append(cells)
    return markdown_table(rows)


def _depths(encoder: NestedEncoder, sizes: Sizes) -> list[str]:
    """Return a sentence about passages that are encoded at other layers than their queries."""
    pairs = [pair_name(size, encoder.config.passage_size(size)) for size in sizes]
    deeper = [pair for pair in pairs if "/" in pair]
    return [
        "",
        f"Sizes are those of queries; passages use other layers (queries/passages): {', '.join(deeper)}.",
    ] * bool(deeper)


def parameters(encoder: NestedEncoder, size: Size) -> int:
    """Return the number of weights that an embedding at `size` needs: all but those of the layers above it.

    Args:
        encoder: The encoder. Adapters are not counted; weights that ZeRO 3 shards are counted in full.
        size: The size, of which only the layer matters.
    """
    return sum(
        getattr(weight, "ds_numel", weight.numel())  # the size of a weight that ZeRO 3 shards
        for name, weight in encoder.backbone.named_parameters()
        if encoder.layout.layer_of(name) <= size.layer and ".lora_" not in name
    )


def _objective(options: Options) -> dict[str, Any]:
    return {f"objective {field.name}": getattr(options, field.name) for field in dataclasses.fields(options)}
