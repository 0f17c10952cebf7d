"""The loops of `starbucks_retrieval.search.loops`. Importing this module compiles them, which takes about a second."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_WIDTH = 32  # scores that are compared at once
_AHEAD, _LINE = 4, 64  # vectors that are requested from memory before they are needed; bytes that come at once


def sum_products(
    vectors: np.ndarray, rows: np.ndarray, queries: np.ndarray, places: np.ndarray, sums: np.ndarray
) -> None:
    """Write inner products of queries with some vectors, summed in any order, into `sums`.

    Args:
        vectors: [any, dim] float16 or float32, contiguous.
        rows: Row numbers of `vectors`, [n] int64. They are not checked.
        queries: [queries, dim] float64.
        places: Where the product with each row belongs in `sums`, counted line by line, [n] int64.
        sums: [queries, any] float64, contiguous.

    Example:
        >>> sums = np.zeros((1, 3))
        >>> vectors, query = np.eye(3, dtype=np.float16), np.array([[0.5, 0.0, 0.25]])
        >>> sum_products(vectors, np.array([2, 0]), query, np.array([0, 2]), sums)
        >>> sums.tolist()
        [[0.25, 0.0, 0.5]]
    """
    _sum_products(_as_numba_knows(vectors), rows, queries, places, sums)


def to_single(vectors: np.ndarray, single: np.ndarray) -> None:
    """Convert float16 [rows, dim] to float32, into `single` [rows, dim]. Both are contiguous."""
    _widen(_as_numba_knows(vectors), single)


def to_bfloat16(vectors: np.ndarray, bits: np.ndarray) -> float:
    """Round vectors to the nearest bfloat16, into `bits`, and return a bound on the distance that any of them moves.

    Args:
        vectors: [rows, dim] float16 or float32, finite and not above 1e38, contiguous.
        bits: [rows, dim] int16, contiguous.
    """
    longest = float(_round(_as_numba_knows(vectors), bits.view(np.uint16))) ** 0.5
    return longest * 1.001 + vectors.shape[1] ** 0.5 * 2.0**-63  # a smaller number's square may count as zero


def _as_numba_knows(vectors: np.ndarray) -> np.ndarray:
    vectors = np.ascontiguousarray(vectors)
    return vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors  # it has no float16 on CPUs


@intrinsic
def _to_single(typing_context: Any, number: Any) -> Any:
    """A float32 as it is, or one from the bits of a float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if number == types.float32:
            return arguments[0]
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(number), generate


@intrinsic
def _bits(typing_context: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32) if number == types.float32 else ir.FloatType())

    return (types.uint32 if number == types.float32 else types.float32)(number), generate


@intrinsic
def _request(typing_context: Any, matrix: Any, row: Any, column: Any) -> Any:
    """Tell the processor that a number will be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        offset = builder.add(builder.mul(arguments[1], builder.extract_value(array.shape, 1)), arguments[2])
        address = builder.bitcast(builder.gep(array.data, [offset]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(prefetch, [address, number(0), number(3), number(1)])  # for reading, into all caches, data
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), generate


@intrinsic
def _above(typing_context: Any, line: Any, start: Any, floor: Any) -> Any:
    """Which of the `_WIDTH` numbers from `start` on are above `floor`, as bits. Numba does not find this form by itself."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index = ir.VectorType(ir.FloatType(), _WIDTH), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        first = builder.bitcast(builder.gep(data, [arguments[1]]), numbers.as_pointer())
        undefined = ir.Constant(numbers, ir.Undefined)
        floors = builder.insert_element(undefined, arguments[2], index(0))
        floors = builder.shuffle_vector(floors, undefined, ir.Constant(ir.VectorType(index, _WIDTH), [0] * _WIDTH))
        above = builder.fcmp_ordered(">", builder.load(first, align=4), floors)
        return builder.bitcast(above, ir.IntType(_WIDTH))

    return types.uint32(line, types.int64, types.float32), generate


@intrinsic
def _lowest_bit(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), ir.IntType(64))

    return types.int64(types.uint32), generate


def _readonly(kind: Any, dims: int) -> Any:
    return types.Array(kind, dims, "C", readonly=True)


def _compile(*signatures: Any, **options: Any) -> Any:
    return njit(list(signatures), nogil=True, error_model="numpy", **options)


_STORED = (types.uint16, types.float32)  # float16 and float32
_IN_ANY_ORDER = {"reassoc", "contract"}


@_compile(
    *(
        types.void(
            *(_readonly(kind, 2), _readonly(types.int64, 1), _readonly(types.float64, 2)),
            *(_readonly(types.int64, 1), types.float64[:, ::1]),
        )
        for kind in _STORED
    ),
    fastmath=_IN_ANY_ORDER,
)
def _sum_products(vectors, rows, queries, places, sums):
    step, last = _LINE // vectors.itemsize, len(rows) - 1
    for n in range(len(rows)):
        for start in range(0, vectors.shape[1], step):
            _request(vectors, rows[min(n + _AHEAD, last)], start)
        i = places[n] // sums.shape[1]
        vector, query = vectors[rows[n]], queries[i]
        total = 0.0
        for j in range(len(query)):
            total += np.float64(_to_single(vector[j])) * query[j]
        sums[i, places[n] - i * sums.shape[1]] = total


@_compile(types.void(_readonly(types.uint16, 2), types.float32[:, ::1]))
def _widen(vectors, single):
    for i in range(len(vectors)):
        for j in range(vectors.shape[1]):
            single[i, j] = _to_single(vectors[i, j])


@_compile(*(types.float32(_readonly(kind, 2), types.uint16[:, ::1]) for kind in _STORED), fastmath=_IN_ANY_ORDER)
def _round(vectors, bits):
    largest = np.float32(0)
    for i in range(len(vectors)):
        moved = np.float32(0)
        for j in range(vectors.shape[1]):
            number = _to_single(vectors[i, j])
            exact = _bits(number)
            near = np.uint32((exact + np.uint32(0x7FFF) + ((exact >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
            difference = number - _bits(np.uint32(near << np.uint32(16)))
            moved += difference * difference
            bits[i, j] = near
        largest = max(largest, moved)
    return largest


@_compile(
    types.void(
        *(_readonly(types.float32, 2), _readonly(types.float32, 1), types.int64),
        *(types.float32[:, ::1], types.int64[:, ::1], types.int64[::1]),
    )
)
def append_above(scores, floors, first, kept, rows, filled):
    """Append the scores above the floor of each query to its list.

    Args:
        scores: [queries, new rows] float32.
        floors: [queries] float32.
        first: The row of the first score.
        kept: The lists [queries, room] float32, which have room for all new rows.
        rows: The rows of the scores in the lists, [queries, room] int64.
        filled: Lengths of the lists [queries] int64.
    """
    whole = scores.shape[1] // _WIDTH * _WIDTH
    for query in range(len(scores)):
        line, floor, end = scores[query], floors[query], filled[query]
        for start in range(0, whole, _WIDTH):
            bits = _above(line, start, floor)
            while bits:
                i = start + _lowest_bit(bits)
                kept[query, end], rows[query, end] = line[i], first + i
                end += 1
                bits &= bits - np.uint32(1)
        for i in range(whole, len(line)):
            if line[i] > floor:
                kept[query, end], rows[query, end] = line[i], first + i
                end += 1
        filled[query] = end
