"""The flags of `encode`."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.sizes import Size, Sizes, check_size

if TYPE_CHECKING:
    from starbucks_retrieval.models import EncoderConfig

log = logging.getLogger(__name__)

# Settings that a model stores about itself; a flag that says otherwise needs --override.
_STORED = (
    "pooling",
    "normalize",
    "query_prefix",
    "passage_prefix",
    "passage_field_separator",
    "query_max_len",
    "passage_max_len",
)


@dataclasses.dataclass
class EncodeArguments:
    """Encoding."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    encode_output_path: str = flag("", "folder for the embeddings, one sub-folder a size", required=True)
    dataset_path: str | None = flag(None, "what to encode: file, BEIR folder, ir: or short name")
    dataset_name: str | None = flag(None, "the same, from the hub")
    dataset_config: str | None = flag(None, "configuration of the hub data set")
    dataset_split: str | None = flag(None, "split of the hub data set")
    corpus_path: str | None = flag(None, "another word for --dataset_path")
    corpus_name: str | None = flag(None, "another word for --dataset_name")
    encode_is_query: bool = flag(False, "the texts are queries")

    sizes: str | None = flag(None, "sizes such as 2:32,6:128, cup names or all (default: all the model's own)")
    layer: int | None = flag(None, "one size: its layer (with --dim; default: the last)")
    dim: int | None = flag(None, "one size: its dimensions (default: all)")

    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = flag(
        "auto", "arithmetic; auto: bf16 where this device is fast in it, else fp32; int8: with --backend openvino"
    )
    backend: str = flag(
        "torch",
        f"{BACKENDS.help_text()}; auto: the fastest on the first texts, which may differ from run to run",
        choices=lambda: (*BACKENDS, "auto"),
    )
    torch_compile: bool = flag(False, "compile the layers (backend torch)")
    store_dtype: Literal["float16", "float32"] = flag("float16", "numbers on disk")
    max_tokens_per_batch: int | None = flag(None, "rows x longest of a batch (default: 4096 on a CPU, 65536 on a GPU)")
    per_device_eval_batch_size: int | None = flag(None, "Tevatron: a batch of so many longest texts, in tokens")
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")
    attn_implementation: str | None = flag(
        None, "transformers' attention, or unpadded (default: sdpa where the model has it)"
    )

    num_processes: int = flag(1, "processes of this machine that share the work, one a GPU (elsewhere: torchrun)")
    engine: Literal["local", "ray"] = flag("local", "ray: Ray Data's workers take the shards; all must see the folders")
    ray_address: str | None = flag(None, "a running Ray cluster (default: that of the environment, else a local one)")
    ray_workers: int | None = flag(None, "workers that encode (default: the GPUs of the cluster, or one)")
    shard_size: int = flag(16384, "rows of a shard, the unit of resuming")
    dataset_number_of_shards: int = flag(1, "cut the data into so many jobs")
    dataset_shard_index: int = flag(0, "which of those jobs this is, from 0")
    overwrite: bool = flag(False, "replace another store in the output folder")

    pooling: Literal["cls", "mean", "last"] | None = flag(None, "for a bare backbone (a trained model stores it)")
    normalize: bool | None = flag(None, "likewise")
    query_prefix: str | None = flag(None, "likewise")
    passage_prefix: str | None = flag(None, "likewise")
    passage_field_separator: str | None = flag(None, "likewise: between title and text")
    query_max_len: int | None = flag(None, "likewise: tokens of a query")
    passage_max_len: int | None = flag(None, "likewise: tokens of a passage")
    override: bool = flag(False, "let these flags contradict what the model stores")

    # ielab/Starbucks
    layers_to_save: str | None = flag(None, "ielab/Starbucks: layers to write at full width; read as --sizes")

    def __post_init__(self) -> None:
        if self.sizes and (self.layer is not None or self.dim is not None):
            raise UserError("--sizes and --layer/--dim contradict each other", "give one of them")
        for name in ("max_tokens_per_batch", "per_device_eval_batch_size", "num_processes", "ray_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} is below 1", "leave it out, or raise it")
        if self.engine == "ray" and self.num_processes > 1:
            raise UserError("--engine ray starts its own workers", "take --ray_workers for --num_processes")
        if self.torch_compile and self.backend != "torch":
            raise UserError("--torch_compile belongs to --backend torch", "drop one of the two")

    @property
    def collection(self) -> str:
        """What to read."""
        named = [c for c in (self.dataset_path, self.dataset_name, self.corpus_path, self.corpus_name) if c]
        if len(named) != 1:
            raise UserError(f"{len(named)} collections to encode, one is needed", "name it with --dataset_path")
        return named[0]

    def wanted(self, num_layers: int, hidden_size: int, model_sizes: Sizes, config: EncoderConfig) -> Sizes:
        """The sizes to write, checked against the model.

        A rung that is not spelled but named, as all of them are by default, stands for the size of its passages where
        they are encoded.
        """
        if self.layers_to_save:
            layers = self.layers_to_save.split(",")
            log.info("--layers_to_save: read as --sizes at full width")
            return Sizes.parse(",".join(f"{layer}:{hidden_size}" for layer in layers)).check(num_layers, hidden_size)
        if self.layer is not None or self.dim is not None:
            layer = num_layers if self.layer is None else self.layer
            size = Size(layer, hidden_size if self.dim is None else self.dim)
            check_size(size, num_layers, hidden_size)
            return Sizes([size])
        chosen = Sizes.parse(self.sizes, model_sizes) if self.sizes else model_sizes
        if not self.encode_is_query:
            spelled = {Size.parse(word) for word in (self.sizes or "").split(",") if ":" in word}
            chosen = Sizes(sorted({size if size in spelled else config.passage_size(size) for size in chosen}))
        return chosen.check(num_layers, hidden_size)

    def configured(self, config: EncoderConfig) -> EncoderConfig:
        """The model's configuration with the flags' changes. Raises UserError where they contradict it."""
        changes = {name: getattr(self, name) for name in _STORED if getattr(self, name) is not None}
        for name, value in changes.items():
            stored = getattr(config, name)
            if config.source and value != stored and not self.override:
                raise UserError(
                    f"--{name} {value} contradicts the model's own {stored!r} ({config.source})",
                    "leave the flag out, or add --override",
                )
        return dataclasses.replace(config, **changes)
