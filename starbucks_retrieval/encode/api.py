"""Write the embeddings of a corpus or of queries, one store for each size."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data import Scan, scan
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.plan import plan_encoding
from starbucks_retrieval.encode.processes import WorkerGroup, encode_with_ray, launch, was_launched
from starbucks_retrieval.encode.worker import EncodeStats, Worker, texts_of
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import cache_folder
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.models.backends.drift import kept_drift
from starbucks_retrieval.models.backends.selection import Choices, open_backend
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter
from starbucks_retrieval.store.dtypes import QUANTISED, calibration_rows
from starbucks_retrieval.store.layout import read_manifest

log = logging.getLogger(__name__)

_SAMPLE = 300  # texts for measuring or calibrating a back end
_NAMED = 8  # sizes whose names fit into a line

# Flags that do not change the result; the manifest leaves them out.
_NOT_RECORDED = (
    *("encode_output_path", "overwrite", "device", "num_processes", "engine", "ray_address", "ray_workers"),
    *("backend", "dtype", "weights_dtype"),  # recorded in compute_dtype as they were resolved
)


def encode(arguments: EncodeArguments) -> dict[str, Any]:
    """Write the embeddings of all texts at all chosen sizes; a rerun of the same job resumes.

    All data is read once before anything is computed, so bad input costs no encoding and leaves no store. In processes
    that a launcher started, each encodes a part of the shards.

    Args:
        arguments: The flags of `starbucks encode`.

    Returns:
        Figures: output, sizes, runtime, texts, encoded, seconds and speeds. The first process returns those of the
        whole job, the others their own.

    Raises:
        UserError: The data or the sizes are bad, or the output folder holds another job.

    Example:
        >>> encode(EncodeArguments("my-model", "emb", dataset_path="corpus.jsonl", sizes="6:128"))  # doctest: +SKIP
    """
    if arguments.num_processes > 1:
        return launch(arguments)
    if arguments.engine == "ray" and was_launched():
        raise UserError("--engine ray starts its own workers", "run it as one process, without torchrun or accelerate")
    group = WorkerGroup()
    began = now()
    job = Job(arguments)
    shared = group.broadcast("plan", job.shared)
    specs = [StoreSpec.from_json(spec, "the job") for spec in shared["specs"]]
    sizes = [str(spec.size) for spec in specs]
    named = ",".join(sizes) if len(sizes) <= _NAMED else f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
    log.info("%s at %s; %s on %s", arguments.kind, named, shared["runtime"], job.encoder.device)
    with contextlib.ExitStack() as stack:
        writers = {}
        if group.is_leader:
            writers = {
                spec.size: stack.enter_context(StoreWriter.open(job.plan.folder(spec.size), spec, arguments.overwrite))
                for spec in specs
            }
        missing = group.broadcast("missing", lambda: sorted({s for w in writers.values() for s in w.missing_shards()}))
        if len(missing) < specs[0].shards:
            log.info("%d of %d shards are there already", specs[0].shards - len(missing), specs[0].shards)
        drift = job.drift(shared["runtime"]) if group.is_leader and missing else {}
        stats = EncodeStats()
        if arguments.engine == "ray":
            encode_with_ray(open_worker, arguments, shared, missing, stats)
        elif missing:
            worker = job.worker(shared["runtime"], writers) if writers else _join(job, shared)
            for other in group.gather(dataclasses.asdict(worker.run(group.share(missing)))):
                stats.add(other or dataclasses.asdict(EncodeStats()))
        if group.is_leader:
            for writer in writers.values():
                writer.collect()
            remaining = sorted({shard for writer in writers.values() for shard in writer.missing_shards()})
            if remaining:  # a process was lost
                stats.add(dataclasses.asdict(job.worker(shared["runtime"], writers).run(remaining)))
            for writer in writers.values():
                writer.finish()
        group.shutdown()
    seconds = seconds_since(began)
    return {
        "output": arguments.encode_output_path,
        "sizes": [str(spec.size) for spec in specs],
        "runtime": shared["runtime"],
        "processes": group.size,
        "texts": specs[0].data_count,
        "encoded": stats.texts,
        "empty": shared["empty"],
        "seconds": round(seconds, 3),
        "texts_per_second": round(stats.texts / seconds, 1),
        "tokens_per_second": round(stats.tokens / seconds, 1),
        "seconds_by_part": {name: round(value, 3) for name, value in stats.seconds.items()},
        "bytes_per_text": {str(spec.size): arguments.bytes_per_text(spec.size) for spec in specs},
        **shared["measured"],
        **({"drift": drift} if drift else {}),
    }


def open_worker(arguments: EncodeArguments, shared: Mapping[str, Any]) -> Worker:
    """Load the model and join the stores of a job that another process has begun.

    Args:
        arguments: The flags of `starbucks encode`.
        shared: The result of `Job.shared` in the other process.

    Raises:
        UserError: The model or the data cannot be read here.
    """
    return _join(Job(arguments), shared)


def _join(job: Job, shared: Mapping[str, Any]) -> Worker:
    specs = [StoreSpec.from_json(spec, "the job") for spec in shared["specs"]]
    return job.worker(
        shared["runtime"], {spec.size: StoreWriter.join(job.plan.folder(spec.size), spec) for spec in specs}
    )


class Job:
    """A plan with the model on the device of this process, and the back end that computes its embeddings.

    Args:
        arguments: The flags of `starbucks encode`.

    Attributes:
        plan: The plan of the job.
        encoder: The model, loaded up to the deepest layer that is written.

    Raises:
        UserError: The collection or the model cannot be read, or the flags contradict the model.
    """

    def __init__(self, arguments: EncodeArguments) -> None:
        from starbucks_retrieval.models import NestedEncoder  # the parent of --num_processes does not wait for it

        self.arguments = arguments
        self.plan = plan_encoding(arguments)
        self.encoder = NestedEncoder.from_pretrained(
            arguments.model_name_or_path,
            layers=self.plan.sizes[-1].layer,
            device=self.plan.device,
            attn_implementation=arguments.attn_implementation,
            weights_dtype=self.plan.weights_dtype,
        )
        self.encoder.config = arguments.configured(self.encoder.config)
        if arguments.torch_compile:
            self.encoder.compile_layers()
        self.max_length = self.encoder.max_length(arguments.encode_is_query)
        self.max_tokens = arguments.batch_tokens(self.encoder.device.type, self.max_length)
        self._backends: dict[str, Backend] = {}

    def shared(self) -> dict[str, Any]:
        """Scan the data and choose the back end.

        Returns:
            What all processes share, JSON-ready: specs of the stores, name of the back end, measured speeds.

        Raises:
            UserError: The data is bad, or the back end cannot compute this model.
        """
        data = scan(self.plan.records, kind=self.arguments.kind)
        if data.ids_with_whitespace:
            log.warning(
                "%d ids contain white space, which a TREC run cannot represent: search will need --save_format tevatron",
                data.ids_with_whitespace,
            )
        backend, measured = self._select_backend()
        specs = self._quantised(self._specs(backend.name, data), backend)
        return {
            "specs": [spec.to_json() for spec in specs],
            "runtime": backend.name,
            "empty": data.empty,
            "measured": measured,
        }

    def worker(self, runtime: str, writers: Mapping[Size, StoreWriter]) -> Worker:
        """Return a worker that encodes shards into `writers` by the back end that `shared` named."""
        backend, _, dtype = runtime.rpartition("-")
        return Worker(self.encoder, self.plan.records, self._open(backend or "torch", dtype), writers, self.max_tokens)

    def drift(self, name: str) -> dict[str, dict[str, float]]:
        """Compare the first texts' embeddings with those in float32.

        Args:
            name: Name of the back end, as `shared` returns it.

        Returns:
            Size → the mean cosine and the share of the ten nearest that are kept; empty unless the back end is int8.
        """
        if not name.endswith("int8"):
            return {}
        backend = self._open(*name.split("-"))
        found = kept_drift(backend, self.encoder, self._first_rows, self.plan.sizes, max_tokens=self.max_tokens)
        for size, values in found.items():
            figures = name, size, values["cosine"], values["top10"]
            log.info("%s against fp32 at %s: cosine %.4f, share of the ten nearest kept %.2f", *figures)
        return {str(size): values for size, values in found.items()}

    def _select_backend(self) -> tuple[Backend, dict[str, Any]]:
        """Return the back end, and the speeds that `--backend auto` measured."""
        name, dtype = self._backend_of_store() or (self.arguments.backend, self.arguments.dtype)
        if name != "auto":
            return self._open(name, dtype), {}
        more = {"max_length": self.max_length, "kind": self.arguments.kind}
        choices = Choices(cache_folder(), self.encoder, self.plan.sizes, dtype, self.max_tokens, more)
        backend, speeds = choices.fastest(self._open, lambda: self._candidates(dtype), self._first_rows)
        return backend, {"measured_texts_per_second": speeds}

    def _backend_of_store(self) -> tuple[str, str] | None:
        """Return back end and dtype of an existing store of this job, where a flag is "auto"."""
        flags = self.arguments.backend, self.arguments.dtype
        if self.arguments.overwrite or "auto" not in flags:
            return None
        try:
            name = read_manifest(self.plan.folder(self.plan.sizes[0])).spec.compute_dtype
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
        backend = open_backend(name, self.encoder, self.plan.sizes, dtype, calibration)
        return self._backends.setdefault(backend.name, backend)

    @cached_property
    def _first_rows(self) -> list[list[int]]:
        texts = texts_of(list(itertools.islice(self.plan.records, _SAMPLE)), self.encoder.config)[1]
        return self.encoder.tokenize(texts, self.max_length)

    def _specs(self, compute_dtype: str, data: Scan) -> list[StoreSpec]:
        arguments, (parts, part) = self.arguments, self.arguments.parts
        settings = dataclasses.asdict(arguments).items()
        provenance = describe({name: value for name, value in settings if name not in _NOT_RECORDED})
        return [
            StoreSpec(
                kind=arguments.kind,
                size=size,
                **self.encoder.store_fields(size, arguments.encode_is_query),
                compute_dtype=compute_dtype,
                store_dtype="float32" if arguments.store_dtype in QUANTISED else arguments.store_dtype,
                data_digest=data.digest,
                data_count=data.count,
                shard_size=arguments.shard_size,
                parts=parts,
                part=part,
                data_name=arguments.collection,
                provenance=provenance,
            )
            for size in self.plan.sizes
        ]

    def _quantised(self, specs: list[StoreSpec], backend: Backend) -> list[StoreSpec]:
        """Return the specs with the scales of a quantised store: those of a store of this job, else of some texts."""
        store_dtype, sample = self.arguments.store_dtype, {}
        if store_dtype not in QUANTISED:
            return specs
        begun = [self.plan.begun(spec) for spec in specs]
        if not all(begun):
            wanted = set(calibration_rows(specs[0].data_count).tolist())
            records = [record for row, record in enumerate(self.plan.records) if row in wanted]
            rows = self.encoder.tokenize(texts_of(records, self.encoder.config)[1], self.max_length)
            sample = backend.embed(rows, self.plan.sizes, max_tokens=self.max_tokens, label="scales")
        return [old or spec.quantised(store_dtype, sample[spec.size]) for old, spec in zip(begun, specs)]
