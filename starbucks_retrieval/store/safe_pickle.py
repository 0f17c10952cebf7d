"""Pickles of numpy arrays, read without running anything that they name.

A pickle may name any function and have it called. Here nothing that it names is ever looked up: the few names that
arrays need stand for the small classes and functions below, all others are refused. Not even numpy's own are used,
because a crafted state for a real dtype can make numpy take bytes for pointers.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError


def load_arrays(path: Path) -> Any:
    """What a pickle holds, if that is arrays and scalars of numpy, lists, tuples, dicts, strings and numbers.

    Raises UserError for a file that is no pickle, a damaged one, and one that names anything else; nothing of it has
    been executed then.
    """
    try:
        with open(path, "rb") as handle:
            return _plain(_Unpickler(handle, str(path)).load())
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a pickle is needed", "name the files inside it") from None
    except (OSError, UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # damaged pickles fail in every way there is
        raise UserError(
            f"{path} is damaged, or no pickle of numpy arrays: {' '.join(str(error).split()) or type(error).__name__}",
            "fetch or make the file again",
        ) from None


class _Dtype:
    """Stands in for numpy.dtype: one of the plain kinds, in one of two byte orders."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, *_: Any) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[fiu][1248]|[US]\d{1,9}|b1", name):
            raise ValueError(f"arrays of type {name!r} are not read")
        self.name = name
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def real(self) -> np.dtype:
        return np.dtype(self.order + self.name)


class _Array:
    """Stands in for numpy.ndarray until its state is there."""

    __slots__ = ("array",)

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        self.array = _from_bytes(content, dtype, shape, "F" if fortran else "C")


def _from_bytes(content: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    if not isinstance(dtype, _Dtype) or not isinstance(content, (bytes, bytearray)):
        raise ValueError("an array's content is not plain bytes")
    real = dtype.real()
    if any(not isinstance(length, int) or length < 0 for length in shape):
        raise ValueError(f"an array has the shape {shape}")
    if math.prod(shape) * real.itemsize != len(content):
        raise ValueError(f"an array of {shape} {real} has {len(content)} bytes")
    if not content:
        return np.empty(shape, real)
    return np.frombuffer(content, real).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not _Array:
        raise ValueError("an array is of another class than ndarray")
    return _Array()


def _scalar(dtype: Any, content: Any = b"") -> Any:
    return _from_bytes(content, dtype, (1,), "C")[0].item()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: str, axes: Any = None) -> _Array:
    result = _Array()
    result.array = _from_bytes(content, dtype, shape, order)
    if order == "K" and axes is not None:
        result.array = result.array.transpose(axes)
    return result


def _encode(text: str, encoding: str) -> bytes:
    # How protocol 2 writes bytes.
    if encoding != "latin1":
        raise ValueError(f"bytes are spelled in {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    # How protocol 2 writes no bytes.
    return b""


class _Call:
    """A function that a pickle may call, and do nothing else to."""

    __slots__ = ("_function",)

    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("a pickle may not change what it calls")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Call(_encode),
    ("__builtin__", "bytes"): _Call(_no_bytes),
}
for _home in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_home}.multiarray", "_reconstruct"] = _Call(_reconstruct)
    _ADMITTED[f"{_home}.multiarray", "scalar"] = _Call(_scalar)
    _ADMITTED[f"{_home}.numeric", "_frombuffer"] = _Call(_from_buffer)


class _Unpickler(pickle.Unpickler):
    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(handle)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise UserError(
                f"{self._name} asks for {module}.{name}, which no pickle of vectors and ids needs; nothing was run",
                "save it again as a pickle of (numpy array, list of ids); if it came from others, do not trust it",
            ) from None


def _plain(value: Any) -> Any:
    """The arrays in place of what stands for them, in tuples and lists; one level is all that (vectors, ids) has."""
    if isinstance(value, (tuple, list)):
        return type(value)(item.array if isinstance(item, _Array) else item for item in value)
    return value.array if isinstance(value, _Array) else value
