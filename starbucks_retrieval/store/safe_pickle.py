"""Read pickles of numpy arrays without executing anything that they name.

A pickle can name any function and have it called. Here no name is looked up: the few names that arrays need are mapped
to the small classes and functions below, and all others are refused. Not even those of numpy are used, because a crafted
state for a real dtype can make numpy interpret bytes as pointers.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from starbucks_retrieval.errors import UserError


def load_arrays(path: Path) -> Any:
    """Load a pickle of numpy arrays and scalars, lists, tuples, dicts, strings and numbers.

    Args:
        path: The pickle, such as one of (vectors, ids) that Tevatron writes.

    Returns:
        The content. Arrays are converted at the top level and directly inside a tuple or list there, not deeper or in a
        dict; numpy scalars become Python values.

    Raises:
        UserError: The file is missing, is not a pickle, is damaged, or names anything else. Nothing of it has been
            executed.
    """
    try:
        with open(path, "rb") as handle:
            return _plain(_Unpickler(_Bounded(handle), str(path)).load())
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a pickle is needed", "name the files inside it") from None
    except (OSError, UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(
            f"{path} is damaged, or not a pickle of numpy arrays: {' '.join(str(error).split()) or type(error).__name__}",
            "download or write the file again",
        ) from None


def load_embeddings(path: Path) -> tuple[np.ndarray, list[Any]]:
    """Load a pickle of (vectors, ids), as Tevatron and ielab/Starbucks write it.

    Args:
        path: The pickle.

    Returns:
        The vectors [rows, dim], of a floating-point type, and one id a row, of any type.

    Raises:
        UserError: As for `load_arrays`; also for other content, or another number of ids than of vectors.
    """
    content = load_arrays(path)
    expected = "pickle.dump((vectors, ids), file), with vectors a numpy array [rows, dim]"
    if not isinstance(content, (tuple, list)) or len(content) != 2 or not isinstance(content[0], np.ndarray):
        raise UserError(f"{path} does not hold (vectors, ids)", expected)
    vectors, ids = content
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or not isinstance(ids, (list, tuple)):
        raise UserError(
            f"{path} holds vectors of shape {vectors.shape} and type {vectors.dtype}, ids as {type(ids).__name__}",
            expected,
        )
    if len(ids) != len(vectors):
        raise UserError(f"{path} has {len(vectors)} vectors and {len(ids)} ids", "write the file again")
    return vectors, list(ids)


class _Dtype:
    """A stand-in for numpy.dtype: a plain kind in one of two byte orders."""

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
    """A stand-in for numpy.ndarray until its state is read."""

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
    # Protocol 2 writes bytes in this way.
    if encoding != "latin1":
        raise ValueError(f"bytes are encoded in {encoding!r}")
    return text.encode("latin1")


class _Call:
    """A function that a pickle may call but not change."""

    __slots__ = ("_function",)

    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("a pickle may not change what it calls")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Call(_encode),
    ("__builtin__", "bytes"): _Call(lambda: b""),  # protocol 2 writes empty bytes in this way
}
for _package in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_package}.multiarray", "_reconstruct"] = _Call(_reconstruct)
    _ALLOWED[f"{_package}.multiarray", "scalar"] = _Call(_scalar)
    _ALLOWED[f"{_package}.numeric", "_frombuffer"] = _Call(_from_buffer)


class _Bounded:
    """A file that refuses to read more than it has, where others would first take the memory for it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._left = os.fstat(handle.fileno()).st_size
        self.readline = handle.readline

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise EOFError("it ends inside a value")
        found = self._handle.read(count)
        self._left -= len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


# The version in Python: that in C takes memory for 4 billion entries if a pickle of 8 bytes names so many. Most of the
# time goes to the vectors, which are read as one piece.
class _Unpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(handle)
        self._name = name

    def _bytearray(self) -> None:
        this: Any = self
        length = int.from_bytes(this.read(8), "little")
        this.append(bytearray(this.read(length)))

    dispatch[pickle.BYTEARRAY8[0]] = _bytearray

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise UserError(
                f"{self._name} names {module}.{name}, which no pickle of vectors and ids needs; nothing was executed",
                "save it again as a pickle of (numpy array, list of ids); do not trust it if you did not write it",
            ) from None


def _plain(value: Any) -> Any:
    """Replace the stand-ins by arrays, in a tuple or list of one level, as (vectors, ids) is."""
    if isinstance(value, (tuple, list)):
        return type(value)(item.array if isinstance(item, _Array) else item for item in value)
    return value.array if isinstance(value, _Array) else value
