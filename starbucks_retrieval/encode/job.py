"""One encoding job: its data and model, what all its processes must agree on, and a worker for it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from starbucks_retrieval.data import Records, Scan, open_corpus, open_queries, scan
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.worker import Worker, texts_of
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.models.backends.selection import choose_backend, open_backend
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import StoreSpec, StoreWriter, output_folder
from starbucks_retrieval.store.layout import read_manifest

log = logging.getLogger(__name__)

_FIRST = 300  # texts by which a back end is measured, or calibrated

# Flags that say where and by whom the work is done, not what is written.
_PLACES = (
    *("encode_output_path", "overwrite", "device", "num_processes", "engine", "ray_address", "ray_workers"),
    *("backend", "dtype"),  # the manifest names what was chosen
)


class Job:
    """A collection, a model with the flags' changes on this process' device, and what computes its embeddings.

    Raises UserError for a collection or a model that cannot be read, and for flags that contradict the model.
    """

    def __init__(self, arguments: EncodeArguments) -> None:
        self.arguments = arguments
        opener = open_queries if arguments.encode_is_query else open_corpus
        self.records: Records[Any] = opener(
            arguments.collection, config=arguments.dataset_config, split=arguments.dataset_split
        )
        self.encoder = NestedEncoder.from_pretrained(
            arguments.model_name_or_path,
            layers=_deepest(arguments),
            device=arguments.device or _own_gpu(),
            attn_implementation=arguments.attn_implementation,
        )
        self.encoder.config = arguments.configured(self.encoder.config)
        if arguments.torch_compile:
            self.encoder.compile_layers()
        shape = self.encoder.num_layers, self.encoder.hidden_size
        self.sizes = arguments.wanted(*shape, self.encoder.sizes, self.encoder.config)
        self.max_length = self.encoder.max_length(arguments.encode_is_query)
        self._runtimes: dict[str, Backend] = {}

    def plan(self) -> dict[str, Any]:
        """What all processes of the job must know, JSON-ready: specs of the stores, the runtime, what was measured."""
        found = scan(self.records, kind="queries" if self.arguments.encode_is_query else "passages")
        if found.ids_with_whitespace:
            log.warning(
                "%d ids hold white space, which a TREC run cannot carry: search will need --save_format tevatron",
                found.ids_with_whitespace,
            )
        runtime, measured = self._chosen()
        specs = _specs(self.arguments, self.encoder, self.sizes, self.max_length, runtime.name, found)
        return {
            "specs": [spec.to_json() for spec in specs],
            "runtime": runtime.name,
            "empty": found.empty,
            "measured": measured,
        }

    def worker(self, plan: Mapping[str, Any], writers: Mapping[Size, StoreWriter]) -> Worker:
        """A worker of the planned job."""
        backend, _, dtype = plan["runtime"].rpartition("-")
        return Worker(self.encoder, self.records, self._open(backend or "torch", dtype), writers, self.max_tokens)

    def folder(self, spec: StoreSpec) -> Any:
        """Where one size's store is written."""
        return output_folder(self.arguments.encode_output_path, spec.size, spec.parts, spec.part)

    @property
    def max_tokens(self) -> int:
        """Rows x longest of a batch."""
        if self.arguments.max_tokens_per_batch:
            return self.arguments.max_tokens_per_batch
        if self.arguments.per_device_eval_batch_size:
            return self.arguments.per_device_eval_batch_size * self.max_length
        return 65536 if self.encoder.device.type == "cuda" else 4096

    def _chosen(self) -> tuple[Backend, dict[str, Any]]:
        """What computes, and what was measured to choose it."""
        backend, dtype = self._begun() or (self.arguments.backend, self.arguments.dtype)
        measured: dict[str, Any] = {}
        if backend == "auto":
            runtime, speeds = choose_backend(self._candidates(dtype), self._first_rows, self.sizes, self.max_tokens)
            measured["measured_texts_per_second"] = speeds
            told = ", ".join(f"{name} {speed:.0f} texts/s" for name, speed in speeds.items())
            log.info("--backend auto: %s (%s)", runtime.name, told or "nothing to compare it with")
        else:
            runtime = self._open(backend, dtype)
        return runtime, measured

    def drift(self, name: str) -> dict[str, dict[str, float]]:
        """How far the first texts' embeddings stray from float32 where the runtime `name` rounds to int8; else nothing."""
        if not name.endswith("int8"):
            return {}
        from starbucks_retrieval.models.backends.selection import drift

        runtime = self._open(*name.split("-"))
        found = drift(runtime, self.encoder, self._first_rows, self.sizes, max_tokens=self.max_tokens)
        for size, values in found.items():
            said = name, size, values["cosine"], values["top10"]
            log.info("%s against fp32 at %s: cosine %.4f, share of the ten nearest kept %.2f", *said)
        return {str(size): values for size, values in found.items()}

    def _begun(self) -> tuple[str, str] | None:
        """Back end and dtype of a store that is there already, where the flags leave the choice."""
        asked = self.arguments.backend, self.arguments.dtype
        if self.arguments.overwrite or "auto" not in asked:
            return None
        parts = self.arguments.dataset_number_of_shards, self.arguments.dataset_shard_index
        try:
            name = read_manifest(
                output_folder(self.arguments.encode_output_path, self.sizes[0], *parts)
            ).spec.compute_dtype
        except UserError:
            return None
        backend, _, dtype = name.rpartition("-")
        found = backend or "torch", dtype
        return found if all(a in ("auto", f) for a, f in zip(asked, found)) else None

    def _candidates(self, dtype: str) -> list[Backend]:
        candidates = []
        for backend in BACKENDS:
            try:
                candidates.append(self._open(backend, dtype))
            except UserError as error:  # not installed, or not made for this model, device or dtype
                log.info("--backend auto: without %s: %s", backend, error.what)
        return candidates

    def _open(self, backend: str, dtype: str) -> Backend:
        calibration = self._first_rows if dtype == "int8" else None
        for runtime in self._runtimes.values():
            if runtime.name == (dtype if backend == "torch" else f"{backend}-{dtype}"):
                return runtime
        runtime = open_backend(backend, self.encoder, self.sizes, dtype, calibration)
        return self._runtimes.setdefault(runtime.name, runtime)

    @cached_property
    def _first_rows(self) -> list[list[int]]:
        texts = texts_of(list(itertools.islice(self.records, _FIRST)), self.encoder.config)[1]
        return self.encoder.tokenize(texts, self.max_length)


