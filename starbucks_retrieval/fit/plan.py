"""Decide from the flags, the model's configuration and the texts what `fit` will do; `--dry_run` prints the plan."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.devices import default_batch_tokens, resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.fit import FitArguments
from starbucks_retrieval.locks import LOCK, left_by_killed_run
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.fit_report import RECORD, fitted_texts_needed, map_inputs, texts_needed
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.models.precision import autocast_dtype
from starbucks_retrieval.models.table_fitter import MAX_TEXTS
from starbucks_retrieval.models.texts import TextSource, mixed, open_sources, quotas
from starbucks_retrieval.sizes import Sizes

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

CHECKPOINT = "fit-checkpoint.safetensors"
_SECONDS = 120.0  # that the default number of texts takes
_PROBE = 128  # texts whose tokens are counted
_TEXTS_PER_NUMBER = 10  # of an embedding, at least, by default


@dataclasses.dataclass(frozen=True)
class FitPlan:
    """Everything that is known about a fit before weights and all texts are read.

    Attributes:
        arguments: The flags.
        model: The model's Hugging Face configuration.
        config: The model's settings, changed by the flags, without projections and sizes.
        layers: The layers to fit, ascending; the last layer of the model is among them.
        sizes: The sizes that the model will store; None: those that are recommended after the fit.
        sources: The texts.
        device: The device of the forward pass.
    """

    arguments: FitArguments
    model: ModelInfo
    config: EncoderConfig
    layers: tuple[int, ...]
    sizes: Sizes | None
    sources: list[TextSource]
    device: torch.device

    @property
    def output(self) -> Path:
        """The folder of the fitted model."""
        return Path(self.arguments.output_dir)

    @property
    def dtype(self) -> torch.dtype | None:
        """The autocast dtype of the forward pass; None for float32."""
        return autocast_dtype(self.arguments.dtype, self.device)

    @property
    def max_tokens(self) -> int:
        """Rows times longest row of a batch."""
        return self.arguments.max_tokens_per_batch or default_batch_tokens(self.device.type)

    @property
    def needed(self) -> int:
        """The fewest texts that the widest map can be fitted on."""
        return texts_needed(fitted_texts_needed(self.model.hidden_size, self.inputs))

    @property
    def takes_table(self) -> bool:
        """Whether maps take the token table as an input."""
        return any(0 in found for found in self.inputs.values())

    @cached_property
    def inputs(self) -> dict[int, tuple[int, ...]]:
        """{layer: the layers that its map takes}, of the layers between 0 and the last."""
        arguments = self.arguments
        return map_inputs(self.layers, self.model.num_layers, arguments.concat_layers, arguments.table_input)

    @cached_property
    def probe(self) -> list[tuple[str, bool]]:
        """The first texts of all sources, with whether each is a query."""
        return list(itertools.islice(mixed(self.sources, [None] * len(self.sources)), _PROBE))

    @cached_property
    def seconds_per_text(self) -> float:
        """The estimated seconds of a text, from the speed of this device at layers of this shape with random weights."""
        tokens = max(3.0, self.mean_tokens)
        each = self.model.layer_seconds(round(tokens), self.max_tokens, str(self.device), self.dtype)
        return each * tokens * self.model.num_layers

    @cached_property
    def mean_tokens(self) -> float:
        """The mean number of tokens of the first texts."""
        total = 0.0
        for is_query in (False, True):
            texts = [text for text, kind in self.probe if kind is is_query]
            total += len(texts) * self.model.mean_tokens(texts, self._length(is_query)) if texts else 0.0
        return total / max(1, len(self.probe))

    def _length(self, is_query: bool) -> int:
        stored = self.config.query_max_len if is_query else self.config.passage_max_len
        return check_length(stored or self.model.token_limit, self.model.token_limit)

    @cached_property
    def max_texts(self) -> int:
        """`--max_texts`, or by default what takes about two minutes here, at least ten texts for each number.

        More than `MAX_TEXTS` are never read where maps take the token table.
        """
        least = _TEXTS_PER_NUMBER * self.model.hidden_size
        affordable = max(least, self.needed, round(_SECONDS / self.seconds_per_text, -3))
        most = MAX_TEXTS if self.takes_table else float("inf")
        return int(min(self.arguments.max_texts or affordable, most))

    def shares(self, max_texts: int) -> list[int]:
        """Return the texts to read of each source.

        Raises:
            UserError: All sources are counted, and they have too few texts.
        """
        shares = [share or 0 for share in quotas([source.count for source in self.sources], max_texts)]
        if sum(shares) < self.needed:
            wide = "concatenated layers" if self.arguments.concat_layers else "this model"
            flag = self.arguments.max_texts
            raise UserError(
                f"{sum(shares)} texts are too few: the maps of {wide} need {self.needed}",
                f"raise --max_texts to {self.needed} or more, or leave it out"
                if flag is not None and flag < self.needed
                else f"name more texts, better {_TEXTS_PER_NUMBER * self.needed} of them",
            )
        return shares

    def tell(self, max_texts: int) -> None:
        """Log the number of texts, where the flags do not set it, or set more than are used."""
        if (self.arguments.max_texts or 0) > max_texts:
            log.info("reading %d texts: more would not change the table of tokens, nor maps that take it", max_texts)
        if not self.arguments.max_texts:
            seconds = sum(self.shares(max_texts)) * self.seconds_per_text
            log.info("--max_texts %d: %s; more texts fit a little better", max_texts, duration(seconds))

    def preview(self) -> Preview:
        """Describe the work without doing it. Writes nothing and reads no weights.

        Returns:
            Lines for a terminal, and figures: layers, sources with their texts, mean tokens, bytes and seconds.

        Raises:
            UserError: As in `fit` for flags and texts, except for errors that only reading all texts can find.
        """
        shares, tokens = self.shares(self.max_texts), self.mean_tokens
        hidden, parameters = self.model.hidden_size, self.model.parameters(self.model.num_layers)
        maps = sum(len(self.inputs.get(layer, [layer])) * hidden + 1 for layer in self.layers if layer) * hidden
        table = len(self.model.tokenizer) * hidden if 0 in self.layers else 0
        figures: dict[str, Any] = {
            "model": self.arguments.model_name_or_path,
            "parameters": parameters,
            "layers": list(self.layers),
            "max_texts": self.max_texts,
            "texts_needed": self.needed,
            "sources": [
                {"name": source.name, "kind": source.kind, "texts": share, "texts_there": source.count}
                for source, share in zip(self.sources, shares)
            ],
            "texts": sum(shares),
            "mean_tokens": round(tokens, 1),
            "device": str(self.device),
            "output": str(self.output),
            "bytes": 4 * (maps + table + parameters),
            "bytes_of_maps": 4 * (maps + table),
            "free_bytes": free_bytes(self.output),
            "state": _state(self.output),
            "seconds": sum(shares) * self.seconds_per_text,
        }
        return Preview(_lines(figures), figures)


def plan_fit(arguments: FitArguments) -> FitPlan:
    """Read the model's configuration, check the flags against it, and open the texts.

    Args:
        arguments: The flags of `starbucks fit`.

    Raises:
        UserError: The model or the texts cannot be opened, a flag contradicts the model, or the output folder holds
            something else.

    Example:
        >>> print(plan_fit(FitArguments("my-model", "out", dataset_path=["c.jsonl"])).preview())  # doctest: +SKIP
    """
    device = resolve_device(arguments.device)
    if arguments.dtype == "fp16" and device.type == "cpu":
        raise UserError("CPUs do not support fp16", "take --dtype bf16 or fp32 on a CPU")
    check_output(Path(arguments.output_dir), arguments)
    model = model_info(arguments.model_name_or_path)
    last, chosen = model.num_layers, arguments.chosen_layers()
    layers = tuple(sorted({*(range(last) if chosen is None else chosen), last}))
    if layers[-1] > last:
        raise UserError(f"no layer {layers[-1]} in a model of {last} layers", f"take --layers from 0 to {last}")
    changed = arguments.configured(model.config)
    config = dataclasses.replace(changed, projected_layers=(), sizes=None, passage_layers=())
    sizes = None
    if arguments.sizes:
        fitted = dataclasses.replace(config, projected_layers=layers)
        sizes = fitted.check_sizes(Sizes.parse(arguments.sizes), last, model.hidden_size)
    for length in (config.query_max_len, config.passage_max_len):
        check_length(length or 0, model.token_limit)
    sources = open_sources(arguments.dataset_path, arguments.query_path, config, arguments.query_split)
    plan = FitPlan(arguments, model, config, layers, sizes, sources, device)
    counts = [source.count for source in sources]
    if arguments.max_texts or None not in counts:
        plan.shares(arguments.max_texts or sum(filter(None, counts)))  # refuses too few
    return plan


def check_output(output: Path, arguments: FitArguments) -> None:
    """Check that the output folder may be written.

    An unfinished fit may be there, and with `--overwrite_output_dir` a complete one.

    Args:
        output: The output folder, which need not exist.
        arguments: The flags: the model and `--overwrite_output_dir` are read.

    Raises:
        UserError: It is a file or the model that is fitted, or it holds a complete fit or files of something else.
    """
    model = Path(arguments.model_name_or_path)
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, a folder is needed", "name another --output_dir")
    if model.exists() and output.exists() and output.resolve() == model.resolve():
        raise UserError(f"{output} is the model that is to be fitted", "name another --output_dir")
    state = _state(output)
    if state == "foreign":
        raise UserError(f"{output} is not empty, and no earlier fit wrote it", "name another --output_dir")
    left = left_by_killed_run(output / RECORD, output / LOCK)
    if state == "complete" and not arguments.overwrite_output_dir and not left:
        raise UserError(f"{output} holds an earlier fit", "add --overwrite_output_dir, or name another folder")


def _state(output: Path) -> str:
    """Return new, unfinished, complete or foreign."""
    names = {path.name for path in output.iterdir()} - {LOCK} if output.is_dir() else set()
    names = {name for name in names if not name.endswith(".tmp")}  # of a killed writer
    if not names:
        return "new"
    if CHECKPOINT in names:
        return "unfinished"
    return "complete" if RECORD in names else "foreign"


_STATES = {"unfinished": "continues the fit there", "complete": "replaces the fit there"}


def _lines(figures: dict[str, Any]) -> list[tuple[str, str]]:
    layers = ", ".join(map(str, figures["layers"]))
    lines = [("model", f"{figures['model']}: {figures['parameters'] / 1e6:.1f} M parameters; fits layers {layers}")]
    for source in figures["sources"]:
        there = "an uncounted number" if source["texts_there"] is None else f"{source['texts_there']:,}"
        lines.append(("texts", f"{source['texts']:,} of {there} of {source['kind']} in {source['name']}"))
    tokens = f"{figures['mean_tokens']:.0f} tokens on average; at least {figures['texts_needed']:,} are needed"
    lines.append(("in all", f"{figures['texts']:,} texts of {tokens}"))
    free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
    state = f", {_STATES[figures['state']]}" if figures["state"] in _STATES else ""
    maps = readable(figures["bytes_of_maps"])
    lines.append(
        ("writes", f"about {readable(figures['bytes'])}, {maps} of it maps, to {figures['output']}{state}{free}")
    )
    return [*lines, ("time", f"{duration(figures['seconds'])}, on {figures['device']}")]
