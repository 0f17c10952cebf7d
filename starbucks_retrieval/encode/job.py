"""An encoding job: its data and model, the plan that all its processes share, and a worker for it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from starbucks_retrieval.data import Scan, scan
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.worker import Worker, texts_of
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.models.backends.selection import choose_backend, open_backend
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter, output_folder
from starbucks_retrieval.store.layout import read_manifest

log = logging.getLogger(__name__)

_SAMPLE = 300  # texts for measuring or calibrating a back end

# Flags that do not change the result; the manifest leaves them out.
_NOT_RECORDED = (
    *("encode_output_path", "overwrite", "device", "num_processes", "engine", "ray_address", "ray_workers"),
    *("backend", "dtype"),  # recorded in compute_dtype as they were resolved
)


class Job:
    """The collection, the model on the device of this process, and the back end of an encoding job.

    Raises UserError if the collection or the model cannot be read, or the flags contradict the model.
    """

    def __init__(self, arguments: EncodeArguments) -> None:
        self.arguments = arguments
        self.records = arguments.open_records()
        self.encoder = NestedEncoder.from_pretrained(
            arguments.model_name_or_path,
            layers=_deepest_layer(arguments),
            device=arguments.device or _local_gpu(),
            attn_implementation=arguments.attn_implementation,
        )
        self.encoder.config = arguments.configured(self.encoder.config)
        if arguments.torch_compile:
            self.encoder.compile_layers()
        shape = self.encoder.num_layers, self.encoder.hidden_size
        self.sizes = arguments.selected_sizes(*shape, self.encoder.sizes, self.encoder.config)
        self.max_length = self.encoder.max_length(arguments.encode_is_query)
        self._backends: dict[str, Backend] = {}

    def plan(self) -> dict[str, Any]:
        """Return what all processes share, JSON-ready: specs of the stores, name of the back end, measured speeds."""
        data = scan(self.records, kind=self.arguments.kind)
        if data.ids_with_whitespace:
            log.warning(
                "%d ids contain white space, which a TREC run cannot represent: search will need --save_format tevatron",
                data.ids_with_whitespace,
            )
        backend, measured = self._select_backend()
        specs = self._specs(backend.name, data)
        return {
            "specs": [spec.to_json() for spec in specs],
            "runtime": backend.name,
            "empty": data.empty,
            "measured": measured,
        }

    def worker(self, plan: Mapping[str, Any], writers: Mapping[Size, StoreWriter]) -> Worker:
        """Return a worker for the planned job."""
        backend, _, dtype = plan["runtime"].rpartition("-")
        return Worker(self.encoder, self.records, self._open(backend or "torch", dtype), writers, self.max_tokens)

    def folder(self, spec: StoreSpec) -> Any:
        """Return the folder of the store of one size."""
        return output_folder(self.arguments.encode_output_path, spec.size, spec.parts, spec.part)

    @property
    def max_tokens(self) -> int:
        """Rows times longest row of a batch."""
        return self.arguments.batch_tokens(self.encoder.device.type, self.max_length)

    def _select_backend(self) -> tuple[Backend, dict[str, Any]]:
        """Return the back end, and the speeds that `--backend auto` measured."""
        name, dtype = self._backend_of_store() or (self.arguments.backend, self.arguments.dtype)
        measured: dict[str, Any] = {}
        if name == "auto":
            backend, speeds = choose_backend(self._candidates(dtype), self._first_rows, self.sizes, self.max_tokens)
            measured["measured_texts_per_second"] = speeds
            listed = ", ".join(f"{key} {speed:.0f} texts/s" for key, speed in speeds.items())
            log.info("--backend auto: %s (%s)", backend.name, listed or "nothing to compare it with")
        else:
            backend = self._open(name, dtype)
        return backend, measured

    def drift(self, name: str) -> dict[str, dict[str, float]]:
        """Compare the first texts' embeddings with those in float32, for an int8 back end; empty for others."""
        if not name.endswith("int8"):
            return {}
        from starbucks_retrieval.models.backends.selection import drift

        backend = self._open(*name.split("-"))
        found = drift(backend, self.encoder, self._first_rows, self.sizes, max_tokens=self.max_tokens)
        for size, values in found.items():
            figures = name, size, values["cosine"], values["top10"]
            log.info("%s against fp32 at %s: cosine %.4f, share of the ten nearest kept %.2f", *figures)
        return {str(size): values for size, values in found.items()}

    def _backend_of_store(self) -> tuple[str, str] | None:
        """Return back end and dtype of an existing store of this job, where a flag is "auto"."""
        flags = self.arguments.backend, self.arguments.dtype
        if self.arguments.overwrite or "auto" not in flags:
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
        return found if all(a in ("auto", f) for a, f in zip(flags, found)) else None

    def _candidates(self, dtype: str) -> list[Backend]:
        candidates = []
        for name in BACKENDS:
            try:
                candidates.append(self._open(name, dtype))
            except UserError as error:  # not installed, or not for this model, device or dtype
                log.info("--backend auto: without %s: %s", name, error.what)
        return candidates

    def _open(self, name: str, dtype: str) -> Backend:
        calibration = self._first_rows if dtype == "int8" else None
        for backend in self._backends.values():
            if backend.name == (dtype if name == "torch" else f"{name}-{dtype}"):
                return backend
        backend = open_backend(name, self.encoder, self.sizes, dtype, calibration)
        return self._backends.setdefault(backend.name, backend)

    @cached_property
    def _first_rows(self) -> list[list[int]]:
        texts = texts_of(list(itertools.islice(self.records, _SAMPLE)), self.encoder.config)[1]
        return self.encoder.tokenize(texts, self.max_length)

    def _specs(self, compute_dtype: str, data: Scan) -> list[StoreSpec]:
        arguments, encoder, config = self.arguments, self.encoder, self.encoder.config
        is_query = arguments.encode_is_query
        # Where a model uses several layers, the deeper store records the fingerprints of the layers below.
        deepest = self.sizes[-1].layer if config.passage_layers else 0
        lineage = tuple(encoder.fingerprint(layer) for layer in range(1, deepest))
        settings = dataclasses.asdict(arguments)
        provenance = describe({name: value for name, value in settings.items() if name not in _NOT_RECORDED})
        return [
            StoreSpec(
                kind=arguments.kind,
                size=size,
                pooling=config.pooling,
                normalize=config.normalize,
                prefix=config.query_prefix if is_query else config.passage_prefix,
                separator="" if is_query else config.passage_field_separator,
                max_length=self.max_length,
                fingerprint=encoder.fingerprint(size.layer),
                compute_dtype=compute_dtype,
                store_dtype=arguments.store_dtype,
                data_digest=data.digest,
                data_count=data.count,
                shard_size=arguments.shard_size,
                parts=arguments.dataset_number_of_shards,
                part=arguments.dataset_shard_index,
                model_name=arguments.model_name_or_path,
                data_name=arguments.collection,
                provenance=provenance,
                space=config.passage_size(size).layer if is_query and config.passage_layers else None,
                lineage=lineage[: size.layer - 1],
            )
            for size in self.sizes
        ]


def _local_gpu() -> str | None:
    """Return the GPU of this process, where a launcher started one process for each GPU."""
    import torch

    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if local and torch.cuda.is_available() else None


def _deepest_layer(arguments: EncodeArguments) -> int | None:
    """Return the deepest layer where the flags alone determine it, so that no weights above it are read."""
    if arguments.layer is not None:
        return arguments.layer
    words = (arguments.sizes or "").split(",")
    return max(Size.parse(word).layer for word in words) if all(":" in word for word in words) else None
