"""Share the shards of an encoding job among processes: those of a launcher, of --num_processes, or Ray workers."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from starbucks_retrieval.cli import progress
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.ray_cluster import cluster, import_ray, user_error

if TYPE_CHECKING:
    from starbucks_retrieval.encode.worker import EncodeStats, Worker

log = logging.getLogger(__name__)

OpenWorker: TypeAlias = Callable[[EncodeArguments, Mapping[str, Any]], "Worker"]

_HOST = "127.0.0.1"
PORT = "STARBUCKS_ENCODE_PORT"  # port of the key-value store of --num_processes, on this machine
_TIMEOUT = datetime.timedelta(days=365)  # the first process may read a large collection before it answers


def was_launched() -> bool:
    """Whether a launcher started this process and others."""
    return _processes() > 1


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


class WorkerGroup:
    """The processes that torchrun, `accelerate launch` or `--num_processes` started, or this one alone.

    They communicate through torch's key-value store; values are JSON. Shards are given out one by one, so that a slow
    device gets fewer of them.

    Attributes:
        rank: The number of this process, from 0.
        size: The number of processes.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = _processes()
        self._store: Any = None
        if self.size > 1:
            import torch.distributed as dist

            if port := os.environ.get(PORT):
                self.rank, self._store = int(os.environ["RANK"]), dist.TCPStore(_HOST, int(port))
            else:
                self._store, self.rank, self.size = next(iter(dist.rendezvous("env://")))
            self._store.set_timeout(_TIMEOUT)

    @property
    def is_leader(self) -> bool:
        """Whether this process plans the job and finishes the stores."""
        return self.rank == 0

    def broadcast(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, which only the leader calls; the others receive it as JSON.

        Args:
            key: The name of the value, another one for each call.
            compute: Returns something that JSON can hold. Tuples arrive as lists, and keys of mappings as text.
        """
        if self._store is None:
            return compute()
        if self.is_leader:
            value = compute()
            self._store.set(key, json.dumps(value))
            return value
        return json.loads(self._store.get(key))

    def share(self, items: Sequence[int]) -> Iterator[int]:
        """Yield the items of this process. Each item goes to one process, in order."""
        if self._store is None:
            yield from items
            return
        while (position := self._store.add("next", 1) - 1) < len(items):
            yield items[position]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes to the leader, None for a lost one; to the others their own."""
        if self._store is None:
            return [value]
        self._store.set(f"report/{self.rank}", json.dumps(value))
        if not self.is_leader:
            self._store.get("done")  # the process that serves the store must outlive its clients
            return [value]
        return [json.loads(self._store.get(f"report/{rank}")) for rank in range(self.size)]

    def shutdown(self) -> None:
        """Let the other processes end; called by the leader."""
        if self._store is not None and self.is_leader:
            self._store.set("done", "")
            if not (os.environ.get(PORT) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE")):
                time.sleep(1)  # this process serves the store itself: let the others read it


def _loopback_store(make_store: Callable[..., Any]) -> Any:
    """Return the key-value store of --num_processes. It has no password, so only this machine may connect.

    By itself torch listens on all addresses, whatever the name of the host.
    """
    listener = socket.create_server((_HOST, 0))
    port = listener.getsockname()[1]
    return make_store(_HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def launch(arguments: EncodeArguments) -> dict[str, Any]:
    """Run the job in several processes of this machine, each with a GPU of its own or a share of the cores.

    If a process is lost, the first one encodes its shards.

    Args:
        arguments: The flags of `starbucks encode`; `num_processes` is the number of processes.

    Returns:
        The figures of the whole job, as `encode` returns them.

    Raises:
        UserError: There are GPUs, but fewer than processes; or the first process failed, after it printed its own
            message.
    """
    import torch
    import torch.distributed as dist

    count = arguments.num_processes
    if torch.cuda.is_available() and count > torch.cuda.device_count():
        raise UserError(
            f"--num_processes {count} on a machine with {torch.cuda.device_count()} GPUs",
            "use one process for each GPU",
        )
    store = _loopback_store(dist.TCPStore)
    environment = {
        **os.environ,
        "WORLD_SIZE": str(count),
        PORT: str(store.port),
    }
    if not torch.cuda.is_available():
        environment.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // count)))
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        settings = dataclasses.asdict(arguments) | {"num_processes": 1}
        job.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}), encoding="utf-8")
        level = logging.getLevelName(logging.getLogger("starbucks_retrieval").getEffectiveLevel()).lower()
        command = [sys.executable, "-m", "starbucks_retrieval.encode", str(job), "--json", f"--log_level={level}"]
        with open(Path(folder) / "figures.json", "w+", encoding="utf-8") as figures:
            processes = [
                subprocess.Popen(  # noqa: S603 - this interpreter, with flags that were checked
                    command,
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=figures if rank == 0 else subprocess.DEVNULL,
                )
                for rank in range(count)
            ]
            try:
                _watch(processes, store)
            finally:
                for process in processes:
                    if process.poll() is None:
                        process.terminate()
                        process.wait()
            figures.seek(0)
            return json.loads(figures.read())


