"""The dry run of encode: stores, bytes and time, from the model's configuration and the first texts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.data.scan import RecordCount, count_records
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.worker import texts_of
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.info import ModelInfo, check_length, model_info
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import output_folder
from starbucks_retrieval.store.layout import load_shard, read_manifest
from starbucks_retrieval.store.spec import part_rows

_SAMPLE = 200  # texts whose tokens are counted


def preview(arguments: EncodeArguments) -> Preview:
    """Describe the work of `encode` with the same flags. Writes nothing and reads no weights.

    Texts are counted where that is cheap. The time is estimated from the speed of this device at layers of this shape
    with random weights, for the torch back end only.

    Args:
        arguments: The flags of `starbucks encode`.

    Returns:
        Lines for a terminal, and figures: layers, texts, mean tokens, and for each store its folder, bytes and state.
        Numbers that are not known, such as the rows of an uncounted data set, are None.

    Raises:
        UserError: As in `encode` for flags, model and data, except for errors that only reading all data can find.
    """
    from starbucks_retrieval.devices import resolve_device
    from starbucks_retrieval.models.precision import autocast_dtype, dtype_name

    device = resolve_device(arguments.device)
    model = model_info(arguments.model_name_or_path)
    config = arguments.configured(model.config)
    sizes = arguments.selected_sizes(model.num_layers, model.hidden_size, model.sizes, config)
    stored = config.query_max_len if arguments.encode_is_query else config.passage_max_len
    length = check_length(stored or model.token_limit, model.token_limit)
    records = arguments.open_records()
    count = count_records(records)
    rows = _rows(count, arguments)
    torch_computes = arguments.backend in ("torch", "auto") and arguments.dtype != "int8"
    dtype = autocast_dtype(arguments.dtype, device) if torch_computes else None  # type: ignore[arg-type]
    runtime = f"{arguments.backend}, {dtype_name(dtype) if torch_computes else arguments.dtype}"
    tokens = _mean_tokens(arguments, model, records, length)
    seconds = None
    if arguments.backend == "torch" and torch_computes and arguments.engine == "local" and rows is not None:
        batch = arguments.batch_tokens(device.type, length)
        each = model.layer_seconds(max(3, round(tokens)), batch, str(device), dtype)
        processes = arguments.num_processes if device.type == "cuda" else 1
        seconds = rows * tokens * sizes[-1].layer * each / processes
    stores = [_store(arguments, size, rows) for size in sizes]
    figures: dict[str, Any] = {
        "model": arguments.model_name_or_path,
        "layers": sizes[-1].layer,
        "parameters": model.parameters(max(1, sizes[-1].layer)),
        "texts": count.number,
        "texts_exact": count.exact,
        "rows": rows,
        "mean_tokens": round(tokens, 1),
        "max_length": length,
        "runtime": runtime,
        "device": str(device),
        "stores": stores,
        "bytes": None if rows is None else sum(store["bytes"] for store in stores),
        "seconds": seconds,
        "free_bytes": free_bytes(arguments.encode_output_path),
    }
    return Preview(_lines(figures, records.source, arguments), figures)


def _rows(count: RecordCount, arguments: EncodeArguments) -> int | None:
    """Return the number of rows of this part, or None where the texts were not counted."""
    if count.number is None:
        return None
    if not 0 <= arguments.dataset_shard_index < arguments.dataset_number_of_shards:
        raise UserError(
            f"--dataset_shard_index {arguments.dataset_shard_index} is not one of {arguments.dataset_number_of_shards} parts",
            "count them from 0",
        )
    start, stop = part_rows(count.number, arguments.dataset_number_of_shards, arguments.dataset_shard_index)
    return stop - start


def _mean_tokens(arguments: EncodeArguments, model: ModelInfo, records: Any, length: int) -> float:
    first = list(itertools.islice(records, _SAMPLE))
    if not first:
        raise UserError(f"{records.name} holds no {arguments.kind}", "check the file and the split")
    return model.mean_tokens(texts_of(first, arguments.configured(model.config))[1], length)


def _store(arguments: EncodeArguments, size: Size, rows: int | None) -> dict[str, Any]:
    parts = arguments.dataset_number_of_shards, arguments.dataset_shard_index
    folder = output_folder(arguments.encode_output_path, size, *parts)
    each = size.dim * (2 if arguments.store_dtype == "float16" else 4)
    return {
        "size": str(size),
        "folder": str(folder),
        "bytes_per_text": each,
        "shards": None if rows is None else -(-rows // arguments.shard_size),
        "bytes": None if rows is None else rows * each,
        "state": _state(folder, arguments.overwrite),
    }


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


def _lines(figures: dict[str, Any], source: str, arguments: EncodeArguments) -> list[tuple[str, str]]:
    count = RecordCount(figures["texts"], figures["texts_exact"])
    parts, part = arguments.dataset_number_of_shards, arguments.dataset_shard_index
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
