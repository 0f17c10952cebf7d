"""encode(): a corpus or queries, through one model, into one store a size."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
from typing import Any

from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import StoreSpec, StoreWriter, output_folder
from starbucks_retrieval.texts import Passage, Query, Scan, join_text, open_corpus, open_queries, scan

log = logging.getLogger(__name__)


def encode(arguments: EncodeArguments) -> dict[str, Any]:
    """Write the embeddings of every text at every asked size, resuming what an earlier run of the same job left.

    The data is read through once before anything is computed, so bad input costs no encoding and leaves no store.
    Returns figures for a summary. Raises UserError for bad data, sizes, or an output folder that holds another job.
    """
    from starbucks_retrieval.models import NestedEncoder, precision

    opener = open_queries if arguments.encode_is_query else open_corpus
    records = opener(arguments.collection, config=arguments.dataset_config, split=arguments.dataset_split)
    encoder = NestedEncoder.from_pretrained(
        arguments.model_name_or_path,
        layers=_deepest(arguments),
        device=arguments.device,
        attn_implementation=arguments.attn_implementation,
    )
    encoder.config = arguments.configured(encoder.config)
    sizes = arguments.wanted(encoder.num_layers, encoder.hidden_size, encoder.sizes)
    max_length = encoder.max_length(arguments.encode_is_query)
    dtype = precision.choose(arguments.dtype, encoder.device)
    found = scan(records, kind="queries" if arguments.encode_is_query else "passages")
    if found.ids_with_whitespace:
        log.warning(
            "%d ids hold white space, which a TREC run cannot carry: search will need --save_format tevatron",
            found.ids_with_whitespace,
        )
    specs = _specs(arguments, encoder, sizes, max_length, precision.name_of(dtype), found)
    budget = _budget(arguments, max_length, encoder.device.type)
    log.info("sizes: %s; %s on %s, at most %d tokens a batch", sizes, precision.name_of(dtype), encoder.device, budget)

    clock = {"tokenize": 0.0, "compute": 0.0, "write": 0.0}
    texts_done = tokens_done = 0
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        writers = {
            size: stack.enter_context(
                StoreWriter.open(
                    output_folder(arguments.encode_output_path, size, spec.parts, spec.part), spec, arguments.overwrite
                )
            )
            for size, spec in specs.items()
        }
        missing = sorted({shard for writer in writers.values() for shard in writer.missing_shards()})
        spec = specs[sizes[0]]
        if len(missing) < spec.shards:
            log.info("%d of %d shards are there already", spec.shards - len(missing), spec.shards)
        for shard, records_of_shard in _shards(records, spec, missing):
            lap = time.perf_counter()
            ids, texts = _texts(records_of_shard, encoder.config)
            rows = encoder.tokenize(texts, max_length)
            clock["tokenize"] += -lap + (lap := time.perf_counter())
            label = f"shard {shard + 1} of {spec.shards}"
            vectors = encoder.embed(rows, sizes, max_tokens=budget, dtype=dtype, label=label)
            clock["compute"] += -lap + (lap := time.perf_counter())
            for size, writer in writers.items():
                if shard not in writer.done_shards():
                    writer.write_shard(shard, ids, vectors[size])
            clock["write"] += time.perf_counter() - lap
            texts_done += len(ids)
            tokens_done += sum(map(len, rows))
        for writer in writers.values():
            writer.finish()
    seconds = time.perf_counter() - started
    return {
        "output": arguments.encode_output_path,
        "sizes": [str(size) for size in sizes],
        "texts": found.count,
        "encoded": texts_done,
        "empty": found.empty,
        "seconds": round(seconds, 3),
        "texts_per_second": round(texts_done / seconds, 1),
        "tokens_per_second": round(tokens_done / seconds, 1),
        "seconds_by_part": {name: round(value, 3) for name, value in clock.items()},
        "bytes_per_text": {str(s): s.dim * (2 if arguments.store_dtype == "float16" else 4) for s in sizes},
    }


def _deepest(arguments: EncodeArguments) -> int | None:
    """The deepest layer asked for where the flags alone tell it, so that no weights above it are read."""
    if arguments.layer is not None:
        return arguments.layer
    words = (arguments.sizes or "").split(",")
    return max(Size.parse(word).layer for word in words) if all(":" in word for word in words) else None


def _specs(
    arguments: EncodeArguments, encoder: Any, sizes: Sizes, max_length: int, compute_dtype: str, found: Scan
) -> dict[Size, StoreSpec]:
    config = encoder.config
    is_query = arguments.encode_is_query
    # Where the output lies is no part of how it was made: the same job elsewhere gives the same bytes.
    settings = dataclasses.asdict(arguments)
    provenance = describe({k: v for k, v in settings.items() if k not in ("encode_output_path", "overwrite")})
    return {
        size: StoreSpec(
            kind="queries" if is_query else "passages",
            size=size,
            pooling=config.pooling,
            normalize=config.normalize,
            prefix=config.query_prefix if is_query else config.passage_prefix,
            separator="" if is_query else config.passage_field_separator,
            max_length=max_length,
            fingerprint=encoder.fingerprint(size.layer),
            compute_dtype=compute_dtype,
            store_dtype=arguments.store_dtype,
            data_digest=found.digest,
            data_count=found.count,
            shard_size=arguments.shard_size,
            parts=arguments.dataset_number_of_shards,
            part=arguments.dataset_shard_index,
            model_name=arguments.model_name_or_path,
            data_name=arguments.collection,
            provenance=provenance,
        )
        for size in sizes
    }


def _budget(arguments: EncodeArguments, max_length: int, device: str) -> int:
    if arguments.max_tokens_per_batch:
        return arguments.max_tokens_per_batch
    if arguments.per_device_eval_batch_size:
        return arguments.per_device_eval_batch_size * max_length
    return 65536 if device == "cuda" else 4096


def _shards(records: Any, spec: StoreSpec, missing: list[int]) -> Any:
    """(shard, its records) for every missing shard, from one pass over the data that starts at the first of them."""
    if not missing:
        return
    position = spec.shard_rows(missing[0])[0]
    stream = records.rows(spec.first_row + position, spec.first_row + spec.shard_rows(missing[-1])[1])
    for shard in range(missing[0], missing[-1] + 1):
        start, stop = spec.shard_rows(shard)
        part = list(itertools.islice(stream, stop - start))
        if shard not in missing:
            continue
        if len(part) != stop - start:
            raise UserError(f"{spec.data_name} has become shorter while it was read", "run the command again")
        yield shard, part


def _texts(records: list[Passage] | list[Query], config: Any) -> tuple[list[str], list[str]]:
    if isinstance(records[0], Query):
        return [q.query_id for q in records], [(config.query_prefix + q.text).strip() for q in records]
    separator, prefix = config.passage_field_separator, config.passage_prefix
    return [p.docid for p in records], [join_text(p, separator, prefix) for p in records]
