"""Ray Data as what hands out shards: beyond one machine, with workers that are started again when they are lost."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.worker import EncodeStats
from starbucks_retrieval.ray_cluster import cluster, import_ray, user_error
from starbucks_retrieval.store import StoreSpec, StoreWriter

log = logging.getLogger(__name__)


def encode_with_ray(
    arguments: EncodeArguments, plan: Mapping[str, Any], shards: Sequence[int], stats: EncodeStats
) -> None:
    """Encode shards of a planned job by a pool of Ray workers, which write them where this process would.

    Each worker reads the collection itself, from a path or a hub that all machines see. A worker that is lost is
    started again and its shard done anew. Raises UserError for a Ray that is not installed or cannot be reached, and
    for what a worker found wrong.
    """
    ray = import_ray("--engine ray")
    import ray.data as data

    with cluster(ray, arguments.ray_address, arguments.ray_workers or 1):
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        workers = min(arguments.ray_workers or gpus or 1, len(shards))
        cpus = max(1, int(resources.get("CPU", 1)) // workers)
        log.info("%d Ray workers, %d CPUs and %s each", workers, cpus, "a GPU" if gpus else "no GPU")
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        done = data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards)).map_batches(
            _Encoder,
            fn_constructor_args=(_everywhere(arguments), dict(plan)),
            batch_size=1,
            concurrency=workers,
            num_cpus=cpus,
            num_gpus=1 if gpus else 0,
        )
        try:
            for row in progress(done.iter_rows(), len(shards), "shards", "encode"):
                stats.add(json.loads(row["tally"]))
        except Exception as error:
            raise user_error(error) or error from None


class _Encoder:
    """A Ray worker: loads the model once, then encodes one shard a call."""

    def __init__(self, arguments: EncodeArguments, plan: Mapping[str, Any]) -> None:
        from starbucks_retrieval.encode.job import Job

        job = Job(arguments)
        specs = [StoreSpec.from_json(spec, "the job") for spec in plan["specs"]]
        self.worker = job.worker(plan, {spec.size: StoreWriter.join(job.folder(spec), spec) for spec in specs})

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        shards = [int(shard) for shard in batch["shard"]]
        self.worker.stats = EncodeStats()
        return {"tally": [json.dumps(dataclasses.asdict(self.worker.run(shards)))] * len(shards)}


def _everywhere(arguments: EncodeArguments) -> EncodeArguments:
    """The same job with absolute paths: workers run in folders of their own."""
    names = ("model_name_or_path", "encode_output_path", "dataset_path", "dataset_name", "corpus_path", "corpus_name")
    paths = {
        name: os.path.abspath(value)
        for name in names
        if (value := getattr(arguments, name)) and "://" not in value and os.path.exists(value)
    }
    return dataclasses.replace(arguments, **paths)
