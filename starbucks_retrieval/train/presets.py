"""Recipes as flags, ours and those of transformers' TrainingArguments.

All but `distil` are published: a plain name follows a paper, and `-released` follows its code where the two differ. They
keep a query's other known positives among its negatives, as all papers and codes do, so that compared methods treat them
alike.
"""

from __future__ import annotations

import logging
from typing import Any

from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_MSMARCO: dict[str, Any] = {
    "pooling": "cls",
    "normalize": False,
    "temperature": 1.0,
    "query_max_len": 32,
    "passage_max_len": 196,
    "train_group_size": 8,
    "false_negatives": "keep",
    "per_device_train_batch_size": 128,
    "learning_rate": 1e-4,
    "num_train_epochs": 3,
    "warmup_steps": 0.1,
    "save_steps": 2000,
    "logging_steps": 10,
}
_NLI: dict[str, Any] = {
    "task": "sts",
    "pooling": "mean",
    "normalize": True,
    "temperature": 0.05,
    "query_max_len": 512,
    "passage_max_len": 512,
    "train_group_size": 2,
    "false_negatives": "keep",
    "per_device_train_batch_size": 128,
    "learning_rate": 5e-5,
    "num_train_epochs": 1,
    "warmup_steps": 0.1,
    "fp16": True,
    "gradient_checkpointing": True,
}
# 2DMSE-Reproduce accumulates 128 batches of 128 and warms up for 50 steps.
_REPRODUCED_NLI = _NLI | {
    "gradient_accumulation_steps": 128,
    "num_train_epochs": 10,
    "warmup_steps": 50,
    "gradient_checkpointing": False,
}
# AnglE's losses on NLI triples, and lengths of its commands
_ANGLE = _REPRODUCED_NLI | {
    "objective": "2dmse-v2",
    "pooling": "cls",
    "query_max_len": 128,
    "passage_max_len": 128,
    "contrastive_weight": 30.0,
    "angle_weight": 1.0,
}
# Single models: BERT (full), and BERT-S, one model a size (separate: add --sizes 6:128)
_SINGLE = ("full", "separate")
_SRL_MSMARCO = _MSMARCO | {"kl_weight": 1.0, "bf16": True, "gradient_checkpointing": True}
_V2_MSMARCO = _MSMARCO | {"objective": "2dmse-v2", "gradient_checkpointing": True, "save_steps": 500}
_ALL_DIMS = "8,16,32,64,128,256,512,768"

