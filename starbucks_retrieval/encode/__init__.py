"""Write the embeddings of a corpus or of queries to disk, all sizes in one pass."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Literal

from starbucks_retrieval.cli import as_flag_values, check_least, flag
from starbucks_retrieval.data import Records, open_corpus, open_queries
from starbucks_retrieval.data.sources import store_collections
from starbucks_retrieval.devices import BATCH_TOKENS_HELP, default_batch_tokens
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.models.config import SettingFlags
from starbucks_retrieval.sizes import ALIASES_HELP, Size, Sizes
from starbucks_retrieval.store.dtypes import row_bytes

if TYPE_CHECKING:
    from starbucks_retrieval.encode.api import encode
    from starbucks_retrieval.models import EncoderConfig
    from starbucks_retrieval.models.info import ModelInfo

__all__ = ["EncodeArguments", "encode"]

log = logging.getLogger(__name__)


@dataclasses.dataclass
class EncodeArguments(SettingFlags):
    """Encoding.

    The fields are the flags of `starbucks encode`; its help says what each of them means.

    Raises:
        UserError: A value is out of range, or flags contradict each other.
    """

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    encode_output_path: str = flag("", "folder for the embeddings, one sub-folder for each size", required=True)
    dataset_path: str | None = flag(None, "the texts to encode: a file, a BEIR folder, ir: or a short name")
    dataset_name: str | None = flag(None, "the same, a data set of the hub")
    dataset_config: str | None = flag(None, "configuration of the hub data set", rare=True)
    dataset_split: str | None = flag(None, "split of the hub data set", rare=True)
    corpus_path: str | None = flag(None, "the same as --dataset_path", rare=True)
    corpus_name: str | None = flag(None, "the same as --dataset_name", rare=True)
    encode_is_query: bool = flag(False, "the texts are queries")

    sizes: str | None = flag(
        None, f"sizes such as 2:32,6:128; size aliases; or all (default: all sizes of the model). {ALIASES_HELP}"
    )
    layer: int | None = flag(None, "one size: its layer (with --dim; default: the last)", rare=True)
    dim: int | None = flag(None, "one size: its dimensions (default: all)", rare=True)

    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = flag(
        "auto",
        "precision of the computation; auto: bf16 where this device computes it fast, else fp32; int8: with --backend openvino",
    )
    weights_dtype: Literal["float32", "bfloat16", "float16"] = flag(
        "float32",
        "type of the weights in memory; 16 bits halve it, and embeddings are computed in that type",
        rare=True,
    )
    backend: str = flag(
        "torch",
        f"{BACKENDS.help_text()}; auto: the fastest on the first texts, or what was measured before",
        choices=lambda: (*BACKENDS, "auto"),
    )
    torch_compile: bool = flag(False, "compile the layers (backend torch)", rare=True)
    store_dtype: Literal["float16", "float32", "int8", "binary"] = flag(
        "float16", "type of the stored numbers; int8 and binary: a byte and a bit, by scales of each dimension"
    )
    max_tokens_per_batch: int | None = flag(None, BATCH_TOKENS_HELP, rare=True)
    per_device_eval_batch_size: int | None = flag(
        None, "as in Tevatron: a batch has the tokens of this many texts of maximal length", rare=True
    )
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    attn_implementation: str | None = flag(
        None, "an attention of transformers, or unpadded (default: sdpa where the model supports it)", rare=True
    )

    num_processes: int = flag(
        1, "processes on this machine that share the work, one for each GPU (several machines: torchrun)"
    )
    engine: Literal["local", "ray"] = flag(
        "local", "ray: workers of Ray Data encode the shards; all must have access to the folders", rare=True
    )
    ray_address: str | None = flag(
        None, "address of a running Ray cluster (default: that of the environment, else a local one)", rare=True
    )
    ray_workers: int | None = flag(None, "workers that encode (default: the GPUs of the cluster, or one)", rare=True)
    shard_size: int = flag(16384, "rows of a shard, the unit of resuming", rare=True)
    dataset_number_of_shards: int = flag(1, "number of jobs that share the data", rare=True)
    dataset_shard_index: int = flag(0, "the number of this job among them, from 0", rare=True)
    overwrite: bool = flag(False, "replace another store in the output folder")

    # ielab/Starbucks
    layers_to_save: str | None = flag(
        None, "as in ielab/Starbucks: layers to write at full width; the same as --sizes", rare=True
    )

    def __post_init__(self) -> None:
        as_flag_values(self)
        store_collections(self)
        if self.sizes and (self.layer is not None or self.dim is not None):
            raise UserError("--sizes and --layer/--dim contradict each other", "give one of them")
        check_least(self, "max_tokens_per_batch", "per_device_eval_batch_size", "num_processes", "ray_workers")
        if self.engine == "ray" and self.num_processes > 1:
            raise UserError("--engine ray starts its own workers", "use --ray_workers instead of --num_processes")
        if self.weights_dtype != "float32" and self.backend not in ("torch", "auto"):
            raise UserError(f"--weights_dtype {self.weights_dtype} needs --backend torch", "leave out one of the two")
        if self.torch_compile and self.backend != "torch":
            raise UserError("--torch_compile needs --backend torch", "leave out one of the two")

    @property
    def collection(self) -> str:
        """The name of the data; exactly one flag gives it."""
        named = [c for c in (self.dataset_path, self.dataset_name, self.corpus_path, self.corpus_name) if c]
        if len(named) != 1:
            raise UserError(f"{len(named)} collections to encode, one is needed", "name it with --dataset_path")
        return named[0]

    @property
    def parts(self) -> tuple[int, int]:
        """The number of jobs that share the data, and the number of this one, from 0."""
        return self.dataset_number_of_shards, self.dataset_shard_index

    @property
    def kind(self) -> str:
        """ "queries" or "passages"."""
        return "queries" if self.encode_is_query else "passages"

    def open_records(self) -> Records[Any]:
        """Open the passages or queries. Raises UserError if they cannot be read."""
        opener = open_queries if self.encode_is_query else open_corpus
        return opener(self.collection, config=self.dataset_config, split=self.dataset_split)

    def bytes_per_text(self, size: Size) -> int:
        """Return the bytes of one stored embedding."""
        return row_bytes(self.store_dtype, size.dim)

    def batch_tokens(self, device_type: str, max_length: int) -> int:
        """Return the size of a batch in tokens (rows times longest row) for texts of up to `max_length` tokens.

        Args:
            device_type: The `type` of a torch.device: "cuda", or "cpu" and others, which have smaller batches.
            max_length: The most tokens of a text; used with `--per_device_eval_batch_size` only.
        """
        if self.max_tokens_per_batch:
            return self.max_tokens_per_batch
        if self.per_device_eval_batch_size:
            return self.per_device_eval_batch_size * max_length
        return default_batch_tokens(device_type)

    def selected_sizes(self, model: ModelInfo, config: EncoderConfig) -> Sizes:
        """Return the sizes to write, checked against the model, whose configuration the flags may have changed.

        For passages, a size that is not written as layer:dim, as all sizes by default, means the size of its passages.

        Args:
            model: The model: its depth, its width, and the sizes that it stores.
            config: Its configuration after the flags, which says at which sizes passages are encoded.

        Raises:
            UserError: A size cannot be read, or the model lacks it.
        """
        if self.layers_to_save:
            layers = self.layers_to_save.split(",")
            log.info("--layers_to_save: read as --sizes at full width")
            return model.check(Sizes.parse(",".join(f"{layer}:{model.hidden_size}" for layer in layers)))
        if self.layer is not None or self.dim is not None:
            layer = model.num_layers if self.layer is None else self.layer
            return model.check(Sizes([Size(layer, model.hidden_size if self.dim is None else self.dim)]))
        chosen = Sizes.parse(self.sizes, model.sizes) if self.sizes else model.sizes
        if not self.encode_is_query:
            explicit = {Size.parse(word) for word in (self.sizes or "").split(",") if ":" in word}
            chosen = Sizes(sorted({size if size in explicit else config.passage_size(size) for size in chosen}))
        return model.check(chosen)


__getattr__, __dir__ = lazy_exports(__name__, {"encode": ".api"})
