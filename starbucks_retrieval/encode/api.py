"""encode(): a corpus or queries, through one model, into one store a size."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import Any

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.worker_group import WorkerGroup, launch, launched
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import StoreSpec, StoreWriter

log = logging.getLogger(__name__)


def encode(arguments: EncodeArguments) -> dict[str, Any]:
    """Write the embeddings of every text at every asked size, resuming what an earlier run of the same job left.

    The data is read through once before anything is computed, so bad input costs no encoding and leaves no store. In
    processes that a launcher started, each encodes a part of the shards. Returns figures for a summary: the whole
    job's in the first process, its own in the others.
    Raises UserError for bad data, sizes, or an output folder that holds another job.
    """
    if arguments.num_processes > 1:
        return launch(arguments)
    if arguments.engine == "ray" and launched():
        raise UserError("--engine ray starts its own workers", "run it as one process, without torchrun or accelerate")
    # Here, so that a launcher's parent process and --help stay light.
    from starbucks_retrieval.encode.job import Job
    from starbucks_retrieval.encode.worker import EncodeStats

    team = WorkerGroup()
    began = now()
    job = Job(arguments)
    plan = team.told("plan", job.plan)
    specs = [StoreSpec.from_json(spec, "the job") for spec in plan["specs"]]
    log.info("sizes: %s; %s on %s", ",".join(str(s.size) for s in specs), plan["runtime"], job.encoder.device)
    with contextlib.ExitStack() as stack:
        writers = {}
        if team.is_leader:
            writers = {
                spec.size: stack.enter_context(StoreWriter.open(job.folder(spec), spec, arguments.overwrite))
                for spec in specs
            }
        missing = team.told("missing", lambda: sorted({s for w in writers.values() for s in w.missing_shards()}))
        if len(missing) < specs[0].shards:
            log.info("%d of %d shards are there already", specs[0].shards - len(missing), specs[0].shards)
        drift = job.drift(plan["runtime"]) if team.is_leader and missing else {}
        stats = EncodeStats()
        if arguments.engine == "ray":
            from starbucks_retrieval.encode.ray_engine import encode_with_ray

            encode_with_ray(arguments, plan, missing, stats)
        elif missing:
            writers = writers or {spec.size: StoreWriter.join(job.folder(spec), spec) for spec in specs}
            worker = job.worker(plan, writers)
            for other in team.report(dataclasses.asdict(worker.run(team.share(missing)))):
                stats.add(other or dataclasses.asdict(EncodeStats()))
        if team.is_leader:
            for writer in writers.values():
                writer.collect()
            left = sorted({shard for writer in writers.values() for shard in writer.missing_shards()})
            if left:  # of processes that were lost
                stats.add(dataclasses.asdict(job.worker(plan, writers).run(left)))
            for writer in writers.values():
                writer.finish()
        team.shutdown()
    seconds = seconds_since(began)
    return {
        "output": arguments.encode_output_path,
        "sizes": [str(spec.size) for spec in specs],
        "runtime": plan["runtime"],
        "processes": team.size,
        "texts": specs[0].data_count,
        "encoded": stats.texts,
        "empty": plan["empty"],
        "seconds": round(seconds, 3),
        "texts_per_second": round(stats.texts / seconds, 1),
        "tokens_per_second": round(stats.tokens / seconds, 1),
        "seconds_by_part": {name: round(value, 3) for name, value in stats.seconds.items()},
        "bytes_per_text": {str(s.size): s.size.dim * (2 if arguments.store_dtype == "float16" else 4) for s in specs},
        **plan["measured"],
        **({"drift": drift} if drift else {}),
    }
