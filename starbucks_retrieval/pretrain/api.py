"""Plan and run pre-training: from flags and text to a backbone that `train` takes."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.cli.checks import NO_END
from starbucks_retrieval.cli.dry_run import Preview
from starbucks_retrieval.data import Records
from starbucks_retrieval.data.documents import open_documents, open_text_pairs
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.pretrain import PretrainOptions, visited_sizes
from starbucks_retrieval.pretrain.masks import Masking
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.trainer import check_resume_config, locked_output_dir
from starbucks_retrieval.trainer.distributed import first_process
from starbucks_retrieval.trainer.settings import (
    dry_run_figures,
    dry_run_lines,
    fixed_settings,
    has_flag,
    parse_settings,
    recipe_of,
    rows_per_step,
)

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from starbucks_retrieval.models.info import ModelInfo
    from starbucks_retrieval.pretrain import PretrainArguments
    from starbucks_retrieval.pretrain.data import PretrainingData
    from starbucks_retrieval.pretrain.module import PretrainingModule

log = logging.getLogger(__name__)

# Flags that a resumed run may change.
_NOT_RESUMED = (
    *("overwrite_output_dir", "override", "max_skipped_steps", "size_batch", "dry_run", "print_config"),
    "from_scratch",  # weights come from the checkpoint
)
# Our defaults of transformers' TrainingArguments, besides those shared with `train`.
DEFAULTS: dict[str, Any] = {"warmup_steps": 0.05, "ignore_data_skip": True, "ddp_find_unused_parameters": None}


def settings_of(argv: list[str], arguments: PretrainArguments, common: CommonArguments) -> TrainingArguments:
    """Return transformers' TrainingArguments from the remaining flags, with our defaults.

    Args:
        argv: The words of the command line that are no flags of this package.
        arguments: Flags of `pretrain`.
        common: The flags of every command; the seed comes from them.

    Raises:
        UserError: DeepSpeed or FSDP is requested, --max_steps is missing, or as `parse_settings`.
    """
    if has_flag(argv, "deepspeed") or has_flag(argv, "fsdp"):
        raise UserError("pre-training runs in one process or with DDP", "drop --deepspeed and --fsdp")
    settings = parse_settings(argv, common, DEFAULTS, type(arguments))
    if settings.max_steps < 1:
        raise UserError(*NO_END)
    return settings


@dataclasses.dataclass(frozen=True)
class PretrainPlan:
    """Everything that pre-training derives from flags, the backbone's configuration and the names of the texts.

    Attributes:
        arguments: Flags of `pretrain`.
        settings: Flags of transformers.
        model: Configuration of the backbone; weights are not read.
        options: The loss.
        masking: The masks.
        sources: The texts, opened but not read.
        sizes: The sizes that the loss is taken at.
        max_length: Tokens of a sequence, special tokens included.
    """

    arguments: PretrainArguments
    settings: TrainingArguments
    model: ModelInfo
    options: PretrainOptions
    masking: Masking
    sources: list[Records[str]]
    sizes: Sizes
    max_length: int

    def preview(self) -> Preview:
        """Return the lines and figures of `--dry_run`. Bytes leave out the decoder and the heads of checkpoints."""
        arguments, settings, model = self.arguments, self.settings, self.model
        parameters = model.backbone_parameters(model.num_layers)
        shared = dry_run_figures(settings, parameters, int(settings.max_steps), arguments.overwrite_output_dir)
        steps, rows = shared["steps"], shared["rows_per_step"]
        figures: dict[str, Any] = {
            "model": arguments.model_name_or_path,
            "objective": arguments.objective,
            "sizes": str(self.sizes),
            "parameters": parameters,
            "max_length": self.max_length,
            "tokens_per_step": rows * self.max_length,
            "tokens": steps * rows * self.max_length,
            "seconds": None,
            **shared,
        }
        sequences = f"{rows} sequences of up to {self.max_length} tokens"
        lines = [
            ("model", f"{figures['model']}: {model.num_layers} layers, {parameters / 1e6:.1f} M parameters"),
            ("sizes", f"{self.sizes} by {arguments.objective}"),
            ("text", ", ".join(arguments.collections)),
            ("steps", f"{steps:,} of {sequences}, up to {figures['tokens'] / 1e6:,.1f} M tokens"),
            *dry_run_lines(figures, "backbone", "heads and activations"),
            ("time", "not estimated: see the first logged steps"),
        ]
        return Preview(lines, figures)


def plan_pretraining(arguments: PretrainArguments, settings: TrainingArguments) -> PretrainPlan:
    """Check flags, backbone and texts without reading weights or documents.

    Args:
        arguments: Flags of `pretrain`.
        settings: Flags of transformers, from `settings_of`.

    Returns:
        The plan. Its sizes are those of `--sizes`, else those that the backbone stores, else the default ones; its
        length is `--max_length` or less, as the backbone admits.

    Raises:
        UserError: A flag contradicts another, the sizes do not fit the backbone, or a text or the backbone is missing.
    """
    from starbucks_retrieval.models.info import model_info

    model = model_info(arguments.model_name_or_path)
    options = arguments.options()
    masking = arguments.masking(options)
    where = {"config": arguments.dataset_config, "split": arguments.dataset_split}
    how = {"column": arguments.text_column, "paragraphs": arguments.paragraphs}
    pairs = arguments.mode == "pairs"
    sources = [
        open_text_pairs(name, **where) if pairs else open_documents(name, **how, **where)  # type: ignore[arg-type]
        for name in arguments.collections
    ]
    depth, width = model.num_layers, model.hidden_size
    model_sizes = Sizes.parse(arguments.sizes) if arguments.sizes else model.config.sizes or Sizes.default(depth, width)
    sizes = visited_sizes(options, model_sizes, depth, width)
    if arguments.max_length > model.token_limit:
        log.info("max_length %d: the backbone's limit", model.token_limit)
    length = min(arguments.max_length, model.token_limit)
    if length == model.token_limit:
        length -= length % 8  # batches are padded to a multiple of 8, which must not exceed the limit
    return PretrainPlan(arguments, settings, model, options, masking, sources, sizes, length)


def pretrain(arguments: PretrainArguments, settings: TrainingArguments) -> dict[str, Any]:
    """Pre-train a backbone and write its model folder.

    Args:
        arguments: Flags of `pretrain`.
        settings: transformers' TrainingArguments; `output_dir` names the model folder.

    Returns:
        Figures for a summary: sizes, steps, skipped steps, tokens, seconds, loss and dropped documents.

    Raises:
        UserError: A text has no documents, the tokenizer has no mask token, options contradict each other, sizes do
            not fit the backbone, or the output folder holds something else.

    Example:
        >>> from transformers import TrainingArguments  # doctest: +SKIP
        >>> pretrain(PretrainArguments("bert-base-uncased", dataset_path=["text.txt"]),
        ...          TrainingArguments("backbone", max_steps=1000))  # doctest: +SKIP
    """
    with locked_output_dir(settings, arguments.overwrite_output_dir) as resume:
        return _run(plan_pretraining(arguments, settings), resume)


def _run(plan: PretrainPlan, resume: str | None) -> dict[str, Any]:
    import torch
    from transformers import set_seed

    from starbucks_retrieval.pretrain.trainer import PretrainingTrainer, write_card
    from starbucks_retrieval.trainer.trainer import train_and_save

    arguments, settings = plan.arguments, plan.settings
    output = Path(str(settings.output_dir))
    set_seed(settings.seed)
    module = _load_module(plan)
    log.info("objective %s; sizes: %s; sequences of %d tokens", arguments.objective, module.sizes, plan.max_length)
    data = _open_data(plan, module.tokenizer, resume)
    flags = {name: value for name, value in dataclasses.asdict(arguments).items() if name not in _NOT_RESUMED}
    configuration = flags | fixed_settings(settings)
    first_process(lambda: check_resume_config(output, configuration, bool(resume), arguments.override))
    trainer = PretrainingTrainer(
        model=module, args=settings, train_dataset=data, max_skipped_steps=arguments.max_skipped_steps
    )
    torch.manual_seed(settings.seed + settings.process_index)  # dropout differs between processes

    def figures(done: Any) -> dict[str, Any]:
        return {
            "output_dir": str(output),
            "objective": arguments.objective,
            "sizes": str(module.sizes),
            "steps": trainer.state.global_step,
            "skipped_steps": trainer.skipper.skipped,
            "tokens": trainer.tokens * settings.world_size,
            "seconds": round(done.metrics["train_runtime"], 1) if done else None,
            "loss": done.training_loss if done else None,
            "dropped_documents": dict(data.cutter.dropped),
        }

    def record(done: Any) -> None:
        full = {"pretrain": dataclasses.asdict(arguments), "transformers": settings.to_dict()}
        content = {**describe(full), "history": trainer.state.log_history, "figures": figures(done)}
        write_json(output / "training.json", content)

    def card(done: Any) -> None:
        recipe = _recipe(plan, figures(done))
        write_card(output, arguments, module, recipe, trainer.state.log_history)

    return figures(train_and_save(trainer, resume, record, card))


def _load_module(plan: PretrainPlan) -> PretrainingModule:
    from starbucks_retrieval.pretrain.module import PretrainingModule

    arguments = plan.arguments
    return PretrainingModule.from_pretrained(
        arguments.model_name_or_path,
        Sizes.parse(arguments.sizes) if arguments.sizes else None,
        plan.options,
        dropout=arguments.dropout,
        seed=plan.settings.seed,
        from_scratch=arguments.from_scratch,
    )


def _open_data(plan: PretrainPlan, tokenizer: Any, resume: str | None) -> PretrainingData:
    """Open the texts of this process, from where the checkpoint `resume` left them."""
    from starbucks_retrieval.pretrain.data import PretrainingData
    from starbucks_retrieval.pretrain.trainer import read_text_position

    arguments, settings = plan.arguments, plan.settings
    return PretrainingData(
        plan.sources,
        tokenizer,
        max_length=plan.max_length,
        batch_size=settings.per_device_train_batch_size,
        masking=plan.masking,
        mode=arguments.mode,
        pack=arguments.pack,
        shuffle=arguments.shuffle,
        seed=settings.seed,
        rank=settings.process_index,
        world=settings.world_size,
        state=read_text_position(Path(resume), settings.process_index)["state"] if resume else None,
    )


def _recipe(plan: PretrainPlan, figures: dict[str, Any]) -> dict[str, Any]:
    scratch = {"weights": f"from scratch, drawn from seed {plan.settings.seed}"} if plan.arguments.from_scratch else {}
    return {
        **scratch,
        "sizes": figures["sizes"],
        "steps": figures["steps"],
        "steps skipped for NaN or infinite gradients": figures["skipped_steps"],
        "tokens": figures["tokens"],
        "sequences per step": rows_per_step(plan.settings),
        **recipe_of(plan.settings),
        **{f"mask {name}": value for name, value in dataclasses.asdict(plan.masking).items()},
    }
