"""Processes that encode one collection together: they agree on one job, and take its shards from one list."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

PORT = "STARBUCKS_ENCODE_PORT"  # where the store of our own launcher listens, on this machine
_FOREVER = datetime.timedelta(days=365)  # the first process may read a large collection before it speaks


def launched() -> bool:
    """Whether a launcher started this process and others."""
    return _processes() > 1


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


class WorkerGroup:
    """The processes that torchrun, `accelerate launch` or `--num_processes` started, or this one alone.

    They meet in the key-value store through which torch's processes find each other; values are JSON. Shards are
    handed out one by one, so that a slow device takes fewer of them.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = _processes()
        self._store: Any = None
        if self.size > 1:
            import torch.distributed as dist

            if port := os.environ.get(PORT):
                self.rank, self._store = int(os.environ["RANK"]), dist.TCPStore("127.0.0.1", int(port))
            else:
                self._store, self.rank, self.size = next(iter(dist.rendezvous("env://")))
            self._store.set_timeout(_FOREVER)

    @property
    def is_leader(self) -> bool:
        """Whether this process plans the job and declares it complete."""
        return self.rank == 0

    def told(self, what: str, work: Callable[[], Any]) -> Any:
        """The result of `work`, done by the leader alone and told to the others as JSON."""
        if self._store is None:
            return work()
        if self.is_leader:
            value = work()
            self._store.set(what, json.dumps(value))
            return value
        return json.loads(self._store.get(what))

    def share(self, items: Sequence[int]) -> Iterator[int]:
        """This process' share of the items, each given to one process, in their order."""
        if self._store is None:
            yield from items
            return
        while (place := self._store.add("next", 1) - 1) < len(items):
            yield items[place]

    def report(self, value: Any) -> list[Any]:
        """The values of all processes, for the leader; None for a process that was lost. Others get their own."""
        if self._store is None:
            return [value]
        self._store.set(f"report/{self.rank}", json.dumps(value))
        if not self.is_leader:
            self._store.get("done")  # whoever serves the store must outlive those that ask it
            return [value]
        return [json.loads(self._store.get(f"report/{rank}")) for rank in range(self.size)]

    def shutdown(self) -> None:
        """The leader lets the others go."""
        if self._store is not None and self.is_leader:
            self._store.set("done", "")
            if not (os.environ.get(PORT) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE")):
                time.sleep(1)  # no launcher serves the store but this process: let the others read it


def launch(arguments: EncodeArguments) -> dict[str, Any]:
    """Run the job in `num_processes` processes of this machine; a lost one leaves its shard to the first.

    Each has its own GPU where there are any, else its share of the cores. Returns the job's figures.
    Raises UserError when the first process fails, whose own message then stands above it.
    """
    import torch
    import torch.distributed as dist

    count = arguments.num_processes
    if torch.cuda.is_available() and count > torch.cuda.device_count():
        raise UserError(
            f"--num_processes {count} on a machine with {torch.cuda.device_count()} GPUs", "take one process a GPU"
        )
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
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
                subprocess.Popen(
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
    """Wait for the first process; tell it of others that were lost."""
    lost: set[int] = set()
    while (status := processes[0].poll()) is None:
        for rank, process in enumerate(processes):
            if rank not in lost and process.poll():
                lost.add(rank)
                log.warning("process %d was lost (status %d); the first one does what it left", rank, process.poll())
                store.set(f"report/{rank}", "null")
        time.sleep(0.1)
    if status:
        raise UserError(
            f"the first of {len(processes)} processes ended with status {status}",
            "see its message above; the same command goes on where it stopped",
        )
