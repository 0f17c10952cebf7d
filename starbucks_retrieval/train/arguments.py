"""The flags of `train` that are ours; every TrainingArguments flag of transformers works besides them."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes

if TYPE_CHECKING:
    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.objectives import SRLOptions

log = logging.getLogger(__name__)


@dataclasses.dataclass
class TrainArguments:
    """Training."""

    model_name_or_path: str = flag("", "backbone: a folder or a hub name", required=True)
    dataset_path: list[str] | None = flag(
        None,
        "training groups: files, BEIR folders, ir: or short names; several are mixed, one given twice counts twice",
    )
    dataset_name: str | None = flag(None, "training groups from the hub (or use --dataset_path)")
    dataset_config: str | None = flag(None, "configuration of the hub data set")
    dataset_split: str | None = flag(None, "split of the training groups (default: train)")
    corpus_path: str | None = flag(None, "texts for groups that hold ids only; a BEIR folder brings its own")
    corpus_name: str | None = flag(None, "the same, from the hub")
    preset: Literal["starbucks-msmarco", "starbucks-msmarco-released"] | None = flag(
        None, "a published recipe: lengths, batch, rates and objective; flags override it"
    )

    objective: Literal["srl"] = flag("srl", "srl: InfoNCE and KL at every size of the ladder")
    variant: Literal["starbucks", "starbucks-released", "starbucks-sts-released"] = flag(
        "starbucks", "whose SRL: the paper's, the released retrieval code's (sum), the released STS code's"
    )
    sizes: str | None = flag(None, "ladder such as 2:32,6:128,12:768 (default: six rungs in the paper's proportions)")
    kl_weight: float | None = flag(None, "weight of the alignment with the full size (default: 1)")
    kl_temperature: float | None = flag(None, "temperature inside the KL (default: that of the scores)")
    loss_reduction: Literal["mean", "sum"] | None = flag(None, "over the sizes (default: mean, as the paper)")
    anchor_weight: float = flag(
        0.0, "above 0: keep the full size's embeddings near the backbone's, by so much times 1 - cosine"
    )
    temperature: float | None = flag(None, "divides scores (default: 0.05 for sentence-transformers models, else 1)")
    pooling: Literal["cls", "mean", "last"] | None = flag(None, "default: the backbone's own, else cls")
    normalize: bool | None = flag(None, "cosine instead of dot product (default: as the backbone says, else false)")
    query_prefix: str | None = flag(None, "put before every query (default: the backbone's own)")
    passage_prefix: str | None = flag(None, "put before every passage (default: the backbone's own)")
    passage_field_separator: str | None = flag(None, "between title and text (default: a space)")
    dropout: float | None = flag(None, "replaces the backbone's own everywhere; 0 switches it off")
    query_max_len: int | None = flag(None, "tokens of a query, special ones included (default: 32)")
    passage_max_len: int | None = flag(None, "tokens of a passage, special ones included (default: 196)")

    train_group_size: int = flag(8, "passages per query: one positive, the rest hard negatives")
    false_negatives: Literal["mask", "keep"] = flag(
        "mask", "other known positives of a query inside the batch: no negatives (mask), or as published (keep)"
    )
    max_tokens_per_chunk: int | None = flag(
        None, "padded tokens through the encoder at once, texts sorted by length (default: 2048; on a GPU 16384)"
    )
    overwrite_output_dir: bool = flag(False, "train into a folder that is not empty")

    eval_dataset_path: str | None = flag(None, "dev set (BEIR folder) scored at every size while training")
    eval_dataset_split: str = flag("dev", "its qrels split")
    eval_max_passages: int | None = flag(None, "score against the judged passages and others up to this number")
    eval_measures: str = flag("nDCG@10 RR@10", "the first one, averaged over the sizes, picks the best checkpoint")

    # Habits of ielab/Starbucks and Tevatron, mapped onto the flags above.
    layer_list: str | None = flag(None, "ielab/Starbucks: layers of the ladder, with --embedding_dim_list")
    embedding_dim_list: str | None = flag(None, "ielab/Starbucks: dims of the ladder")
    kl_divergence_weight: float | None = flag(None, "ielab/Starbucks: --kl_weight")
    srl_training: bool = flag(False, "ielab/Starbucks: accepted, --objective srl is the default")
    warmup_ratio: float | None = flag(None, "Tevatron: share of the steps (transformers 5: --warmup_steps 0.1)")

    def __post_init__(self) -> None:
        if self.train_group_size < 1:
            raise UserError(f"--train_group_size {self.train_group_size} leaves no positive", "take at least 1")
        if self.anchor_weight < 0:
            raise UserError(f"--anchor_weight {self.anchor_weight} is negative", "0 switches it off")
        if (self.layer_list is None) != (self.embedding_dim_list is None):
            raise UserError("--layer_list and --embedding_dim_list belong together", "or write --sizes 2:32,4:64")
        if self.layer_list and self.embedding_dim_list:
            if self.sizes:
                raise UserError("--sizes and --layer_list contradict each other", "give one of them")
            layers, dims = (_integers(text) for text in (self.layer_list, self.embedding_dim_list))
            if len(layers) != len(dims):
                raise UserError(f"{len(layers)} layers for {len(dims)} dims", "give as many of each")
            self.sizes = str(Sizes([Size(layer, dim) for layer, dim in zip(layers, dims)]))
            log.info("--layer_list, --embedding_dim_list: read as --sizes %s", self.sizes)
        if self.kl_divergence_weight is not None:
            self.kl_weight = self.kl_divergence_weight
            log.info("--kl_divergence_weight: read as --kl_weight %s", self.kl_weight)

    @property
    def collections(self) -> list[str]:
        """What the training groups are read from."""
        found = [*(self.dataset_path or []), *([self.dataset_name] if self.dataset_name else [])]
        if not found:
            raise UserError("no training data", "name it with --dataset_path or --dataset_name")
        return found

    def ladder(self, num_layers: int, hidden_size: int, stored: Sizes | None) -> Sizes:
        """The sizes to train: asked for, else the backbone's stored ones, else the paper's proportions."""
        if self.sizes is None:
            return stored or Sizes.default(num_layers, hidden_size)
        default = stored or Sizes.default(num_layers, hidden_size)
        return Sizes.parse(self.sizes, default).check(num_layers, hidden_size)

    def options(self, config: EncoderConfig) -> SRLOptions:
        """The objective's options: the variant's, then what the backbone says, then the flags."""
        from starbucks_retrieval.objectives import PRESETS, SRLOptions

        chosen = PRESETS[self.variant]
        changes: dict[str, Any] = {}
        for name in ("temperature", "normalize"):
            # A variant that fixes its own score (the STS one) keeps it; the others take the backbone's.
            if getattr(chosen, name) == getattr(SRLOptions, name):
                changes[name] = getattr(config, name)
        flags = {
            "kl_weight": self.kl_weight,
            "kl_temperature": self.kl_temperature,
            "reduction": self.loss_reduction,
            "temperature": self.temperature,
            "normalize": self.normalize,
        }
        changes |= {name: value for name, value in flags.items() if value is not None}
        return dataclasses.replace(chosen, **changes)

    def encoder_config(self, config: EncoderConfig, sizes: Sizes, options: SRLOptions, limit: int) -> EncoderConfig:
        """What the trained model stores about itself; `limit` is the longest input it admits, in tokens."""
        named = {
            name: getattr(self, name)
            for name in ("pooling", "query_prefix", "passage_prefix", "passage_field_separator")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(
            config,
            sizes=sizes,
            normalize=options.normalize,
            temperature=options.temperature,
            query_max_len=self.query_max_len or min(32, limit),
            passage_max_len=self.passage_max_len or min(196, limit),
            **named,
        )


# HYPERPARAMETERS of the papers as flags: TrainArguments fields and transformers TrainingArguments together.
RECIPES: dict[str, dict[str, Any]] = {
    # arXiv 2410.13230, Table 6 and the repository's README (bf16 there, fp16 in the table)
    "starbucks-msmarco": {
        "sizes": None,
        "pooling": "cls",
        "normalize": False,
        "temperature": 1.0,
        "kl_weight": 1.0,
        "query_max_len": 32,
        "passage_max_len": 196,
        "train_group_size": 8,
        "per_device_train_batch_size": 128,
        "learning_rate": 1e-4,
        "num_train_epochs": 3,
        "warmup_steps": 0.1,
        "bf16": True,
        "gradient_checkpointing": True,
        "save_steps": 2000,
        "logging_steps": 10,
    },
}
# The released code sums over the sizes and leaves false negatives in.
RECIPES["starbucks-msmarco-released"] = RECIPES["starbucks-msmarco"] | {
    "variant": "starbucks-released",
    "false_negatives": "keep",
}


def with_recipe(argv: list[str]) -> list[str]:
    """The command line with the recipe named by --preset put before it, so that explicit flags override it."""
    for i, word in enumerate(argv):
        name = argv[i + 1] if word == "--preset" and i + 1 < len(argv) else word.removeprefix("--preset=")
        if word.startswith("--preset") and name in RECIPES:
            recipe = [f"--{key}={value}" for key, value in RECIPES[name].items() if value is not None]
            start = 1 if argv and not argv[0].startswith("-") else 0  # a leading configuration file stays first
            return argv[:start] + recipe + argv[start:]
    return argv


def _integers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"cannot read the numbers in {text!r}", "write 2,4,6") from None
