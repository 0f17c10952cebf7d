"""transformers' TrainingArguments, with our defaults and our errors."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from transformers import TrainingArguments

# What must not change between the parts of one run.
_KEPT = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "optim"),
    *("num_train_epochs", "max_steps", "seed", "bf16", "fp16"),
)


def hugging_face_arguments(argv: list[str], common: CommonArguments, defaults: dict[str, Any]) -> TrainingArguments:
    """TrainingArguments from flags, over `defaults`, over those that all stages share."""
    import torch
    from transformers import HfArgumentParser, TrainingArguments

    if gives(argv, "deepspeed") and not importlib.util.find_spec("deepspeed"):
        raise UserError("--deepspeed needs deepspeed", "pip install 'starbucks-retrieval[deepspeed]'")

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise UserError(message, "see --help, and transformers' TrainingArguments for its flags")

    parser = Parser(TrainingArguments, allow_abbrev=False)
    shared: dict[str, Any] = {
        "logging_steps": 10,
        "save_total_limit": 2,
        "report_to": "none",
        "use_cpu": not torch.accelerator.is_available(),  # --bf16 is refused on a CPU that was not asked for
        "seed": common.seed,
        "data_seed": common.seed,
        "disable_tqdm": common.quiet or not sys.stderr.isatty(),
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "label_names": [],
        # Every step reaches every weight: looking for others would only cost time.
        "ddp_find_unused_parameters": False,
    }
    parser.set_defaults(**shared | defaults)
    try:
        with warnings.catch_warnings():
            # Presets say gradient_checkpointing, the name that every transformers 5 knows.
            warnings.filterwarnings("ignore", "`gradient_checkpointing", FutureWarning)
            (parsed,) = parser.parse_args_into_dataclasses(args=argv)
    except ValueError as error:
        raise UserError(" ".join(str(error).split()), "see transformers' TrainingArguments") from None
    if not parsed.output_dir:
        raise UserError("--output_dir is missing", "name the folder for the model")
    return parsed


def gives(argv: list[str], flag: str) -> bool:
    """Whether a flag is among the words of a command line."""
    return any(word == f"--{flag}" or word.startswith(f"--{flag}=") for word in argv)


def kept_settings(settings: TrainingArguments) -> dict[str, Any]:
    """Those settings that a resumed run must agree in with the run it goes on with."""
    return {name: str(getattr(settings, name)) for name in _KEPT} | {"processes": settings.world_size}
