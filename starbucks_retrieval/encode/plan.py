"""Decide from the flags, the model's configuration and the data what `encode` will do; `--dry_run` prints the plan."""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data import Records
from starbucks_retrieval.data.records import RecordCount, count_records
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.worker import texts_of
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.models.precision import autocast_dtype, dtype_name, weights_dtype
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import StoreSpec, output_folder
from starbucks_retrieval.store.layout import load_shard, read_manifest
from starbucks_retrieval.store.spec import SCALES, job_difference, part_rows

if TYPE_CHECKING:
    import torch

_SAMPLE = 200  # texts whose tokens are counted


@dataclasses.dataclass(frozen=True)
class EncodePlan:
    """Everything that is known about a job before weights and all data are read.

    Attributes:
        arguments: The flags.
        records: The passages or queries.
        model: The model's Hugging Face configuration.
        config: The model's settings, changed by the flags.
        sizes: The sizes to write, ascending.
        device: The device of this process.
        weights_dtype: The type of the weights in memory.
    """

    arguments: EncodeArguments
    records: Records[Any]
    model: ModelInfo
    config: EncoderConfig
    sizes: Sizes
    device: torch.device
    weights_dtype: torch.dtype

    def folder(self, size: Size) -> Any:
        """Return the folder of the store of one size, a path or a UPath."""
        return output_folder(self.arguments.encode_output_path, size, *self.arguments.parts)

    def begun(self, spec: StoreSpec) -> StoreSpec | None:
        """Return the spec of a store of the same job that an earlier run has begun, with its scales if it is quantised.

        Args:
            spec: The job, as it would be in floating-point numbers.
        """
        if self.arguments.overwrite:
            return None
        try:
            found = read_manifest(self.folder(spec.size)).spec
        except UserError:
            return None
        same = found.store_dtype == self.arguments.store_dtype
        return found if same and not job_difference(found, spec, ("store_dtype", *SCALES)) else None

    def preview(self) -> Preview:
        """Describe the work without doing it. Writes nothing and reads no weights.

        Texts are counted where that is cheap. The time is estimated from the speed of this device at layers of this shape
        with random weights, for the torch back end only.

        Returns:
            Lines for a terminal, and figures: layers, texts, mean tokens, and for each store its folder, bytes and state.
            Numbers that are not known, such as the rows of an uncounted data set, are None.

        Raises:
            UserError: As in `encode` for flags and data, except for errors that only reading all data can find.
        """
        arguments, model, device = self.arguments, self.model, self.device
        stored = self.config.query_max_len if arguments.encode_is_query else self.config.passage_max_len
        length = check_length(stored or model.token_limit, model.token_limit)
        count = count_records(self.records)
        rows = _rows(count, arguments)
        sample, layer = self._sample(), self.sizes[-1].layer
        backend, wanted = (arguments.backend, arguments.dtype) if layer else ("torch", "fp32")  # as open_backend does
        torch_computes = backend in ("torch", "auto") and wanted != "int8"
        weights = self.weights_dtype if layer else None
        dtype = autocast_dtype(wanted, device, weights) if torch_computes else None
        tokens = model.mean_tokens(sample, length)
        seconds = None
        if backend == "torch" and torch_computes and arguments.engine == "local" and rows is not None:
            batch = arguments.batch_tokens(device.type, length)
            each = model.seconds_per_text(layer, sample, length, batch, str(device), dtype)
            processes = arguments.num_processes if device.type == "cuda" else 1
            seconds = rows * each / processes
        stores = [self._store(size, rows) for size in self.sizes]
        figures: dict[str, Any] = {
            "model": arguments.model_name_or_path,
            "layers": layer,
            "parameters": model.parameters(layer),
            "texts": count.number,
            "texts_exact": count.exact,
            "rows": rows,
            "mean_tokens": round(tokens, 1),
            "max_length": length,
            "runtime": f"{backend}, {dtype_name(dtype, weights) if torch_computes else wanted}",
            "device": str(device),
            "stores": stores,
            "bytes": None if rows is None else sum(store["bytes"] for store in stores),
            "seconds": seconds,
            "free_bytes": free_bytes(arguments.encode_output_path),
        }
        return Preview(_lines(figures, count, self.records.source, arguments), figures)

    def _sample(self) -> list[str]:
        first = list(itertools.islice(self.records, _SAMPLE))
        if not first:
            raise UserError(f"{self.records.name} holds no {self.arguments.kind}", "check the file and the split")
        return texts_of(first, self.config)[1]

    def _store(self, size: Size, rows: int | None) -> dict[str, Any]:
        folder, each = self.folder(size), self.arguments.bytes_per_text(size)
        return {
            "size": str(size),
            "folder": str(folder),
            "bytes_per_text": each,
            "shards": None if rows is None else -(-rows // self.arguments.shard_size),
            "bytes": None if rows is None else rows * each,
            "state": _state(folder, self.arguments.overwrite),
        }


def plan_encoding(arguments: EncodeArguments) -> EncodePlan:
    """Read the model's configuration, choose the sizes and open the data.

    Args:
        arguments: The flags of `starbucks encode`.

    Raises:
        UserError: The model or the data cannot be opened, or a flag contradicts the model.

    Example:
        >>> print(plan_encoding(EncodeArguments("my-model", "emb", dataset_path="c.jsonl")).preview())  # doctest: +SKIP
    """
    device = resolve_device(arguments.device or _local_gpu())
    model = model_info(arguments.model_name_or_path)
    config = arguments.configured(model.config)
    sizes = arguments.selected_sizes(model, config)
    weights = weights_dtype(arguments.weights_dtype, arguments.dtype, device)
    return EncodePlan(arguments, arguments.open_records(), model, config, sizes, device, weights)


def _rows(count: RecordCount, arguments: EncodeArguments) -> int | None:
    """Return the number of rows of this part, or None where the texts were not counted."""
    if count.number is None:
        return None
    parts, part = arguments.parts
    if not 0 <= part < parts:
        raise UserError(f"--dataset_shard_index {part} is not one of {parts} parts", "count them from 0")
    start, stop = part_rows(count.number, parts, part)
    return stop - start


def _state(folder: Path, overwrite: bool) -> str:
    """Describe the current content of a store's folder."""
    try:
        manifest = read_manifest(folder)
    except UserError:
        return "new"
    if overwrite:
        return "replaced"
    if manifest.complete:
        return "complete: kept if it is this job, else refused"
    shards = manifest.spec.shards
    found = sum(load_shard(folder, shard) is not None for shard in range(shards))
    return f"{found} of {shards} shards there: continued if it is this job, else refused"


def _lines(
    figures: dict[str, Any], count: RecordCount, source: str, arguments: EncodeArguments
) -> list[tuple[str, str]]:
    parts, part = arguments.parts
    cut = f", of which part {part} of {parts} (from 0)" if parts > 1 else ""
    tokens = f"{figures['mean_tokens']:.0f} tokens on average, {figures['max_length']} at most"
    shape = f"{figures['layers']} layers, {figures['parameters'] / 1e6:.1f} M parameters"
    lines = [
        ("model", f"{figures['model']}: {shape}"),
        ("texts", f"{count} {arguments.kind} in {source}{cut}; {tokens}"),
        ("runtime", f"{figures['runtime']} on {figures['device']}"),
    ]
    for store in figures["stores"]:
        many = "" if store["bytes"] is None else f"{readable(store['bytes'])} in {store['shards']} shards, "
        each = f"{store['bytes_per_text']} bytes a text, to {store['folder']} ({store['state']})"
        lines.append(("writes", f"{store['size']}: {many}{each}"))
    if figures["bytes"] is not None:
        free = "" if figures["free_bytes"] is None else f" of {readable(figures['free_bytes'])} free there"
        lines.append(("in all", f"{readable(figures['bytes'])} and the ids{free}"))
    return [*lines, ("time", duration(figures["seconds"]))]


def _local_gpu() -> str | None:
    """Return the GPU of this process, where a launcher started one process for each GPU."""
    import torch

    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if local and torch.cuda.is_available() else None