def _own_gpu() -> str | None:
    """The GPU of this process, where a launcher started one a GPU."""
    import torch

    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if local and torch.cuda.is_available() else None


def _deepest(arguments: EncodeArguments) -> int | None:
    """The deepest layer asked for where the flags alone tell it, so that no weights above it are read."""
    if arguments.layer is not None:
        return arguments.layer
    words = (arguments.sizes or "").split(",")
    return max(Size.parse(word).layer for word in words) if all(":" in word for word in words) else None


def _specs(
    arguments: EncodeArguments, encoder: NestedEncoder, sizes: Sizes, max_length: int, compute_dtype: str, found: Scan
) -> list[StoreSpec]:
    config = encoder.config
    is_query = arguments.encode_is_query
    # Where the output lies is no part of how it was made: the same job elsewhere gives the same bytes.
    settings = dataclasses.asdict(arguments)
    # Stores of different layers are searched together: the deeper one tells what the other is of.
    deepest = sizes[-1].layer if config.passage_layers else 0
    lineage = tuple(encoder.fingerprint(layer) for layer in range(1, deepest))
    provenance = describe({k: v for k, v in settings.items() if k not in _PLACES})
    return [
        StoreSpec(
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
            space=config.passage_size(size).layer if is_query and config.passage_layers else None,
            lineage=lineage[: size.layer - 1],
        )
        for size in sizes
    ]
