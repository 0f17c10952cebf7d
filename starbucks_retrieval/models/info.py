"""What a model would cost, by its configuration alone: weights are counted, never read, and layers timed with random ones."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import cut_config, layers_of, layout_of
from starbucks_retrieval.models.config import EncoderConfig, find_config
from starbucks_retrieval.models.loading import _NO_POOLER, explained, quiet_transformers
from starbucks_retrieval.sizes import Size, Sizes

_WORDS = 1000  # of the vocabulary of the layers that are timed: a table of all words would take longer to make
_TIMED = 2  # layers


@dataclass(frozen=True)
class ModelInfo:
    """A model's shape and settings without its weights."""

    name: str
    shape: Any  # the Hugging Face configuration
    config: EncoderConfig

    @property
    def num_layers(self) -> int:
        """Layers there are."""
        return int(self.shape.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        """Width of a state."""
        return int(self.shape.hidden_size)

    @property
    def sizes(self) -> Sizes:
        """The model's own ladder; the full size alone for a backbone that has none."""
        return self.config.sizes or Sizes([Size(self.num_layers, self.hidden_size)])

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        from transformers import AutoTokenizer

        with explained(self.name), quiet_transformers():
            return AutoTokenizer.from_pretrained(self.name)

    @property
    def token_limit(self) -> int:
        """The longest input, in tokens."""
        from starbucks_retrieval.models.encoder import limit_of

        return limit_of(self.shape, self.tokenizer)

    def parameters(self, layers: int) -> int:
        """Numbers in the weights of the model cut after `layers` layers."""
        import torch

        shape = copy.deepcopy(self.shape)
        cut_config(shape, layers)
        with torch.device("meta"):  # shapes without numbers
            return sum(weight.numel() for weight in _bare(shape).parameters())

    def mean_tokens(self, texts: Sequence[str], max_length: int) -> float:
        """Tokens of a text on average, special ones included, cut at `max_length`."""
        rows = self.tokenizer(list(texts), truncation=True, max_length=max_length, padding=False)["input_ids"]
        return sum(map(len, rows)) / max(1, len(rows))

    def layer_seconds(self, length: int, max_tokens: int, device: str, dtype: Any, budget: float = 0.6) -> float:
        """Seconds that one layer takes for one token of texts of `length` tokens, in batches of up to `max_tokens`.

        Measured forward on `device` for about `budget` seconds, with random weights, under autocast to `dtype` if that
        is not None: the fastest of some runs.
        """
        import torch

        shape = copy.deepcopy(self.shape)
        cut_config(shape, min(_TIMED, self.num_layers))
        shape.vocab_size, shape.pad_token_id = _WORDS, 0
        layout = layout_of(shape)
        place = torch.device(device)
        rows = max(1, max_tokens // length)
        ids = torch.full((rows, length), 5, device=place)
        with torch.inference_mode(), torch.autocast(place.type, dtype=dtype, enabled=dtype is not None):
            model = _bare(shape).to(place).eval()
            layers = len(layers_of(model, layout))
            best, stop = float("inf"), now() + budget
            while best == float("inf") or now() < stop:
                began = now()
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
                if place.type == "cuda":
                    torch.cuda.synchronize(place)
                best = min(best, seconds_since(began))
        return best / (rows * length * layers)


def model_info(name_or_path: str) -> ModelInfo:
    """A model's configuration, from its folder or the hub. Raises UserError for a model that cannot be used."""
    from transformers import AutoConfig

    with explained(name_or_path):
        shape = AutoConfig.from_pretrained(name_or_path)
    layout = layout_of(shape)
    config = find_config(name_or_path, int(shape.num_hidden_layers), int(shape.hidden_size))
    if layout.causal and not config.source:
        config = dataclasses.replace(config, pooling="last")
    return ModelInfo(name_or_path, shape, config)


def check_length(length: int, limit: int) -> int:
    """`length`, or UserError where a model has not so many positions."""
    if length > limit:
        raise UserError(f"a length of {length} tokens is beyond this model's {limit}", f"take at most {limit}")
    return length


def _bare(shape: Any) -> Any:
    from transformers import AutoModel

    options = {"add_pooling_layer": False} if shape.model_type in _NO_POOLER else {}
    with quiet_transformers():
        return AutoModel.from_config(shape, **options)
