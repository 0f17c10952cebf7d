"""Hyper-parameters of the papers as flags: ours and those of transformers' TrainingArguments together."""

from __future__ import annotations

from typing import Any

_MSMARCO: dict[str, Any] = {
    "pooling": "cls",
    "normalize": False,
    "temperature": 1.0,
    "query_max_len": 32,
    "passage_max_len": 196,
    "train_group_size": 8,
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
_ANGLE = {
    "objective": "2dmse-v2",
    "variant": "angle",
    "pooling": "cls",
    "query_max_len": 128,
    "passage_max_len": 128,
}

RECIPES: dict[str, dict[str, Any]] = {
    # arXiv 2410.13230, Table 6 and the repository's README (bf16 there, fp16 in the table)
    "starbucks-msmarco": _MSMARCO | {"kl_weight": 1.0, "bf16": True, "gradient_checkpointing": True},
    # The released code sums over the sizes and leaves false negatives in.
    "starbucks-msmarco-released": _MSMARCO
    | {
        "kl_weight": 1.0,
        "bf16": True,
        "gradient_checkpointing": True,
        "variant": "starbucks-released",
        "false_negatives": "keep",
    },
    # arXiv 2411.17299, retrieval: all layers at 128 dims; the command there is fp32
    "2dmse-v2-msmarco": _MSMARCO
    | {
        "objective": "2dmse-v2",
        "variant": "retrieval",
        "gradient_checkpointing": True,
        "false_negatives": "keep",
        "save_steps": 500,
    },
    # Its "MSE": the same loss over the last layer alone
    "mrl-msmarco": _MSMARCO
    | {"objective": "2dmse-v2", "variant": "retrieval", "train_layers": "last", "false_negatives": "keep"},
    # The same paper's single models: add --sizes 6:128
    "separate-msmarco": _MSMARCO
    | {"objective": "separate", "bf16": True, "false_negatives": "keep", "save_steps": 10000},
    # RetroMAE's fine-tuning: 16 queries on each of 8 GPUs
    "retromae-msmarco": _MSMARCO
    | {
        "objective": "full",
        "false_negatives": "keep",
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
        "false_negatives": "keep",
        "train_group_size": 2,
        "passage_max_len": 144,
        "learning_rate": 1e-5,
        "num_train_epochs": 10,
        "warmup_steps": 0,
        "fp16": True,
    },
    # arXiv 2410.13230, Table 5, on NLI triples
    "starbucks-sts": _NLI | {"variant": "starbucks-sts-released"},
    "2dmse-sts": _NLI | {"objective": "2dmse", "variant": "st-3.2"},
    "separate-sts": _NLI | {"objective": "separate", "variant": "separate-sts-released"},
    "mrl-sts": _NLI | {"objective": "mrl"},
    # The low-resource option of its code: STS-B's scored pairs
    "starbucks-stsb": _NLI
    | {
        "variant": "starbucks-sts-released",
        "contrastive_weight": 0.0,
        "cosent_weight": 1.0,
        "train_group_size": 1,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 4,
    },
    # arXiv 2411.17299 on NLI: first version and AnglE's second
    "mrl-sts-reproduced": _REPRODUCED_NLI | {"objective": "mrl", "train_dims": "8,16,32,64,128,256,512,768"},
    "2dmse-sts-reproduced": _REPRODUCED_NLI
    | {"objective": "2dmse", "variant": "st-3.2", "train_dims": "8,16,32,64,128,256,512,768"},
    "2dmse-v2-sts": _REPRODUCED_NLI | _ANGLE,
    # Its "MSE" in the second version: --apply_mrl 1
    "mrl-v2-sts": _REPRODUCED_NLI | _ANGLE | {"train_layers": "last"},
}
