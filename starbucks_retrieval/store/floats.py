"""Stored numbers as float32, and the check that all are finite."""

from __future__ import annotations

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
