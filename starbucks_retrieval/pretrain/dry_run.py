"""What `pretrain` would do: sizes, steps, tokens and bytes, from the backbone's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli.dry_run import Preview
from starbucks_retrieval.models.info import model_info
from starbucks_retrieval.pretrain.arguments import PretrainArguments
from starbucks_retrieval.pretrain.documents import open_documents
from starbucks_retrieval.pretrain.options import visited_sizes
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.store.info import readable
from starbucks_retrieval.trainer.settings import dry_run_figures

if TYPE_CHECKING:
    from transformers import TrainingArguments


def preview(arguments: PretrainArguments, settings: TrainingArguments) -> Preview:
    """Say what `pretrain` would do with the same flags; nothing is written, no weights and no texts are read.

    Bytes leave out the decoder and the heads, which checkpoints hold besides. Raises UserError as `pretrain` would for
    flags, backbone and sources that a look can tell are wrong.
    """
    model = model_info(arguments.model_name_or_path)
    options = arguments.options()
    arguments.masking(options)
    for name in arguments.collections:
        open_documents(
            name,
            config=arguments.dataset_config,
            split=arguments.dataset_split,
            column=arguments.text_column,
            paragraphs=arguments.paragraphs,
        )
    depth, width = model.num_layers, model.hidden_size
    asked = Sizes.parse(arguments.sizes) if arguments.sizes else None
    model_sizes = asked or model.config.sizes or Sizes.default(depth, width)
    sizes = visited_sizes(options, model_sizes, depth, width)
    length = min(arguments.max_length, model.token_limit)
    parameters = model.parameters(model.num_layers)
    shared = dry_run_figures(settings, parameters, int(settings.max_steps), arguments.overwrite_output_dir)
    steps, rows, kept = shared["steps"], shared["rows_per_step"], shared["checkpoints"]
    figures: dict[str, Any] = {
        "model": arguments.model_name_or_path,
        "objective": arguments.objective,
        "sizes": str(sizes),
        "parameters": parameters,
        "max_length": length,
        "tokens_per_step": rows * length,
        "tokens": steps * rows * length,
        **shared,
        "seconds": None,
    }
    saved = f"{kept} checkpoints beside the backbone" if kept else "no checkpoints"
    place = f"to {figures['output_dir']} ({figures['state']}); {readable(figures['free_bytes'] or 0)} free there"
    lines = [
        ("model", f"{figures['model']}: {model.num_layers} layers, {parameters / 1e6:.1f} M parameters"),
        ("sizes", f"{sizes} by {arguments.objective}"),
        ("text", ", ".join(arguments.collections)),
        (
            "steps",
            f"{steps:,} of {rows} sequences of up to {length} tokens, up to {figures['tokens'] / 1e6:,.1f} M tokens",
        ),
        ("device", f"{settings.device}, {settings.world_size} processes"),
        ("writes", f"about {readable(figures['bytes'])} with {saved}, {place}"),
        (
            "memory",
            f"{readable(figures['memory'])} for weights, gradients and optimizer; heads and activations come on top",
        ),
        ("time", "not estimated: the first logged steps tell"),
    ]
    return Preview(lines, figures)
