"""The model card of a fitted model, and the table of its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.tables import align_columns, markdown_table
from starbucks_retrieval.files import write_text
from starbucks_retrieval.fit import FitArguments
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.card import base_model_text, embedding_model, front_matter, usage
from starbucks_retrieval.models.sentence_modules import module_size, modules_note
from starbucks_retrieval.sizes import Size

CARD = "README.md"


def grid_table(cells: Sequence[Mapping[str, Any]], sizes: Sequence[str] = ()) -> str:
    """Return the shares of neighbours kept at every layer and dim as a text table, before and after.

    Args:
        cells: The `grid` of `fit`'s figures.
        sizes: The sizes to mark with an asterisk.

    Example:
        >>> cell = {"size": "1:16", "top10_before": 0.251, "top10": 0.5}
        >>> print(grid_table([cell], ["1:16"]))
        layer          16
            1  .25 → .50*
    """
    found = {Size.parse(cell["size"]): cell for cell in cells}
    dims = sorted({size.dim for size in found})
    rows = [["layer", *map(str, dims)]]
    for layer in sorted({size.layer for size in found}):
        row = [str(layer)]
        for dim in dims:
            cell = found[Size(layer, dim)]
            mark = "*" if cell["size"] in sizes else ""
            row.append(f"{_share(cell['top10_before'])} → {_share(cell['top10'])}{mark}")
        rows.append(row)
    return "\n".join(align_columns(rows, marks="*"))


def write_card(folder: Path, encoder: NestedEncoder, arguments: FitArguments, figures: Mapping[str, Any]) -> None:
    """Write README.md: what was fitted, on which texts, and how good each size is.

    Args:
        folder: The model folder.
        encoder: The fitted encoder.
        arguments: The flags of the run.
        figures: The figures that `fit` returns.
    """
    cells = {cell["size"]: cell for cell in figures["grid"]}
    rows = [["size", "ten nearest kept, cut", "fitted", "cosine to the full embedding", "bytes (float16)"]]
    for size in encoder.sizes:
        cell = cells.get(str(size))
        shown = [_share(cell["top10_before"]), _share(cell["top10"]), _share(cell["cosine"])] if cell else ["–"] * 3
        rows.append([str(size), *shown, str(2 * size.dim)])
    sources = ", ".join(
        f"{source['texts']:,} {source['kind']} of `{Path(source['name']).name}`" for source in figures["sources"]
    )
    name, readable = folder.resolve().name, module_size(encoder) is not None
    datasets = [source["name"] for source in figures["sources"]]
    head = front_matter(name, arguments.model_name_or_path, **embedding_model(readable), datasets=datasets)
    lines = [
        "---",
        head,
        "---",
        f"# {name}, usable at {len(encoder.sizes)} sizes",
        "",
        f"Made with `starbucks fit` from {base_model_text(arguments.model_name_or_path)}: the weights are unchanged, and "
        "a linear map per layer, fitted in closed form on texts without labels, takes the pooled output of each layer "
        "into the space of the full embedding. Every layer and dim can be used, not only the sizes below; scores at the "
        "full size are those of the original model. Embeddings of different layers and the same dim are comparable.",
        "",
        *markdown_table(rows),
        "",
        f"Measured on {figures['held_out']} texts that were held out; `fit.json` has all layers and dims.",
        "",
        "## Use",
        "",
        *usage(name, encoder.sizes[0], readable, encoder.num_layers),
        "",
        modules_note(encoder, (encoder.max_length(True), encoder.max_length(False))),
        "",
        "## Fitting",
        "",
        f"{sources}; of these {figures['held_out']:,} were held out.",
        "",
    ]
    write_text(folder / CARD, "\n".join(lines))


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1"
