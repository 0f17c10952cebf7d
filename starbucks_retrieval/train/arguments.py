"""The flags of `train`, besides those of transformers' TrainingArguments."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import as_flag_values, flag
from starbucks_retrieval.data.sources import store_collections
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train.mixture import DataSet, MixtureArguments
from starbucks_retrieval.train.presets import PRESETS, check_preset
from starbucks_retrieval.train.project_arguments import ProjectArguments, TextArguments, integers, map_project_flags

if TYPE_CHECKING:
    from starbucks_retrieval.losses.base import Options
    from starbucks_retrieval.models import EncoderConfig

# Default lengths of queries and passages, in tokens.
_LENGTHS = {"retrieval": (32, 196), "sts": (128, 128), "texts": (128, 128)}


@dataclasses.dataclass
class TrainArguments(MixtureArguments, TextArguments, ProjectArguments):
    """Training.

    The fields are the flags of `starbucks train`; its help says what each of them means.

    Raises:
        UserError: A value is out of range, the preset is unknown, or flags contradict each other.
    """

    model_name_or_path: str = flag("", "backbone: a folder or a hub name", required=True)
    task: Literal["retrieval", "sts"] = flag(
        "retrieval", "retrieval, or sts: similarity, from NLI triples or from scored pairs"
    )
    dataset_path: list[str] | None = flag(
        None,
        "training groups: files, BEIR folders, ir: or short names; several are mixed; name@2 is used twice as often",
    )
    dataset_name: str | None = flag(None, "training groups from the hub (or use --dataset_path)")
    dataset_config: str | None = flag(None, "configuration of the hub data set", rare=True)
    dataset_split: str | None = flag(None, "split of the training groups (default: train)")
    corpus_path: str | None = flag(None, "texts for groups that hold ids only; a BEIR folder contains its corpus")
    corpus_name: str | None = flag(None, "the same as --corpus_path, from the hub", rare=True)
    preset: str | None = flag(
        None,
        f"a published recipe: lengths, batch size, learning rate and objective; flags override it. One of {', '.join(PRESETS)}",
    )

    objective: str = flag("srl", f"training loss. {LOSSES.help_text()}", choices=LOSSES)
    variant: str | None = flag(None, "published version of the objective (default: the first that --objective lists)")
    sizes: str | None = flag(
        None, "size list such as 2:32,6:128,12:768 (default: six sizes in the paper's proportions)"
    )
    kl_weight: float | None = flag(None, "weight of the alignment with the full size (default: 1)")
    kl_temperature: float | None = flag(
        None, "temperature inside the KL (default for srl: that of the scores)", rare=True
    )
    loss_reduction: Literal["mean", "sum"] | None = flag(
        None, "srl, mrl: reduction over the sizes (default: as published)", rare=True
    )
    train_layers: str | None = flag(
        None, "2dmse: layers to sample, as 1,2,3; 2dmse-v2: layers to train, or last", rare=True
    )
    train_dims: str | None = flag(None, "mrl, 2dmse, 2dmse-v2: dims to train, as 32,64,128", rare=True)
    train_dim: bool | None = flag(
        None, "separate: compute the loss at the size's dim (default), or at full width", rare=True
    )
    sub_model_sampling: bool | None = flag(
        None, "srl: one layer of the size list and the last one per step, at every dim", rare=True
    )
    score_align: bool | None = flag(
        None, "2dmse-v2: align scores instead of embeddings with their PCA target", rare=True
    )
    compare_to_last_layer: bool | None = flag(None, "2dmse-v2, with --score_align: scores of the last layer", rare=True)
    full_dim: bool | None = flag(None, "2dmse-v2: train the full width of every layer too", rare=True)
    pca: Literal["exact", "lowrank"] | None = flag(
        None, "2dmse-v2: computation of the PCA target (default: exact)", rare=True
    )
    objective_options: list[str] | None = flag(
        None, "any other option of the method's file in losses/, as kl_space=scores detach_teacher=false", rare=True
    )
    projections: Literal["fit", "random", "none"] | None = flag(
        None,
        "a linear map per layer, trained with the backbone: fitted on the training texts, or random (default: the model's "
        "own if starbucks fit made it, else none, for distil fit; none drops them)",
        rare=True,
    )
    projection_learning_rate: float = flag(
        3e-4, "learning rate of these maps; --learning_rate is that of the backbone", rare=True
    )
    passage_layers: str | None = flag(
        None, "encode passages at other layers than queries: last, or pairs such as 2:6,4:12"
    )
    fix_doc: bool = flag(False, "the same as --passage_layers last", rare=True)
    anchor_weight: float = flag(
        0.0,
        "weight of 1 - cosine between the full size's embeddings of the model and of the backbone (0: off)",
        rare=True,
    )

    contrastive_weight: float | None = flag(
        None, "weight of InfoNCE over positives and negatives (default: 1)", rare=True
    )
    angle_weight: float | None = flag(None, "weight of the angle loss over labelled pairs (default: 0)", rare=True)
    cosent_weight: float | None = flag(
        None, "weight of CoSENT over labelled pairs (default: 0; 1 for scored pairs)", rare=True
    )
    binary_weight: float | None = flag(
        None, "weight of InfoNCE over passages rounded to a bit a number, for binary stores (default: 0)", rare=True
    )
    pair_temperature: float | None = flag(None, "temperature of the angle loss and CoSENT (default: 0.05)", rare=True)
    distil_weight: float | None = flag(
        None,
        "weight of distillation from a teacher's scores in the training rows, at every size (default: 0)",
        rare=True,
    )
    distil_temperature: float | None = flag(None, "divides the teacher's scores (default: 1)", rare=True)
    in_batch_negatives: bool | None = flag(None, "other queries' passages are negatives too (default: true)", rare=True)
    negatives_x_device: bool = flag(True, "the passages of other processes are negatives too", rare=True)
    temperature: float | None = flag(
        None, "divides scores (default: 0.05 for similarity and sentence-transformers models, else 1)"
    )
    pooling: Literal["cls", "mean", "last"] | None = flag(
        None, "default: the backbone's, else cls, mean for similarity, last for decoder-only backbones"
    )
    normalize: bool | None = flag(None, "cosine instead of dot product (default: the backbone's setting, else false)")
    query_prefix: str | None = flag(None, "text before every query (default: the backbone's)")
    passage_prefix: str | None = flag(None, "text before every passage (default: the backbone's)")
    passage_field_separator: str | None = flag(None, "separator of title and text (default: a space)", rare=True)
    dropout: float | None = flag(
        None, "dropout everywhere in the backbone (default: the backbone's; 0: off)", rare=True
    )
    query_max_len: int | None = flag(
        None, "tokens of a query, special ones included (default: 32; similarity, distil 128)"
    )
    passage_max_len: int | None = flag(
        None, "tokens of a passage, special ones included (default: 196; 128); distil: in training only"
    )

    train_group_size: int | None = flag(
        None, "passages per query: one positive, the rest hard negatives (default: 8; NLI triples 2, scored pairs 1)"
    )
    false_negatives: Literal["mask", "keep"] = flag(
        "mask",
        "other known positives of a query in the batch: mask them, or keep them as negatives, as published",
        rare=True,
    )
    max_tokens_per_chunk: int | None = flag(
        None,
        "tokens per encoder call, texts sorted by length (default: 16384 on a GPU; on a CPU 4096, or 1024 with --grad_cache or padding)",
    )
    grad_cache: bool = flag(False, "keep the activations of one chunk only, so that any batch size fits into memory")
    gc_q_chunk_size: int | None = flag(None, "with --grad_cache: queries per chunk at most", rare=True)
    gc_p_chunk_size: int | None = flag(None, "with --grad_cache: passages per chunk at most", rare=True)
    lora: bool = flag(False, "train low-rank adapters instead of all weights; the saved model has them merged")
    lora_r: int = flag(16, "rank of the adapters", rare=True)
    lora_alpha: int = flag(32, "scale of the adapters, times 1/rank", rare=True)
    lora_dropout: float = flag(0.0, "dropout before the adapters", rare=True)
    lora_target_modules: str = flag("all-linear", "names of the modules with an adapter, as query,value", rare=True)
    overwrite_output_dir: bool = flag(False, "train into a folder that is not empty")
    override: bool = flag(False, "resume although the configuration differs from the checkpoint's", rare=True)
    dry_run: bool = flag(False, "write nothing; print the work, the bytes it would write and the estimated time")
    print_config: bool = flag(False, "train nothing; print every value and its source: flag, file, preset or default")

    eval_dataset_path: str | None = flag(
        None, "dev set scored at every size while training: a BEIR folder, or a file of scored pairs"
    )
    eval_dataset_split: str = flag("dev", "split of the dev set")
    eval_max_passages: int | None = flag(
        None, "search the judged passages and random others up to this number", rare=True
    )
    eval_measures: str | None = flag(
        None, "the first, averaged over the sizes, selects the best checkpoint (nDCG@10 RR@10; similarity spearman)"
    )

    def __post_init__(self) -> None:
        as_flag_values(self)
        store_collections(self)
        if self.train_group_size is not None and self.train_group_size < 1:
            raise UserError(f"--train_group_size {self.train_group_size} leaves no positive", "use at least 1")
        check_preset(self.preset)
        if self.warmup_ratio is not None and not 0 <= self.warmup_ratio < 1:
            raise UserError(f"--warmup_ratio {self.warmup_ratio} is not a share of the steps", "use 0 to below 1")
        if not self.projection_learning_rate > 0:
            raise UserError(f"--projection_learning_rate {self.projection_learning_rate} is not positive", "use 3e-4")
        if self.anchor_weight < 0:
            raise UserError(f"--anchor_weight {self.anchor_weight} is negative", "use 0 or more; 0 switches it off")
        if (self.gc_q_chunk_size or self.gc_p_chunk_size) and not self.grad_cache:
            raise UserError("--gc_q_chunk_size and --gc_p_chunk_size do nothing by themselves", "add --grad_cache true")
        if min(self.gc_q_chunk_size or 1, self.gc_p_chunk_size or 1, self.max_tokens_per_chunk or 1) < 1:
            raise UserError("a chunk holds at least one text", "use 1 or more")
        map_project_flags(self)
        if self.fix_doc:
            if self.passage_layers not in (None, "last"):
                raise UserError("--fix_doc and --passage_layers contradict each other", "give one of them")
            self.passage_layers = "last"
        if self.anchor_weight and self.passage_layers:
            raise UserError("--anchor_weight compares texts at the same layer", "drop it or --passage_layers")

    @property
    def data_sets(self) -> list[DataSet]:
        """The data sets of training. Raises UserError if none is given, or one has a bad weight or option."""
        named = [self.dataset_name] if self.dataset_name else []
        found = [DataSet.parse(text) for text in self.dataset_path or []]
        found += [DataSet(name) for name in [*named, *(self.query_path or [])]]
        if not found:
            raise UserError("no training data", "name it with --dataset_path or --dataset_name")
        return found

    @property
    def collections(self) -> list[str]:
        """The names of the data sets. Raises UserError as `data_sets`."""
        return [one.name for one in self.data_sets]

    @property
    def dev_measures(self) -> str:
        """The measures of the dev set, separated by spaces; the first one selects the best checkpoint."""
        return self.eval_measures or ("spearman" if self.task == "sts" else "nDCG@10 RR@10")

    def model_sizes(self, num_layers: int, hidden_size: int, config: EncoderConfig) -> Sizes:
        """Return the sizes that the trained model stores.

        Args:
            num_layers: Layers of the backbone.
            hidden_size: Its width.
            config: Its configuration; `--sizes` overrides the sizes that it stores, and without either the sizes have
                the paper's proportions.

        Raises:
            UserError: A size does not fit the backbone or the objective.
        """
        full = Size(num_layers, hidden_size)
        default = config.sizes or Sizes.default(num_layers, hidden_size)
        if self.sizes is not None:
            sizes = config.check_sizes(Sizes.parse(self.sizes, default), num_layers, hidden_size)
            if self.objective == "full" and sizes.members != (full,):
                raise UserError(f"--objective full trains {full} alone, not {sizes}", "drop --sizes")
            return sizes
        if self.objective == "separate":
            raise UserError("--objective separate trains one size", "name it: --sizes 6:128")
        if self.objective == "full":
            return Sizes([full])
        if self.objective == "mrl":
            dims = integers(self.train_dims) if self.train_dims else [size.dim for size in default]
            return Sizes([Size(num_layers, dim) for dim in sorted({*dims, hidden_size})]).check(num_layers, hidden_size)
        return default

    def encoder_config(self, config: EncoderConfig, sizes: Sizes, options: Options, limit: int) -> EncoderConfig:
        """Return the configuration that the trained model stores.

        Args:
            config: The backbone's configuration.
            sizes: The sizes of the model.
            options: The objective's options.
            limit: The longest input of the backbone, in tokens.
        """
        named = {
            name: getattr(self, name)
            for name in ("pooling", "query_prefix", "passage_prefix", "passage_field_separator")
            if getattr(self, name) is not None
        }
        if self.task == "sts" and not config.source and config.pooling == "cls":
            named.setdefault("pooling", "mean")
        query, passage = _LENGTHS[self.task if LOSSES[self.objective].labelled else "texts"]
        return dataclasses.replace(
            config,
            sizes=sizes,
            normalize=options.normalize,
            temperature=options.temperature,
            query_max_len=self.query_max_len or min(query, limit),
            passage_max_len=self.passage_max_len or min(passage, limit),
            passage_layers=tuple(
                (query, layer)
                for query, layer in sorted(dict(options.passage_layers).items())
                if query in sizes.layers and layer != query
            ),
            **named,
        )
