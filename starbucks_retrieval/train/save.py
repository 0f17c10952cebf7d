"""Saving and loading a training module, with LoRA adapters merged into the saved model, and the model card."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from starbucks_retrieval.cli.tables import markdown_table
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import umask_permissions
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.architectures import count_parameters
from starbucks_retrieval.models.card import CardScore, embedding_model, usage
from starbucks_retrieval.models.projections import FILE, Projections
from starbucks_retrieval.models.sentence_modules import module_size, modules_note
from starbucks_retrieval.sizes import Sizes, pair_name
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.module import TrainingModule
from starbucks_retrieval.train.plan import TrainPlan
from starbucks_retrieval.trainer.trainer import ModelCard

_ADAPTER = Path("adapter") / "adapter.safetensors"
_NAME = "default"
_PREFIX = "encoder.backbone."
_MAPS_PREFIX = "encoder.projections."
_HEAD_PREFIX = "encoder.head."


def add_lora(module: TrainingModule, arguments: TrainArguments) -> None:
    """Freeze a backbone and add trainable LoRA adapters, in place. Its class and the paths to its layers do not change.

    Source: LoRA (arXiv 2106.09685), through the library peft.

    Args:
        module: The module whose backbone gets adapters.
        arguments: Flags of `train`: those that begin with `lora`.

    Raises:
        UserError: No module has a name of `--lora_target_modules`.
    """
    from peft import LoraConfig, inject_adapter_in_model

    rank, alpha, targets = arguments.lora_r, arguments.lora_alpha, arguments.lora_target_modules
    modules: Any = targets if targets == "all-linear" else targets.split(",")
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=arguments.lora_dropout, target_modules=modules)
    backbone = module.encoder.backbone
    try:
        inject_adapter_in_model(config, backbone, adapter_name=_NAME)
    except ValueError as error:
        raise UserError(f"--lora_target_modules {targets}: {error}", "name linear modules of the backbone") from None
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_("lora_" in name)
    module.lora_scale = alpha / rank


def merged(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return weights with adapters as plain weights: W + scale · B A instead of W, A and B.

    Args:
        state: Weights by name, as peft names them; they are not changed.
        scale: The scale of the adapters: alpha / rank.

    Returns:
        Weights by the names that they have without adapters.
    """
    plain = {name.replace(".base_layer.", "."): weight for name, weight in state.items() if ".lora_" not in name}
    for name, weight in state.items():
        if ".lora_A." in name:
            target = name.replace(f".lora_A.{_NAME}", "")
            up = state[name.replace(".lora_A.", ".lora_B.")]
            delta = scale * (up.float() @ weight.float())
            plain[target] = plain[target] + delta.to(plain[target])
    return plain


