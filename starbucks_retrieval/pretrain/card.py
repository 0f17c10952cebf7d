"""The model card that pretrain writes beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from starbucks_retrieval.cli.tables import markdown_table
from starbucks_retrieval.models.info import base_model, base_model_text
from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES
from starbucks_retrieval.pretrain.arguments import PretrainArguments
from starbucks_retrieval.pretrain.masks import Masking
from starbucks_retrieval.pretrain.module import PretrainingModule
from starbucks_retrieval.trainer.settings import recipe_of, rows_per_step


def write_pretraining_card(
    folder: Path,
    module: PretrainingModule,
    arguments: PretrainArguments,
    masking: Masking,
    settings: Any,
    figures: dict[str, Any],
    history: Sequence[dict[str, Any]],
) -> None:
    """Write README.md: the method, the first and last losses, how to fine-tune the backbone, and how it was trained.

    Args:
        folder: The model folder.
        module: The pre-trained module.
        arguments: Flags of `pretrain`.
        masking: The masks.
        settings: transformers' TrainingArguments.
        figures: The summary that `pretrain` returns.
        history: The log of transformers' Trainer, whose first and last losses are shown.
    """
    base = arguments.model_name_or_path
    head = {"library_name": "transformers", "pipeline_tag": "fill-mask", **base_model(base), "tags": ["starbucks"]}
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).strip(),
        "---",
        f"# {folder.name}, a backbone for embeddings of many sizes",
        "",
        f"A masked language model pre-trained by {PRETRAIN_OBJECTIVES[arguments.objective].title}, to be fine-tuned before its embeddings "
        "are useful. Only a resumed run reads the folder `decoder`.",
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
        "steps skipped for NaN or infinite gradients": figures["skipped_steps"],
        "tokens": figures["tokens"],
        "sequences per step": rows_per_step(settings),
        **recipe_of(settings),
        **{f"option {name}": value for name, value in dataclasses.asdict(module.options).items()},
        **{f"mask {name}": value for name, value in dataclasses.asdict(masking).items()},
    }
