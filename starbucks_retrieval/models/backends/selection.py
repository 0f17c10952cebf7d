"""Opening a back end by name, and choosing the fastest one."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import json_bytes, write_json
from starbucks_retrieval.models.backends import BACKENDS
from starbucks_retrieval.models.backends.base import Backend, Dtype, TokenRows
from starbucks_retrieval.models.batching import token_batches
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.models.packed_encoding import as_for_many_texts
from starbucks_retrieval.models.precision import WeightsDtype
from starbucks_retrieval.parsing import Finite, read_json
from starbucks_retrieval.provenance import versions
from starbucks_retrieval.sizes import Sizes

log = logging.getLogger(__name__)

_PROBES = 5  # batches that each candidate is timed on
_SECONDS = 1.5  # seconds that the slowest candidate may take for all of them, unless they are small
_SMALL = 512  # tokens of a small batch


def open_backend(
    name: str, encoder: NestedEncoder, sizes: Sizes, dtype: str = "auto", calibration: TokenRows | None = None
) -> Backend:
    """Open a back end for an encoder.

    For layer 0 alone this is torch in fp32, whatever the name and dtype: a look-up in the token table leaves nothing to
    convert.

    Args:
        name: A name of `BACKENDS`: torch; on CPUs also onnx (fp32) and openvino (fp32, bf16, int8).
        encoder: The encoder. Its configuration must not change afterwards.
        sizes: The sizes that will be encoded.
        dtype: auto is bf16 where the hardware is fast in it and the back end has it, else fp32; fp16 needs a GPU.
        calibration: Some hundred token rows like those to encode, from which int8 takes its ranges.

    Raises:
        UserError: An unknown name or dtype, a dtype or device that the back end does not support, an architecture that
            was not checked with it, or a package that is not installed.
    """
    if dtype not in (*get_args(Dtype), *get_args(WeightsDtype)):
        raise UserError(f"unknown dtype {dtype!r}", f"take one of {', '.join(get_args(Dtype))}")
    open_named = BACKENDS[name]
    if sizes.layers == (0,) and encoder.projections is not None:
        open_named, dtype = BACKENDS["torch"], "fp32"
    return open_named(encoder, sizes, dtype, calibration)


def choose_backend(
    candidates: Sequence[Backend], rows: TokenRows, sizes: Sizes, max_tokens: int
) -> tuple[Backend, dict[str, float]]:
    """Return the fastest of several back ends on real token rows.

    Only candidates of the first one's precision are timed: speed is no reason to change results. Each is warmed up; then
    all run the same few batches, from long texts to short ones, in turns. The best median time per token wins, and of
    equals the first.

    Args:
        candidates: Open back ends.
        rows: Token rows, a sample of those to encode.
        sizes: The sizes to encode.
        max_tokens: The largest rows x longest row of a batch; the timed ones are smaller where the machine is slow.

    Returns:
        The fastest, and {name: texts per second} of those that were timed.

    Raises:
        UserError: There are no candidates.
    """
    if not candidates:
        raise UserError("no back end can run this model here", "name one with --backend to see the reason")
    alike = [candidate for candidate in candidates if _precision(candidate) == _precision(candidates[0])]
    if len(alike) == 1 or not rows:
        return alike[0], {}
    with as_for_many_texts():
        # A small batch warms up, and its second run tells how large the timed batches can be.
        small = _probes(rows, min(max_tokens, _SMALL), 1)[0]
        slowest = max([_seconds(candidate, small, sizes, max_tokens) for _ in range(2)][1] for candidate in alike)
        affordable = int(sum(map(len, small)) * _SECONDS / (slowest * _PROBES))
        times: list[list[float]] = [[] for _ in alike]
        for turn, probe in enumerate(_probes(rows, min(max_tokens, max(affordable, _SMALL)), _PROBES)):
            for i in range(len(alike)):
                j = (turn + i) % len(alike)  # each turn starts with another one, so none always follows the same
                times[j].append(_seconds(alike[j], probe, sizes, max_tokens) / sum(map(len, probe)))
    texts_per_token = len(rows) / sum(map(len, rows))
    rates = [texts_per_token / statistics.median(time) for time in times]
    return alike[rates.index(max(rates))], {candidate.name: rate for candidate, rate in zip(alike, rates)}


@dataclasses.dataclass(frozen=True)
class RememberedChoice:
    """The content of a file that `Choices` writes.

    Attributes:
        measured_for: The circumstances of the measurement; a choice counts only where they are all equal.
        backend: The name of the fastest, as in `Backend`.
        texts_per_second: {name: speed} of all back ends that were timed.
    """

    measured_for: dict[str, Any]
    backend: str
    texts_per_second: dict[str, Finite]


class Choices:
    """What `choose_backend` measured for a model on a machine, in a file for each, so that it is not measured again.

    The files are a cache: one that is missing, damaged or for other circumstances counts as none.

    Args:
        folder: Where the files are.
        encoder: The model.
        sizes: The sizes to encode.
        dtype: The value of `--dtype`.
        max_tokens: The largest rows x longest row of a batch.
        more: Further circumstances that decide the speed, JSON-ready.
    """

    def __init__(
        self,
        folder: Path,
        encoder: NestedEncoder,
        sizes: Sizes,
        dtype: str,
        max_tokens: int,
        more: Mapping[str, Any],
    ) -> None:
        self._sizes, self._max_tokens = sizes, max_tokens
        self._circumstances = {
            "model": encoder.fingerprint(sizes[-1].layer),
            "sizes": [str(size) for size in sizes],
            "dtype": dtype,
            "device": encoder.device.type,
            "threads": torch.get_num_threads(),
            "processor": {name: str(value) for name, value in torch.cpu.get_capabilities().items()},
            "versions": versions(("onnxruntime", "openvino")),
            "max_tokens": max_tokens,
            **more,
        }
        name = hashlib.blake2b(json_bytes(self._circumstances), digest_size=16).hexdigest()
        self._path = folder / "backends" / f"{name}.json"

    def fastest(
        self, opened: Callable[[str, str], Backend], candidates: Callable[[], Sequence[Backend]], rows: TokenRows
    ) -> tuple[Backend, dict[str, float]]:
        """Return the remembered back end, else the fastest of all candidates, which is then remembered.

        Args:
            opened: Opens a back end from its name and dtype. Only the remembered one is opened.
            candidates: Opens all candidates.
            rows: As in `choose_backend`.

        Returns:
            The back end, and {name: texts per second}, measured now or before.
        """
        backend, when = None, ""
        if (known := self.load()) is not None:
            (chosen, speeds), when = known, ", measured before"
            name, _, dtype = chosen.rpartition("-")
            try:
                backend = opened(name or "torch", dtype)
            except UserError as error:
                log.info("--backend auto: without %s, which was chosen before: %s", chosen, error.what)
                when = ""
        if backend is None:
            backend, speeds = choose_backend(candidates(), rows, self._sizes, self._max_tokens)
            if speeds:
                self.save(backend.name, speeds)
        listed = ", ".join(f"{key} {speed:.0f} texts/s" for key, speed in speeds.items())
        log.info("--backend auto: %s (%s%s)", backend.name, listed or "nothing to compare it with", when)
        return backend, speeds

    def load(self) -> tuple[str, dict[str, float]] | None:
        """Return the name of the back end and the texts per second of each candidate, or None."""
        if not self._path.is_file():
            return None
        try:
            found = read_json(self._path, RememberedChoice)
        except (UserError, OSError) as error:
            log.info("%s is measured again: %s", self._path, error)
            return None
        if found.measured_for != self._circumstances or found.backend not in found.texts_per_second:
            return None
        return found.backend, found.texts_per_second

    def save(self, backend: str, speeds: Mapping[str, float]) -> None:
        """Write a choice. A folder that cannot be written is no error: the next run measures again.

        Args:
            backend: The name of the fastest, as in `Backend`.
            speeds: {name: texts per second} of all back ends that were timed.
        """
        try:
            write_json(self._path, dataclasses.asdict(RememberedChoice(self._circumstances, backend, dict(speeds))))
        except (UserError, OSError) as error:
            log.info("the choice of the back end is not kept: %s", error)


def _precision(backend: Backend) -> str:
    return backend.name.rpartition("-")[2]


def _probes(rows: TokenRows, max_tokens: int, count: int) -> list[list[Sequence[int]]]:
    """Return `count` of the batches that all rows make, evenly spread from long texts to short ones; all if fewer."""
    batches = token_batches([len(row) for row in rows], max_tokens)
    picked = np.linspace(0, len(batches) - 1, count + 2)[1:-1].round() if len(batches) > count else range(len(batches))
    return [[rows[i] for i in batches[int(position)]] for position in picked]


def _seconds(backend: Backend, rows: TokenRows, sizes: Sizes, max_tokens: int) -> float:
    began = now()
    backend.embed(rows, sizes, max_tokens=max_tokens)
    return seconds_since(began)