def _watch(processes: Sequence[subprocess.Popen[bytes]], store: Any) -> None:
    """Wait for the first process; report lost processes to it."""
    lost: set[int] = set()
    while (status := processes[0].poll()) is None:
        for rank, process in enumerate(processes):
            if rank not in lost and process.poll():
                lost.add(rank)
                log.warning("process %d was lost (status %d); the first one encodes its shards", rank, process.poll())
                store.set(f"report/{rank}", "null")
        time.sleep(0.1)
    if status:
        raise UserError(
            f"the first of {len(processes)} processes ended with status {status}",
            "see its message above; run the same command again, it resumes",
        )


def encode_with_ray(
    open_worker: OpenWorker,
    arguments: EncodeArguments,
    shared: Mapping[str, Any],
    shards: Sequence[int],
    stats: EncodeStats,
) -> None:
    """Encode shards of a planned job with a pool of Ray workers, which write the shards themselves.

    Each worker reads the collection itself, from a path or a hub that all machines can access. A lost worker is started
    again, and its shard is encoded again.

    Args:
        open_worker: Called once in each worker with its flags and `shared`; returns what encodes its shards.
        arguments: The flags of `starbucks encode`. `ray_address` names the cluster; `ray_workers` is the number of
            workers; None: one for each GPU of the cluster, or one without GPUs. There are never more than shards.
        shared: The result of `Job.shared`.
        shards: The numbers of the shards to encode.
        stats: Statistics to which those of the workers are added, in place.

    Raises:
        UserError: Ray is not installed or not reachable, or a worker raised it.
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
            _RayWorker,
            fn_constructor_args=(open_worker, _absolute_paths(arguments), dict(shared)),
            batch_size=1,
            concurrency=workers,
            num_cpus=cpus,
            num_gpus=1 if gpus else 0,
        )
        try:
            for row in progress(done.iter_rows(), len(shards), "shards", "encode"):
                stats.add(json.loads(row["stats"]))
        except Exception as error:
            raise user_error(error) or error from None


class _RayWorker:
    """A Ray worker: load the model once, then encode one shard for each call."""

    def __init__(self, open_worker: OpenWorker, arguments: EncodeArguments, shared: Mapping[str, Any]) -> None:
        self.worker = open_worker(arguments, shared)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        shards = [int(shard) for shard in batch["shard"]]
        return {"stats": [json.dumps(dataclasses.asdict(self.worker.run(shards)))] * len(shards)}


def _absolute_paths(arguments: EncodeArguments) -> EncodeArguments:
    """Return the same arguments with absolute paths, as workers run in other folders."""
    names = ("model_name_or_path", "encode_output_path", "dataset_path", "dataset_name", "corpus_path", "corpus_name")
    paths = {
        name: os.path.abspath(value)
        for name in names
        if (value := getattr(arguments, name)) and "://" not in value and os.path.exists(value)
    }
    return dataclasses.replace(arguments, **paths)
