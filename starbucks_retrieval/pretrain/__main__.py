"""The command `pretrain`: its flags and its presets; every flag of transformers' TrainingArguments works as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from starbucks_retrieval.cli import exit_command, flag
from starbucks_retrieval.cli.checks import NO_END, NO_OUTPUT, check_training_flags
from starbucks_retrieval.cli.flags import flag_types
from starbucks_retrieval.cli.precedence import parse_training
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES, PretrainOptions

if TYPE_CHECKING:
    from starbucks_retrieval.pretrain.masks import Masking

# Published recipes as values of flags, those of transformers' TrainingArguments included.
_SMAE: dict[str, Any] = {
    "objective": "smae",
    "max_length": 512,
    "encoder_mlm_probability": 0.2,
    "decoder_mlm_probability": 0.4,
    "per_device_train_batch_size": 32,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.05,
    "bf16": True,
    "save_steps": 10000,
    "logging_steps": 100,
}
_RETROMAE: dict[str, Any] = {
    "objective": "retromae",
    "encoder_mlm_probability": 0.3,
    "decoder_mlm_probability": 0.5,
    "learning_rate": 1e-4,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "fp16": True,
    "save_steps": 20000,
}
PRESETS: dict[str, dict[str, Any]] = {
    # arXiv 2410.13230, section 4.1: batches of 512, 32 on each of 8 GPUs accumulated twice
    "starbucks": _SMAE | {"weight_decay": 0.05, "gradient_accumulation_steps": 2},
    # its repository: half of each loss, another weight decay
    "starbucks-released": _SMAE
    | {"variant": "starbucks-released", "weight_decay": 0.001, "gradient_accumulation_steps": 2},
    # Its ablations in Table 3: "- MAE" has no decoder, "- Starbucks" no sizes either
    "starbucks-without-mae": _SMAE | {"objective": "mlm-sizes", "weight_decay": 0.05, "gradient_accumulation_steps": 2},
    "starbucks-without-sizes": _SMAE | {"objective": "mlm", "weight_decay": 0.05, "gradient_accumulation_steps": 2},
    # RetroMAE on general text, 32 on each of 8 GPUs, then on a domain's passages, 128 on each: the two stages of
    # arXiv 2208.00231, in the figures of RetroMAE's repository
    "retromae-stage1": _RETROMAE | {"mode": "blocks", "max_length": 512, "per_device_train_batch_size": 32},
    "retromae-stage2": _RETROMAE | {"max_length": 150, "per_device_train_batch_size": 128},
    # The second stage of arXiv 2208.00231 on NLI pairs, with its contrastive term (eq. 8-9); temperature as for similarity
    "retromae-stage2-nli": _RETROMAE
    | {
        "mode": "pairs",
        "max_length": 150,
        "per_device_train_batch_size": 128,
        "contrastive_weight": 1.0,
        "contrastive_normalize": True,
        "contrastive_temperature": 0.05,
    },
}


@dataclasses.dataclass
class PretrainArguments:
    """Pre-training."""

    model_name_or_path: str = flag("", "backbone: a folder or a hub name", required=True)
    from_scratch: bool = flag(
        False, "take the backbone's architecture and tokenizer alone; --seed draws its weights", rare=True
    )
    dataset_path: list[str] | None = flag(
        None, "text: .txt files (a document a line), jsonl, csv, parquet, BEIR or Arrow folders, ir: or short names"
    )
    dataset_name: str | None = flag(None, "text from the hub (or use --dataset_path)")
    dataset_config: str | None = flag(None, "configuration of the hub data set", rare=True)
    dataset_split: str | None = flag(None, "its split (default: train)", rare=True)
    text_column: str | None = flag(None, "column that holds the text (default: text or contents)", rare=True)
    paragraphs: bool = flag(False, "documents of .txt files end at blank lines, not at every line", rare=True)
    preset: str | None = flag(None, f"a published recipe; flags override it. One of {', '.join(PRESETS)}")

    objective: str = flag("smae", f"the loss. {PRETRAIN_OBJECTIVES.help_text()}", choices=PRETRAIN_OBJECTIVES)
    variant: str = flag("starbucks", "smae: starbucks is the sum of both losses (paper), starbucks-released half of it")
    sizes: str | None = flag(None, "sizes such as 2:32,6:128,12:768 (default: six sizes in the paper's proportions)")
    encoder_mlm_probability: float | None = flag(None, "masked for the encoder (default: 0.2; retromae 0.3)", rare=True)
    decoder_mlm_probability: float | None = flag(None, "masked for the decoder (default: 0.4; retromae 0.5)", rare=True)
    masks: Literal["nested", "independent"] | None = flag(
        None,
        "whether the encoder's masked words are among the decoder's (default: nested for smae, else independent)",
        rare=True,
    )
    replace: Literal["80/10/10", "always_mask"] = flag(
        "80/10/10",
        "masked tokens become the mask token, a random token or stay, in these proportions; or always the mask token",
        rare=True,
    )
    projection: Literal["transform", "linear"] | None = flag(
        None,
        "applied to a truncated state: the head's transform on its first inputs (default), or its matrix alone (eq. 7)",
        rare=True,
    )
    decoder_layers: int | None = flag(None, "layers of a basic decoder (default: 1)", rare=True)
    decoder_init: Literal["first", "random"] | None = flag(
        None, "decoder from the backbone's first layers, or random (default: first; retromae random)", rare=True
    )
    decoder_token_fraction: float | None = flag(
        None, "part of the decoder's targets that each size predicts (default: 1)", rare=True
    )
    size_batch: int | None = flag(None, "sizes that the decoder runs at once (default: all)", rare=True)
    contrastive_weight: float | None = flag(
        None, "weight of InfoNCE between two spans of a document, or two texts of a pair; see --mode", rare=True
    )
    contrastive_temperature: float | None = flag(None, "divides the scores of InfoNCE (default: 1)", rare=True)
    contrastive_normalize: bool | None = flag(None, "cosines instead of dot products", rare=True)

    max_length: int = flag(512, "tokens of a sequence, special tokens included; at most the backbone's limit")
    mode: Literal["window", "blocks", "spans", "pairs"] = flag(
        "window",
        "one random window of a long document; blocks of whole sentences; two spans of each document; or both texts of "
        "each row (anchor, positive) of training groups, such as NLI",
    )
    pack: bool = flag(False, "blocks continue into the next document", rare=True)
    shuffle: int = flag(10000, "documents that are shuffled together; 0 keeps the order of the files", rare=True)
    dropout: float | None = flag(None, "dropout probability of all layers (default: the backbone's)", rare=True)
    max_skipped_steps: int = flag(
        100, "stop after this many steps with NaN or infinite gradients; each such step is skipped", rare=True
    )
    overwrite_output_dir: bool = flag(False, "train into a folder that is not empty")
    override: bool = flag(False, "resume although the configuration differs from the checkpoint's", rare=True)
    dry_run: bool = flag(False, "write nothing; print the work and the bytes it would write")
    print_config: bool = flag(False, "train nothing; print every value and whether a flag, a file or a preset set it")

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise UserError(f"there is no preset {self.preset}", f"use one of {', '.join(PRESETS)}")
        objective = PRETRAIN_OBJECTIVES[self.objective]
        if self.variant != "starbucks" and self.variant not in objective.variants:
            owners = [name for name in PRETRAIN_OBJECTIVES if self.variant in PRETRAIN_OBJECTIVES[name].variants]
            hint = f"it belongs to --objective {' or '.join(owners)}" if owners else "drop --variant"
            raise UserError(f"--objective {self.objective} has no variant {self.variant}", hint)
        if self.contrastive_weight and self.mode not in ("spans", "pairs"):
            raise UserError(
                "--contrastive_weight compares two spans of a document, or the texts of a pair",
                "add --mode spans, or --mode pairs for rows with an anchor and a positive",
            )
        if self.mode == "pairs" and (self.paragraphs or self.text_column):
            raise UserError("--mode pairs reads the columns anchor and positive", "drop --paragraphs and --text_column")
        if self.sizes and objective.options.sizes == "full":
            raise UserError(f"--objective {self.objective} trains the full size alone", "drop --sizes")
        if self.shuffle < 0 or self.max_skipped_steps < 0:
            raise UserError("--shuffle and --max_skipped_steps are not negative", "0 switches them off")
        _ = self.collections

    @property
    def collections(self) -> list[str]:
        """The files and data sets that the text is read from. Raises UserError if none is named."""
        found = [*(self.dataset_path or []), *([self.dataset_name] if self.dataset_name else [])]
        if not found:
            raise UserError("no text to train on", "name it with --dataset_path or --dataset_name")
        return found

    def options(self) -> PretrainOptions:
        """Return the options of the objective and its variant, changed by the flags. Raises UserError for contradictions."""
        objective = PRETRAIN_OBJECTIVES[self.objective]
        names = (
            *("projection", "decoder_layers", "decoder_init", "decoder_token_fraction", "size_batch"),
            *("contrastive_weight", "contrastive_temperature", "contrastive_normalize"),
        )
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(objective.variants.get(self.variant, objective.options), **given)

    def masking(self, options: PretrainOptions) -> Masking:
        """Return the masks of the objective, changed by the flags. Raises UserError for values out of range."""
        from starbucks_retrieval.pretrain.masks import Masking

        objective = PRETRAIN_OBJECTIVES[self.objective]
        encoder, decoder = self.encoder_mlm_probability, self.decoder_mlm_probability
        return Masking(
            encoder_probability=objective.encoder_probability if encoder is None else encoder,
            decoder_probability=objective.decoder_probability if decoder is None else decoder,
            masks=self.masks or objective.masks,
            replace=self.replace,
            decoder=options.decoder if options.mae else "none",
        )


_EXAMPLES = (
    "starbucks pretrain --model_name_or_path bert-base-uncased --dataset_path text.txt --output_dir backbone --max_steps 1000",
    "starbucks pretrain --model_name_or_path bert-base-uncased --preset starbucks --dataset_path corpus.jsonl --output_dir backbone --max_steps 10000",
)
_NOTES = """All flags of transformers' TrainingArguments work too: --output_dir and --max_steps (required),
--per_device_train_batch_size, --learning_rate, --lr_scheduler_type, --bf16, --gradient_checkpointing, --save_steps,
--resume_from_checkpoint true, --dataloader_num_workers 1 ….
Checkpoints: every --save_steps steps (500), and every 15 minutes of a slow run; a run of fewer steps leaves none.
The order is default < preset < file < flag, wherever the preset is named; `--print_config` shows every value and its
source, and the value `default` resets a flag that a preset sets."""


def main(argv: Sequence[str]) -> None:
    """Parse the flags and pre-train."""
    parsed = parse_training(
        PretrainArguments,
        PRESETS,
        argv,
        "starbucks pretrain",
        "Pre-train a backbone so that its small sizes represent a text as well as possible.",
        _EXAMPLES,
        _NOTES,
    )
    check_training_flags(parsed.rest, flag_types(PretrainArguments), {"output_dir": NO_OUTPUT, "max_steps": NO_END})
    from starbucks_retrieval.pretrain.api import DEFAULTS, plan_pretraining, pretrain, settings_of
    from starbucks_retrieval.trainer.settings import run_training

    settings = settings_of(parsed.rest, parsed.arguments, parsed.common)
    run_training(parsed, settings, DEFAULTS, lambda *flags: plan_pretraining(*flags).preview(), pretrain, _summary)


def _summary(figures: dict[str, Any]) -> str:
    rate = figures["tokens"] / max(figures["seconds"], 1e-9)
    steps = f"{figures['steps']} steps in {figures['seconds']} s ({rate:.0f} tokens/s)"
    return f"{steps}; backbone in {figures['output_dir']}; all losses in its training.json"


if __name__ == "__main__":
    exit_command(main)
