"""Stored vectors in single precision."""

from __future__ import annotations

import numpy as np

from starbucks_retrieval.errors import UserError

_BITS = np.int32(-0x70002000)  # 0x8fffe000: a sign, five bits of exponent, ten of mantissa
_SCALE = np.float32(2.0**112)  # between the two formats' biases of the exponent
_ENDLESS = np.float32(2.0**16)  # what infinity and NaN would become, and larger; the largest half is 65504
_EXPONENT = np.int16(0x7C00)
_PASS = 2**16  # numbers that stay in the cache between the passes over them


def to_float32(stored: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Numbers of a store, [rows, dim] float16 or float32, as float32, exactly; `out`: [rows, dim], contiguous.

    The bits of a half, moved into those of a single, are the number but for a power of two, subnormal ones included:
    a third of the time that NumPy's own conversion takes. Raises UserError for what is no finite number, which no store
    of ours is written with.
    """
    if stored.dtype != np.float16:
        if out is None:
            out = stored.astype(np.float32, copy=False)
        else:
            out[:] = stored
        refuse_endless(out)
        return out
    if out is None:
        out = np.empty(stored.shape, np.float32)
    source, target = np.ascontiguousarray(stored).reshape(-1).view(np.int16), out.reshape(-1)
    for start in range(0, len(source), _PASS):
        some = target[start : start + _PASS]
        bits = some.view(np.int32)
        bits[:] = source[start : start + _PASS]  # keeps the sign at the top
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _BITS, out=bits)
        np.multiply(some, _SCALE, out=some)
        if some.max() >= _ENDLESS or some.min() <= -_ENDLESS:
            raise _damaged()
    return out


def refuse_endless(stored: np.ndarray) -> None:
    """Raise UserError where numbers of a store, float16 or float32, are not all finite."""
    if stored.dtype == np.float16:  # all bits of the exponent are set, by bits, as sums of halves are slow
        numbers = np.ascontiguousarray(stored).reshape(-1).view(np.int16)
        starts = range(0, len(numbers), _PASS)
        if any((numbers[start : start + _PASS] & _EXPONENT == _EXPONENT).any() for start in starts):
            raise _damaged()
        return
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = not np.isfinite(stored.sum())  # one sum tells, unless it overflows itself
    if suspect and not np.isfinite(stored).all():
        raise _damaged()


def _damaged() -> UserError:
    return UserError(
        "a stored vector has NaN or infinity: the store was damaged or changed after it was written",
        "look with starbucks store verify, then encode again",
    )
