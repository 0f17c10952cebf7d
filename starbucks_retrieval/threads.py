"""Threads that share a list of work, and how many threads torch uses in each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_LINES, _NUMBERS_PER_THREAD = 32, 2**16  # to sort so many takes as long as to start a thread several times

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads in this thread, and in each that starts inside this context."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)  # a new thread starts with the last number that was set
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_lines(lines: int, numbers: int, threads: int, work: Callable[[slice], None]) -> None:
    """Call `work` with slices of the lines of an array, a few at a time so that they stay in the processor's cache.

    Args:
        lines: How many there are.
        numbers: Numbers in the array; threads are started for many only.
        threads: How many threads at most.
        work: Called with each slice, in any order.
    """
    slices = [slice(start, start + _LINES) for start in range(0, lines, _LINES)]

    def run(taken: Iterator[slice]) -> None:
        for part in taken:
            work(part)

    share(slices, max(1, min(threads, len(slices), numbers // _NUMBERS_PER_THREAD)), run)


def share(items: Iterable[Item], threads: int, work: Callable[[Iterator[Item]], Result]) -> list[Result]:
    """Call `work` in each of some threads, this one among them, with an iterator over the items that no other thread takes.

    After an error, or an interrupt of the caller, no thread gets another item.

    Args:
        items: What is shared, in this order; it is read by one thread at a time.
        threads: How many.
        work: Called once a thread.

    Returns:
        The result of each thread.

    Example:
        >>> sum(share(range(10), 3, sum))
        45
    """
    waiting, lock, stopped = iter(items), threading.Lock(), threading.Event()

    def taken() -> Iterator[Item]:
        while not stopped.is_set():
            with lock:
                try:
                    item = next(waiting)
                except StopIteration:
                    return
            yield item

    def run() -> Result:
        try:
            return work(taken())
        except BaseException:
            stopped.set()
            raise

    if threads == 1:
        return [run()]
    with ThreadPoolExecutor(threads - 1) as pool:
        try:
            others = [pool.submit(run) for _ in range(threads - 1)]
            return [run(), *(other.result() for other in others)]
        except BaseException:
            stopped.set()
            raise
