"""Quantised vectors: a byte or a bit for each number, with a scale and an offset for each dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from starbucks_retrieval.errors import UserError

QUANTISED = ("int8", "binary")
STORE_DTYPES = ("float16", "float32", *QUANTISED)
CALIBRATED_ON = 1024  # rows, spread over the corpus
_PASS = 2**16  # numbers that stay in the cache between the passes over them


@dataclass(frozen=True)
class Quantiser:
    """Turns vectors into codes and codes into vectors: a number is `offset` + `scale` × code.

    `int8` has the codes -127 to 127. `binary` has 0 and 1, eight numbers to a byte, as np.packbits packs them.

    Args:
        store_dtype: A name of `QUANTISED`.
        scale: [dim] float32, above 0.
        offset: [dim] float32.

    Example:
        >>> quantiser = Quantiser.calibrate("int8", np.array([[-1.0, 4.0], [1.0, 6.0]]))
        >>> codes = quantiser.encode(np.array([[0.5, 5.0]]))
        >>> quantiser.decode(codes).round(2).tolist()
        [[0.5, 5.0]]
    """

    store_dtype: str
    scale: np.ndarray
    offset: np.ndarray

    margin: ClassVar[float] = 1.25  # the range of int8 as a multiple of the sample's: other rows reach further

    @classmethod
    def calibrate(cls, store_dtype: str, sample: np.ndarray) -> Quantiser:
        """Return scales and offsets learnt from some vectors.

        int8 covers the range of each dimension in the sample and a quarter more; larger numbers are cut off. binary
        tells numbers above the sample's median from others, and stands for the median plus or minus the mean distance
        from it.

        Args:
            store_dtype: A name of `QUANTISED`.
            sample: Vectors [rows, dim].

        Raises:
            UserError: Every vector has NaN or infinity; rows that do are left out.
        """
        sample = np.ascontiguousarray(sample, np.float32)
        sample = sample[np.isfinite(sample).all(axis=1)]
        if not len(sample):
            raise UserError(f"no vector is finite: {store_dtype} has no scales", "check the model and its dtype")
        if store_dtype == "int8":
            low, high = sample.min(axis=0), sample.max(axis=0)
            offset, reach = (low + high) / 2, cls.margin * (high - low) / 2
            scale = reach / 127
        else:
            median = np.median(sample, axis=0).astype(np.float32)
            distance = np.abs(sample - median).mean(axis=0)
            offset, scale = median - distance, 2 * distance
        tiny = np.float32(1e-12) + np.float32(1e-6) * np.abs(offset)  # a dimension that hardly varies
        return cls(store_dtype, np.maximum(scale, tiny).astype(np.float32), offset.astype(np.float32))

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Return the codes of vectors [rows, dim], as they are stored. Elementwise, so the same on every machine."""
        position = (np.asarray(vectors, np.float32) - self.offset) / self.scale
        if self.store_dtype == "int8":
            return np.clip(np.rint(position), -127, 127).astype(np.int8)
        return np.packbits(position > np.float32(0.5), axis=1)

    def decode(self, codes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return codes as vectors [rows, dim] float32.

        Args:
            codes: As `encode` returns them.
            out: A contiguous float32 array [rows, dim] to write into.
        """
        dim = len(self.scale)
        if out is None:
            out = np.empty((len(codes), dim), np.float32)
        step = max(1, _PASS // dim)
        for start in range(0, len(codes), step):
            block, part = out[start : start + step], codes[start : start + step]
            block[:] = part if self.store_dtype == "int8" else np.unpackbits(part, axis=1, count=dim)
            np.multiply(block, self.scale, out=block)
            np.add(block, self.offset, out=block)
        return out


def stored_form(store_dtype: str, dim: int) -> tuple[int, str]:
    """Return the columns of the stored array of vectors of `dim`, and their type.

    Example:
        >>> stored_form("float16", 12), stored_form("int8", 12), stored_form("binary", 12)
        ((12, 'float16'), (12, 'int8'), (2, 'uint8'))
    """
    return (-(-dim // 8), "uint8") if store_dtype == "binary" else (dim, store_dtype)


def row_bytes(store_dtype: str, dim: int) -> int:
    """Return the bytes of a stored vector of `dim`.

    Example:
        >>> row_bytes("float16", 128), row_bytes("int8", 128), row_bytes("binary", 128)
        (256, 128, 16)
    """
    columns, kind = stored_form(store_dtype, dim)
    return columns * np.dtype(kind).itemsize


def calibration_rows(count: int) -> np.ndarray:
    """Return the rows of a corpus of `count` to calibrate on: evenly spread, so the same for every part and process.

    Example:
        >>> calibration_rows(3), calibration_rows(10_000).shape, int(calibration_rows(10_000)[-1])
        (array([0, 1, 2]), (1024,), 9990)
    """
    return np.arange(min(count, CALIBRATED_ON)) * count // min(count, CALIBRATED_ON)
