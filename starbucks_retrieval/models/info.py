"""Facts about a model without reading its weights: sizes, limits, parameters and speed.

Weights are counted, never read, and layers are timed with random weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starbucks_retrieval import clock as clocks
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import cut_config, layers_of, layout_of, token_limit
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.loading import (
    NO_POOLER,
    explain_load_errors,
    projections_file,
    quiet_transformers,
    read_configs,
    set_dropout,
)
from starbucks_retrieval.models.modules_json import HeadModule, read_head
from starbucks_retrieval.models.projections import TABLE, TokenTable
from starbucks_retrieval.models.weight_files import explain_damage
from starbucks_retrieval.parsing import Count, parse_json
from starbucks_retrieval.provenance import training_settings
from starbucks_retrieval.sizes import Size, Sizes

_VOCABULARY = 1000  # words of the model that is timed: a table of all words would take longer to make
_TIMED_LAYERS = 2


@dataclass(frozen=True)
class ModelInfo:
    """A model's configuration, without its weights.

    Args:
        name: Its folder or hub name.
        hf_config: The Hugging Face configuration.
        config: Pooling, sizes, prefixes and lengths.
    """

    name: str
    hf_config: Any
    config: EncoderConfig

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return int(self.hf_config.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        """Width of the full embedding: that of the last module after pooling, or of the backbone without one."""
        return self._head[-1].width if self._head else int(self.hf_config.hidden_size)

    def made_for(self) -> dict[str, Any]:
        """Return what result files record about the sizes that the model was made for.

        Returns:
            `model_sizes`, as text (the full size of a bare backbone), `fitted_layers`, which can be cut to any dim, and
            `training`, what has to be alike in the training of compared models, if a folder records it.
        """
        sizes = self.config.sizes or Size(self.num_layers, self.hidden_size)
        training = training_settings(self.name)
        made = {"model_sizes": str(sizes), "fitted_layers": list(self.config.projected_layers)}
        return made | ({"training": training} if training else {})

    @cached_property
    def _head(self) -> tuple[HeadModule, ...]:
        return read_head(self.name, self.config.head, int(self.hf_config.hidden_size))

    @property
    def sizes(self) -> Sizes:
        """The sizes that the model stores; the full size alone for a backbone that stores none."""
        return self.config.sizes or Sizes([Size(self.num_layers, self.hidden_size)])

    def check(self, sizes: Sizes) -> Sizes:
        """Return sizes unchanged. Raises UserError if the model lacks one of them."""
        return self.config.check_sizes(sizes, self.num_layers, self.hidden_size)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        from transformers import AutoTokenizer

        with explain_load_errors(self.name), quiet_transformers():
            return AutoTokenizer.from_pretrained(self.name)

    @property
    def token_limit(self) -> int:
        """The longest input, in tokens."""
        return token_limit(self.hf_config, self.tokenizer)

    def map_shape(self, layer: int) -> tuple[int, int]:
        """Return the shape of the map of a layer of a fitted model, without reading the map.

        Returns:
            For layer 0 (vocabulary, hidden) of the token table; otherwise (hidden, inputs), the bias counting as an input.
        """
        from safetensors import safe_open

        path, name = projections_file(self.name), f"layer_{layer}" if layer else TABLE
        with explain_damage(path, "run starbucks fit again"), safe_open(path, framework="pt") as file:
            rows, width = file.get_slice(f"{name}.weight" if layer else name).get_shape()
            return rows, width + (f"{name}.bias" in set(file.keys()))

    def map_inputs(self, layer: int) -> tuple[int, ...]:
        """Return the layers whose outputs the map of a layer of a fitted model takes; 0 is the token table."""
        from safetensors import safe_open

        path = projections_file(self.name)
        with explain_damage(path, "run starbucks fit again"), safe_open(path, framework="pt") as file:
            return tuple(parse_json(file.metadata()["inputs"], dict[str, list[Count]], path)[str(layer)])

    def parameters(self, layers: int, dim: int | None = None) -> int:
        """Count the parameters that embeddings after `layers` layers need.

        Args:
            layers: The layers. Layer 0 of a fitted model is its token table alone; another layer has a map, which may
                need the token table too.
            dim: The numbers of an embedding, which the table or map is cut to; None: all.
        """
        head = sum(module.parameters for module in self._head)
        if layers not in self.config.projected_layers:
            return self.backbone_parameters(layers) + head
        rows, width = self.map_shape(layers)
        if layers == 0:
            return rows * (dim or width)
        vocabulary, hidden = self.map_shape(0) if 0 in self.map_inputs(layers) else (0, 0)
        return self.backbone_parameters(layers) + head + (dim or rows) * width + vocabulary * hidden

    def backbone_parameters(self, layers: int) -> int:
        """Count the parameters of the backbone cut after `layers` layers."""
        import torch

        hf_config = copy.deepcopy(self.hf_config)
        cut_config(hf_config, layers)
        with torch.device("meta"):  # no memory for the numbers
            return sum(weight.numel() for weight in _bare(hf_config).parameters())

    def mean_tokens(self, texts: Sequence[str], max_length: int) -> float:
        """Return the mean number of tokens of a text, special ones included, cut at `max_length`."""
        return sum(self.token_counts(texts, max_length)) / max(1, len(texts))

    def token_counts(self, texts: Sequence[str], max_length: int) -> list[int]:
        """Return the number of tokens of each text, special ones included, cut at `max_length`."""
        if not texts:
            return []
        rows = self.tokenizer(list(texts), truncation=True, max_length=max_length, padding=False)["input_ids"]
        return [len(row) for row in rows]

    def seconds_per_text(
        self, layer: int, texts: Sequence[str], max_length: int, max_tokens: int, device: str, dtype: Any
    ) -> float:
        """Measure the seconds that embedding a text takes.

        Args:
            layer: The layer. At layer 0 tokenising is counted, which takes most of the time there.
            texts: A sample of the texts.
            max_length: Where texts are cut, in tokens.
            max_tokens: The largest rows x length of a batch.
            device: The device to measure on.
            dtype: The autocast dtype; None is float32.
        """
        if layer == 0:
            return self._lookup_seconds(texts, max_length) / max(1, len(texts))
        tokens = self.mean_tokens(texts, max_length)
        return tokens * layer * self.layer_seconds(max(3, round(tokens)), max_tokens, device, dtype)

    def _lookup_seconds(self, texts: Sequence[str], max_length: int) -> float:
        """Measure the seconds that tokenising texts and the means of their token vectors take; the faster of two runs."""
        import torch

        table = TokenTable(torch.ones(_VOCABULARY, self.hidden_size))
        self.tokenizer  # noqa: B018  is loaded before the clock starts
        times = []
        for _ in range(2):
            began = now()
            rows = self.tokenizer(list(texts), truncation=True, max_length=max_length, padding=False)["input_ids"]
            with torch.inference_mode():
                table.embed_rows([[token % _VOCABULARY for token in row] for row in rows])
            times.append(seconds_since(began))
        return min(times)

    def layer_seconds(
        self,
        length: int,
        max_tokens: int,
        device: str,
        dtype: Any,
        budget: float | None = None,
        clock: Callable[[], float] = now,
        encoding: bool = True,
    ) -> float:
        """Measure the seconds that the forward pass of one layer takes per token, with random weights.

        Args:
            length: Tokens of each text.
            max_tokens: The largest rows x length of a batch.
            device: The device to measure on.
            dtype: The autocast dtype; None is float32.
            budget: Seconds of the clock to measure for; the fastest pass counts. None: `clock.LAYER_SECONDS`.
            clock: Returns seconds; `time.process_time` counts those of the processor.
            encoding: Compute as encoding of many texts does, where that differs from training.
        """
        import torch

        from starbucks_retrieval.models.packed_encoding import sample_pass

        on = torch.device(device)
        ids = torch.full((max(1, max_tokens // length), length), 5, device=on)
        with torch.inference_mode(), torch.autocast(on.type, dtype=dtype, enabled=dtype is not None):
            model = self.random_backbone().to(on).eval()
            layers = len(layers_of(model, layout_of(model.config)))

            def padded() -> None:
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
                if on.type == "cuda":
                    torch.cuda.synchronize(on)

            packed = sample_pass(model, layers, length, dtype) if encoding else None
            run, tokens = packed or (padded, ids.numel())
            # Of processor time on a busy machine too, else one cold pass counts.
            seconds = clocks.fastest(run, budget, clock)
        return seconds / (tokens * layers)

    def random_backbone(self, dropout: float | None = None) -> Any:
        """Return a backbone of two layers and few words with random weights, to be timed.

        Args:
            dropout: Replaces the model's dropout probabilities.
        """
        hf_config = copy.deepcopy(self.hf_config)
        cut_config(hf_config, min(_TIMED_LAYERS, self.num_layers))
        hf_config.vocab_size, hf_config.pad_token_id, hf_config.use_cache = _VOCABULARY, 0, False
        set_dropout(hf_config, dropout)
        return _bare(hf_config)


def model_info(name_or_path: str) -> ModelInfo:
    """Read a model's configuration, without its weights.

    Args:
        name_or_path: A model folder, or the name of a model on the hub.

    Returns:
        The configuration. A causal backbone without a stored pooling takes that of the last token.

    Raises:
        UserError: The model cannot be used.
    """
    return ModelInfo(name_or_path, *read_configs(name_or_path))


def check_length(length: int, limit: int) -> int:
    """Check that texts of a length fit a model, and return the length.

    Args:
        length: The length to cut texts at, in tokens.
        limit: The longest input of the model, in tokens.

    Raises:
        UserError: The length is beyond the limit.
    """
    if length > limit:
        raise UserError(f"a length of {length} tokens is beyond this model's {limit}", f"take at most {limit}")
    return length


def _bare(hf_config: Any) -> Any:
    from transformers import AutoModel

    options = {"add_pooling_layer": False} if hf_config.model_type in NO_POOLER else {}
    with explain_load_errors(hf_config.name_or_path), quiet_transformers():
        return AutoModel.from_config(hf_config, **options)
