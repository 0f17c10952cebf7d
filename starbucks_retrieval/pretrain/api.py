"""pretrain(): from flags and text to a backbone that train() takes."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.pretrain.arguments import PretrainArguments
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.trainer.checkpoints import check_resume_config, locked_output_dir
from starbucks_retrieval.trainer.distributed import first_process
from starbucks_retrieval.trainer.settings import fixed_settings, has_flag, parse_settings

if TYPE_CHECKING:
    from transformers import TrainingArguments


log = logging.getLogger(__name__)

_FREE = ("overwrite_output_dir", "override", "max_skipped_steps", "size_batch", "dry_run", "print_config")
# Ours for transformers' TrainingArguments, beside those that all stages share.
DEFAULTS: dict[str, Any] = {"warmup_steps": 0.05, "ignore_data_skip": True, "ddp_find_unused_parameters": None}


def settings_of(argv: list[str], common: CommonArguments) -> TrainingArguments:
    """transformers' TrainingArguments from the flags that are not ours, with our defaults."""
    if has_flag(argv, "deepspeed") or has_flag(argv, "fsdp"):
        raise UserError("pre-training runs in one process or with DDP", "drop --deepspeed and --fsdp")
    settings = parse_settings(argv, common, DEFAULTS)
    if settings.max_steps < 1:
        raise UserError("a stream of text has no end", "say with --max_steps how long to train")
    return settings


def pretrain(arguments: PretrainArguments, settings: TrainingArguments) -> dict[str, Any]:
    """Train on text, and write the model folder that `settings.output_dir` names. Returns figures for a summary.

    Raises UserError for text without documents, a tokenizer without a mask token, contradicting options, sizes beyond
    the backbone, or an output folder that holds something else.
    """
    with locked_output_dir(
        Path(str(settings.output_dir)), settings.resume_from_checkpoint, arguments.overwrite_output_dir
    ) as resume:
        return _pretrain(arguments, settings, resume)


def _pretrain(arguments: PretrainArguments, settings: TrainingArguments, resume: str | None) -> dict[str, Any]:
    import torch
    from transformers import set_seed

    from starbucks_retrieval.models.architectures import token_limit
    from starbucks_retrieval.pretrain.card import write_card
    from starbucks_retrieval.pretrain.data import PretrainingData
    from starbucks_retrieval.pretrain.documents import open_documents
    from starbucks_retrieval.pretrain.module import PretrainingModule
    from starbucks_retrieval.pretrain.trainer import PretrainingTrainer, read_place
    from starbucks_retrieval.trainer.trainer import train_and_save

    output = Path(str(settings.output_dir))
    set_seed(settings.seed)
    options = arguments.options()
    masking = arguments.masking(options)
    sources = [
        open_documents(
            name,
            column=arguments.text_column,
            paragraphs=arguments.paragraphs,
            config=arguments.dataset_config,
            split=arguments.dataset_split,
        )
        for name in arguments.collections
    ]
    module = PretrainingModule.from_pretrained(
        arguments.model_name_or_path, _asked(arguments), options, dropout=arguments.dropout, seed=settings.seed
    )
    limit = token_limit(module.config, module.tokenizer)
    if arguments.max_length > limit:
        log.info("max_length %d: the backbone's limit", limit)
    length = min(arguments.max_length, limit)
    if length == limit:
        length -= length % 8  # batches are padded to a multiple of 8, which must not go beyond
    log.info("objective %s; sizes: %s; sequences of %d tokens", arguments.objective, module.sizes, length)
    data = PretrainingData(
        sources,
        module.tokenizer,
        max_length=length,
        batch_size=settings.per_device_train_batch_size,
        masking=masking,
        mode=arguments.mode,
        pack=arguments.pack,
        shuffle=arguments.shuffle,
        seed=settings.seed,
        rank=settings.process_index,
        world=settings.world_size,
        state=read_place(Path(resume), settings.process_index) if resume else None,
    )
    configuration = {k: v for k, v in dataclasses.asdict(arguments).items() if k not in _FREE} | fixed_settings(
        settings
    )
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
        whole = {**describe(full), "history": trainer.state.log_history, "figures": figures(done)}
        write_json(output / "training.json", whole)

    def card(done: Any) -> None:
        write_card(output, module, arguments, masking, settings, figures(done), trainer.state.log_history)

    return figures(train_and_save(trainer, resume, record, card))


def _asked(arguments: PretrainArguments) -> Sizes | None:
    if arguments.sizes is None:
        return None
    return Sizes.parse(arguments.sizes)