PRESETS: dict[str, dict[str, Any]] = {
    # Ours, no published recipe: minutes of distillation without labels; pooling and score are the model's
    "distil": {
        "objective": "distil",
        "objective_options": ["asymmetric_weight=1", "full_weight=20"],
        "query_max_len": 128,
        "passage_max_len": 128,
        "dropout": 0.0,
        "per_device_train_batch_size": 48,
        "learning_rate": 5e-5,
        "projection_learning_rate": 3e-4,
        "max_steps": 200,
        "warmup_steps": 0.1,
    },
    # arXiv 2410.13230, Table 6 and the repository's README (bf16 there, fp16 in the table)
    "starbucks-msmarco": _SRL_MSMARCO,
    # The released code sums over the sizes.
    "starbucks-msmarco-released": _SRL_MSMARCO | {"variant": "starbucks-released"},
    # Table 2, without the KL term
    "starbucks-msmarco-without-kl": _SRL_MSMARCO | {"kl_weight": 0.0},
    # Its BERT-2DMSE, for which no command was released: the settings of Table 6, which hold for all methods
    "2dmse-msmarco": _SRL_MSMARCO | {"objective": "2dmse", "variant": "v1-paper"},
    # The first version in the retrieval code of arXiv 2411.17299
    "2dmse-msmarco-reproduced": _MSMARCO | {"objective": "2dmse", "variant": "russian-doll"},
    # arXiv 2411.17299, eq. 12, all layers at 128 dims, with its retrieval settings; the command there is fp32
    "2dmse-v2-msmarco": _V2_MSMARCO | {"variant": "eq12"},
    # Its code aligns queries and passages apart, and weighs that by the number of rows once more.
    "2dmse-v2-msmarco-released": _V2_MSMARCO | {"variant": "retrieval"},
    # Its eq. 1-3: several dims of the last layer
    "mrl-msmarco": _MSMARCO | {"objective": "mrl"},
    # Its code's "MSE": the loss of the code above over the last layer alone, at 128 dims
    "mrl-msmarco-released": _MSMARCO | {"objective": "2dmse-v2", "variant": "retrieval", "train_layers": "last"},
    # The same paper's single models: add --sizes 6:128
    "separate-msmarco": _MSMARCO | {"objective": "separate", "bf16": True, "save_steps": 10000},
    "full-msmarco": _MSMARCO | {"objective": "full", "bf16": True, "save_steps": 10000},
    # RetroMAE's fine-tuning: 16 queries on each of 8 GPUs
    "retromae-msmarco": _MSMARCO
    | {
        "objective": "full",
        "train_group_size": 16,
        "per_device_train_batch_size": 16,
        "passage_max_len": 140,
        "learning_rate": 2e-5,
        "num_train_epochs": 4,
        "warmup_steps": 0,
        "fp16": True,
        "save_steps": 20000,
    },
    # RetroMAE's fine-tuning for BEIR: 128 queries on each of 8 GPUs
    "retromae-beir": _MSMARCO
    | {
        "objective": "full",
        "train_group_size": 2,
        "passage_max_len": 144,
        "learning_rate": 1e-5,
        "num_train_epochs": 10,
        "warmup_steps": 0,
        "fp16": True,
    },
    # arXiv 2410.13230, eq. 4-5 with Table 5, on NLI triples
    "starbucks-sts": _NLI | {"kl_weight": 1.0, "kl_temperature": 0.3},
    # Table 2, without the KL term
    "starbucks-sts-without-kl": _NLI | {"kl_weight": 0.0},
    # Its code: a sum over the sizes, and 0.3 times another KL, between coordinates, with a gradient into the teacher
    "starbucks-sts-released": _NLI | {"variant": "starbucks-sts-released"},
    # The low-resource option of that code: STS-B's scored pairs
    "starbucks-stsb-released": _NLI
    | {
        "variant": "starbucks-sts-released",
        "contrastive_weight": 0.0,
        "cosent_weight": 1.0,
        "train_group_size": 1,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 4,
    },
    # arXiv 2402.14776, and the loss of sentence-transformers 3.2 that its successors ran
    "2dmse-sts": _NLI | {"objective": "2dmse", "variant": "v1-paper"},
    "2dmse-sts-released": _NLI | {"objective": "2dmse", "variant": "st-3.2"},
    # The first paper's own experiments: AnglE's losses and its settings for NLI, and AnglE's code of that month
    "2dmse-sts-angle": _ANGLE | {"objective": "2dmse", "variant": "v1-paper"},
    "2dmse-sts-angle-released": _ANGLE | {"objective": "2dmse", "variant": "angle-0223"},
    "mrl-sts-angle": _ANGLE | {"objective": "mrl", "train_dims": _ALL_DIMS},
    # A model for each size: add --sizes 6:128. The released code cuts the layers, and trains at full width whatever the dim.
    "separate-sts": _NLI | {"objective": "separate"},
    "separate-sts-full-width": _NLI | {"objective": "separate", "variant": "separate-sts-released"},
    "full-sts": _NLI | {"objective": "full"},
    "mrl-sts": _NLI | {"objective": "mrl"},
    # The NLI runs of arXiv 2411.17299 with sentence-transformers
    "mrl-sts-reproduced": _REPRODUCED_NLI | {"objective": "mrl", "train_dims": _ALL_DIMS},
    **{f"{name}-sts-reproduced": _REPRODUCED_NLI | {"objective": name} for name in _SINGLE},
    "separate-sts-reproduced-full-width": _REPRODUCED_NLI
    | {"objective": "separate", "variant": "separate-sts-released"},
    "2dmse-sts-reproduced": _REPRODUCED_NLI | {"objective": "2dmse", "variant": "st-3.2", "train_dims": _ALL_DIMS},
    # Its eq. 12 with AnglE's losses; "MSE": at the last layer alone. AnglE's code takes other layers and averages them.
    "2dmse-v2-sts": _ANGLE | {"variant": "eq12"},
    "2dmse-v2-sts-released": _ANGLE | {"variant": "angle"},
    "mrl-v2-sts": _ANGLE | {"variant": "eq12", "train_layers": "last"},
    "mrl-v2-sts-released": _ANGLE | {"variant": "angle", "train_layers": "last"},
    **{f"{name}-v2-sts": _ANGLE | {"objective": name} for name in _SINGLE},
    "separate-v2-sts-full-width": _ANGLE | {"objective": "separate", "variant": "separate-sts-released"},
}

# Names of version 0.1, or likely guesses -> current names
RENAMED = {"starbucks-stsb": "starbucks-stsb-released", "separate-sts-released": "separate-sts-full-width"}

# Names with another meaning in version 0.1
CHANGED = {
    "starbucks-msmarco": "keeps known positives among the negatives, as the paper does; in 0.1 it had --false_negatives mask",
    **{
        name: f"is the paper's recipe; the 0.1 preset of this name is now {name}-released"
        for name in (
            *("starbucks-sts", "2dmse-sts", "2dmse-v2-sts", "mrl-v2-sts"),
            *("2dmse-v2-msmarco", "mrl-msmarco"),
        )
    },
    "separate-sts": "trains at the size's own dim; the 0.1 preset of this name is now separate-sts-full-width",
}


def check_preset(name: str | None) -> None:
    """Check the name of a preset, and warn if it had another meaning in version 0.1. Raises UserError if it is unknown."""
    if not name:
        return
    if name in RENAMED:
        raise UserError(f"there is no preset {name}", f"its name is now {RENAMED[name]}")
    if name not in PRESETS:
        raise UserError(f"there is no preset {name}", f"one of {', '.join(PRESETS)}")
    if name in CHANGED:
        log.warning("preset %s %s", name, CHANGED[name])
