"""The model card that pretrain writes beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.cli.tables import markdown_table
from starbucks_retrieval.models.info import base_model, base_model_text
from starbucks_retrieval.pretrain.arguments import PretrainArguments
from starbucks_retrieval.pretrain.masks import Masking
from starbucks_retrieval.pretrain.module import PretrainingModule

_METHODS = {
    "smae": "Starbucks masked auto-encoding (arXiv 2410.13230)",
    "smae-enhanced": "Starbucks masked auto-encoding (arXiv 2410.13230) with RetroMAE's enhanced decoding",
    "mlm-sizes": "masked language modelling at every size (arXiv 2410.13230, Table 3)",
    "mlm": "masked language modelling",
    "retromae": "RetroMAE (arXiv 2205.12035)",
    "retromae-basic": "RetroMAE (arXiv 2205.12035) with basic decoding",
}


def write_card(
    folder: Path,
    module: PretrainingModule,
    arguments: PretrainArguments,
    masking: Masking,
    settings: Any,
    figures: dict[str, Any],
    history: Sequence[dict[str, Any]],
) -> None:
    """Write README.md: what the backbone is, how it was trained, its losses first and last, how to go on with it."""
    base = arguments.model_name_or_path
    head = {"library_name": "transformers", "pipeline_tag": "fill-mask", **base_model(base), "tags": ["starbucks"]}
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).strip(),
        "---",
        f"# {folder.name}, a backbone for embeddings of many sizes",
        "",
        f"A masked language model pre-trained by {_METHODS[arguments.objective]}, to be fine-tuned before its embeddings "
        "are of use. The folder `decoder` is read by nothing but a resumed run.",
        "",
        *_losses(history),
        "## Use",
        "",
        "```bash",
        f"starbucks train --model_name_or_path {folder.name} --dataset_path my-training-groups --output_dir my-model",
        "```",
        "",
        "## Training",
        "",
        f"Base model: {base_model_text(base)}. Text: {', '.join(f'`{Path(name).name}`' for name in arguments.collections)}.",
        "",
        *(f"- {name}: {value}" for name, value in _recipe(module, masking, settings, figures).items()),
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _losses(history: Sequence[dict[str, Any]]) -> list[str]:
    logged = [entry for entry in history if "loss" in entry]
    if not logged:
        return []
    names = [name for name in logged[0] if name.startswith(("enc/", "dec/", "ctr"))]
    values = [[name, f"{logged[0][name]:.4f}", f"{logged[-1].get(name, float('nan')):.4f}"] for name in names]
    return [*markdown_table([["loss", "first logged", "last logged"], *values]), ""]


def _recipe(module: PretrainingModule, masking: Masking, settings: Any, figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "sizes": figures["sizes"],
        "steps": figures["steps"],
        "steps left out for a gradient that is no number": figures["skipped_steps"],
        "tokens": figures["tokens"],
        "sequences per step": settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size,
        "learning rate": settings.learning_rate,
        "schedule": f"{settings.lr_scheduler_type.value}, warm-up {format_number(settings.warmup_steps)}",
        "weight decay": settings.weight_decay,
        "precision": "bf16" if settings.bf16 else "fp16" if settings.fp16 else "fp32",
        "seed": settings.seed,
        **{f"option {name}": value for name, value in dataclasses.asdict(module.options).items()},
        **{f"mask {name}": value for name, value in dataclasses.asdict(masking).items()},
    }
