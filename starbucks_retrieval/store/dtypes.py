"""The types of stored numbers: float32 and float16, and a byte or a bit for each, with a scale and an offset for each dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from starbucks_retrieval.errors import UserError

# Conversion of float16.
_BITS = np.int32(-0x70002000)  # 0x8fffe000: a sign, five bits of exponent, ten of mantissa
_SCALE = np.float32(2.0**112)  # the difference of the two formats' exponent biases
_OVERFLOW = np.float32(2.0**16)  # the result for infinity and NaN is at least this; the largest float16 is 65504
_EXPONENT = np.int16(0x7C00)
_PASS = 2**16  # numbers that stay in the cache between the passes over them


def to_float32(stored: np.ndarray, out: np.ndarray | None = None, *, finite: bool = False) -> np.ndarray:
    """Convert stored vectors [rows, dim], float16 or float32, to float32, exactly.

    The bits of a float16, shifted to their positions in a float32, give the number divided by a power of two, also for
    subnormal numbers. This takes a third of the time of NumPy's conversion.

    Args:
        stored: The vectors as they are in the store.
        out: A contiguous float32 array [rows, dim] to write into.
        finite: All numbers are known to be finite, which is then not checked.

    Raises:
        UserError: A number is NaN or infinite, which means that the store is damaged.

    Example:
        >>> to_float32(np.array([[0.5, -65504]], np.float16)).tolist()
        [[0.5, -65504.0]]
    """
    if stored.dtype != np.float16:
        if out is None:
            out = stored.astype(np.float32, copy=False)
        else:
            out[:] = stored
        if not finite:
            check_finite(out)
        return out
    if out is None:
        out = np.empty(stored.shape, np.float32)
    source, target = np.ascontiguousarray(stored).reshape(-1).view(np.int16), out.reshape(-1)
    for start in range(0, len(source), _PASS):
        block = target[start : start + _PASS]
        bits = block.view(np.int32)
        bits[:] = source[start : start + _PASS]  # keeps the sign at the top
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _BITS, out=bits)
        np.multiply(block, _SCALE, out=block)
        if not finite and (block.max() >= _OVERFLOW or block.min() <= -_OVERFLOW):
            raise _damaged()
    return out


def check_finite(stored: np.ndarray) -> None:
    """Check that all numbers of a store are finite.

    Args:
        stored: An array of any shape, float16 or float32.

    Raises:
        UserError: A number is NaN or infinite, which means that the store is damaged.
    """
    if stored.dtype == np.float16:  # all bits of the exponent are set; sums of float16 are slow
        numbers = np.ascontiguousarray(stored).reshape(-1).view(np.int16)
        starts = range(0, len(numbers), _PASS)
        if any((numbers[start : start + _PASS] & _EXPONENT == _EXPONENT).any() for start in starts):
            raise _damaged()
        return
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = not np.isfinite(stored.sum())  # one sum is enough, unless it overflows
    if suspect and not np.isfinite(stored).all():
        raise _damaged()


def _damaged() -> UserError:
    return UserError(
        "a stored vector has NaN or infinity: the store was damaged or changed after it was written",
        "run starbucks store verify, then encode again",
    )


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