def save_model(module: TrainingModule, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write the encoder of a training module as a model folder, in float32 and with adapters merged.

    Args:
        module: The module.
        folder: The folder; it is created if it does not exist.
        state: The module's weights by name, if they were gathered from several processes.
    """
    from safetensors.torch import save_file

    backbone = module.encoder.backbone
    if state is None:
        weights, maps, head = backbone.state_dict(), None, None
    else:
        weights = _named(state, _PREFIX)
        maps, head = _named(state, _MAPS_PREFIX) or None, _named(state, _HEAD_PREFIX) or None
    folder.mkdir(parents=True, exist_ok=True)
    adapters = {name: weight.contiguous().cpu() for name, weight in weights.items() if ".lora_" in name}
    if adapters:  # a resumed run cannot recover them from merged weights
        (folder / _ADAPTER).parent.mkdir(exist_ok=True)
        with umask_permissions(folder / _ADAPTER.parent):
            save_file(adapters, str(folder / _ADAPTER))
        weights = merged(weights, module.lora_scale)
    # Training keeps float32 weights, whatever precision it computes in.
    module.encoder.save_pretrained(folder, {name: weight.float() for name, weight in weights.items()}, maps, head)


def _named(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in state.items() if name.startswith(prefix)}


def load_model(module: TrainingModule, folder: Path) -> None:
    """Read the weights of a saved encoder into a module.

    Args:
        module: The module; its backbone, its head and its projections are changed in place.
        folder: A model folder that `save_model` wrote. If it holds adapters, they are read instead of the backbone.
    """
    from safetensors.torch import load_file

    from starbucks_retrieval.models.head import load_head
    from starbucks_retrieval.models.loading import load_backbone

    if module.encoder.head is not None:
        head = load_head(str(folder), module.encoder.head.folders, module.encoder.backbone.config.hidden_size)
        assert head is not None
        _copy(head.state_dict(), module.encoder.head)
    if module.encoder.projections is not None:
        _copy(Projections.load(folder / FILE).state_dict(), module.encoder.projections)
    if (folder / _ADAPTER).is_file():
        _copy(load_file(str(folder / _ADAPTER)), module.encoder.backbone, strict=False)
        return
    backbone, _, _ = load_backbone(str(folder))
    _copy(backbone.state_dict(), module.encoder.backbone)


def _copy(weights: dict[str, Tensor], target: nn.Module, strict: bool = True) -> None:
    if all(type(parameter.data) is Tensor for parameter in target.parameters()):
        target.load_state_dict(weights, strict=strict)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    # FSDP: each process keeps its shard of the weights.
    set_model_state_dict(target, weights, options=StateDictOptions(full_state_dict=True, strict=strict))


def write_card(
    plan: TrainPlan, module: TrainingModule, recipe: dict[str, Any], history: Sequence[dict[str, Any]]
) -> None:
    """Write README.md: the model, its sizes with dev scores before and after training, its use and its recipe.

    Args:
        plan: The plan of the run, which names the model folder.
        module: The trained module.
        recipe: Further entries of the section on training.
        history: The log of the run; its first and last dev scores are shown.
    """
    folder, arguments, lengths = plan.output, plan.arguments, plan.lengths
    encoder, options = module.encoder, module.objective.options
    config, sizes = encoder.config, encoder.sizes
    scored = [entry for entry in history if any(key.startswith("eval_") for key in entry)]
    score = "cosine" if config.normalize else "dot product"
    about = (
        f"A text encoder trained with {LOSSES[arguments.objective].title}: its embedding can be taken "
        f"after any of the layers below and cut to the dims beside them. Pooling: {config.pooling}; score: {score}."
    )
    note = modules_note(encoder, (encoder.max_length(True), encoder.max_length(False)))
    readable = module_size(encoder) is not None
    ModelCard(
        **embedding_model(readable),
        title=f"{Path(encoder.name or folder).name}, usable at {len(sizes)} sizes",
        about=[about, "", *_size_table(encoder, sizes, scored), *_depths(encoder, sizes), "", note],
        use=usage(folder.resolve().name, sizes[0], readable, encoder.num_layers),
        data=("Data", arguments.collections),
        recipe={
            "objective": f"{arguments.objective} {arguments.variant or ''}".strip(),
            **recipe,
            **{f"objective {name}": value for name, value in dataclasses.asdict(options).items()},
            "lengths": f"queries {lengths[0]}, passages {lengths[1]} tokens",
        },
        scores=_scores(arguments, sizes, scored),
    ).write(folder, arguments.model_name_or_path)


def _size_table(encoder: NestedEncoder, sizes: Sizes, scored: Sequence[dict[str, Any]]) -> list[str]:
    measures = [key[5:].split("/")[0] for key in scored[0] if key.endswith(f"/{sizes[0]}")] if scored else []
    columns = [f"{measure} {when}" for measure in measures for when in ("before", "after")]
    head = ["size", "parameters", "bytes per passage (float16)", *columns]
    rows = [head]
    for size in sizes:
        cells = [str(size), f"{count_parameters(encoder, size):,}", str(2 * size.dim)]
        for measure in measures:
            key = f"eval_{measure}/{size}"
            cells += [f"{scored[0][key]:.4f}", f"{scored[-1][key]:.4f}"]
        rows.append(cells)
    return markdown_table(rows)


def _scores(arguments: TrainArguments, sizes: Sizes, scored: Sequence[dict[str, Any]]) -> list[CardScore]:
    """Return the last scores on the dev set; none if it was scored before training only."""
    if len(scored) < 2 or arguments.eval_dataset_path is None:
        return []
    task = "semantic-similarity" if arguments.task == "sts" else "information-retrieval"
    dataset, split = arguments.eval_dataset_path, arguments.eval_dataset_split
    return [
        CardScore(task, dataset, split, key[5:].split("/")[0], str(size), value)
        for size in sizes
        for key, value in scored[-1].items()
        if key.startswith("eval_") and key.endswith(f"/{size}")
    ]


def _depths(encoder: NestedEncoder, sizes: Sizes) -> list[str]:
    """Return a sentence about passages that are encoded at other layers than their queries."""
    pairs = [pair_name(size, encoder.config.passage_size(size)) for size in sizes]
    deeper = [pair for pair in pairs if "/" in pair]
    return [
        "",
        f"Sizes are those of queries; passages use other layers (queries/passages): {', '.join(deeper)}.",
    ] * bool(deeper)
