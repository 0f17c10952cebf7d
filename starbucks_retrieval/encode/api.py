"""encode(): write the embeddings of a corpus or of queries, one store for each size."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import Any

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.processes import WorkerGroup, launch, was_launched
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import StoreSpec, StoreWriter

log = logging.getLogger(__name__)


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
    # Imported here, so that the parent of --num_processes and --help do not wait for torch.
    from starbucks_retrieval.encode.job import Job
    from starbucks_retrieval.encode.worker import EncodeStats

    group = WorkerGroup()
    began = now()
    job = Job(arguments)
    plan = group.broadcast("plan", job.plan)
    specs = [StoreSpec.from_json(spec, "the job") for spec in plan["specs"]]
    log.info("sizes: %s; %s on %s", ",".join(str(s.size) for s in specs), plan["runtime"], job.encoder.device)
    with contextlib.ExitStack() as stack:
        writers = {}
        if group.is_leader:
            writers = {
                spec.size: stack.enter_context(StoreWriter.open(job.folder(spec), spec, arguments.overwrite))
                for spec in specs
            }
        missing = group.broadcast("missing", lambda: sorted({s for w in writers.values() for s in w.missing_shards()}))
        if len(missing) < specs[0].shards:
            log.info("%d of %d shards are there already", specs[0].shards - len(missing), specs[0].shards)
        drift = job.drift(plan["runtime"]) if group.is_leader and missing else {}
        stats = EncodeStats()
        if arguments.engine == "ray":
            from starbucks_retrieval.encode.processes import encode_with_ray

            encode_with_ray(arguments, plan, missing, stats)
        elif missing:
            writers = writers or {spec.size: StoreWriter.join(job.folder(spec), spec) for spec in specs}
            worker = job.worker(plan, writers)
            for other in group.gather(dataclasses.asdict(worker.run(group.share(missing)))):
                stats.add(other or dataclasses.asdict(EncodeStats()))
        if group.is_leader:
            for writer in writers.values():
                writer.collect()
            remaining = sorted({shard for writer in writers.values() for shard in writer.missing_shards()})
            if remaining:  # a process was lost
                stats.add(dataclasses.asdict(job.worker(plan, writers).run(remaining)))
            for writer in writers.values():
                writer.finish()
        group.shutdown()
    seconds = seconds_since(began)
    return {
        "output": arguments.encode_output_path,
        "sizes": [str(spec.size) for spec in specs],
        "runtime": plan["runtime"],
        "processes": group.size,
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
