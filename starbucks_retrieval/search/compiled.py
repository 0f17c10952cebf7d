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
    """Convert float16 or float32 [rows, dim] to float32, into `single` [rows, dim]. Both are contiguous."""
    _widen(_as_numba_knows(vectors), single)


def to_bfloat16(vectors: np.ndarray, bits: np.ndarray) -> None:
    """Round vectors to the nearest bfloat16.

    Args:
        vectors: [rows, dim] float16 or float32, finite and not above 1e38, contiguous.
        bits: The result, [rows, dim] int16, contiguous.
    """
    _round(_as_numba_knows(vectors), bits.view(np.uint16))


def append_scored(
    scores: np.ndarray,
    floors: np.ndarray,
    first: int,
    vectors: np.ndarray,
    queries: np.ndarray,
    sums: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
) -> int:
    """Append the inner products of queries with those vectors whose approximate scores are above the query's floor.

    It ends early after a vector that filled a list.

    Args:
        scores: Approximate scores, [new rows, queries] float32, or the bits of bfloat16 as uint16; contiguous.
        floors: [queries] float32.
        first: The row of the first vector.
        vectors: [new rows, dim] float16 or float32, contiguous.
        queries: [queries, dim] float32, contiguous.
        sums: The lists [queries, room] float64, none of them full. Products are summed in any order.
        rows: The rows of the vectors in the lists, [queries, room] int64.
        filled: Lengths of the lists, [queries] int64.

    Returns:
        How many of the vectors it took.

    Example:
        >>> sums, rows, filled = np.empty((1, 3)), np.empty((1, 3), np.int64), np.zeros(1, np.int64)
        >>> vectors, query = np.eye(3, dtype=np.float32), np.array([[0.5, 0.0, 0.25]], np.float32)
        >>> append_scored(vectors @ query.T, np.array([0.1], np.float32), 7, vectors, query, sums, rows, filled)
        3
        >>> sums[0, : filled[0]].tolist(), rows[0, : filled[0]].tolist()
        ([0.5, 0.25], [7, 9])
    """
    return _append_scored(scores, floors, first, _as_numba_knows(vectors), queries, sums, rows, filled)


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
def _of_score(typing_context: Any, score: Any) -> Any:
    """A float32 as it is, or one from the bits of a bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if score == types.float32:
            return arguments[0]
        return _from_bfloat16(builder, arguments[0], ir.IntType(32), ir.FloatType(), ir.Constant(ir.IntType(32), 16))

    return types.float32(score), generate


def _from_bfloat16(builder: Any, bits: Any, word: Any, number: Any, shift: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(bits, word), shift), number)


@intrinsic
def _above(typing_context: Any, line: Any, start: Any, floors: Any) -> Any:
    """Which of the `_WIDTH` scores from `start` on are above their floors, as bits. Numba does not find this form by itself."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, words = ir.VectorType(ir.FloatType(), _WIDTH), ir.VectorType(ir.IntType(32), _WIDTH)

        def loaded(argument: int, number: Any, size: int) -> Any:
            data = context.make_array(signature.args[argument])(context, builder, arguments[argument]).data
            first = builder.bitcast(builder.gep(data, [arguments[1]]), ir.VectorType(number, _WIDTH).as_pointer())
            return builder.load(first, align=size)

        if line.dtype == types.float32:
            scores = loaded(0, ir.FloatType(), 4)
        else:
            shift = ir.Constant(words, [16] * _WIDTH)
            scores = _from_bfloat16(builder, loaded(0, ir.IntType(16), 2), words, numbers, shift)
        above = builder.fcmp_ordered(">", scores, loaded(2, ir.FloatType(), 4))
        return builder.bitcast(above, ir.IntType(_WIDTH))

    return types.uint32(line, types.int64, floors), generate


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


@_compile(*(types.void(_readonly(kind, 2), types.float32[:, ::1]) for kind in _STORED))
def _widen(vectors, single):
    for i in range(len(vectors)):
        for j in range(vectors.shape[1]):
            single[i, j] = _to_single(vectors[i, j])


@_compile(*(types.void(_readonly(kind, 2), types.uint16[:, ::1]) for kind in _STORED))
def _round(vectors, bits):
    for i in range(len(vectors)):
        for j in range(vectors.shape[1]):
            exact = _bits(_to_single(vectors[i, j]))
            to_even = np.uint32(0x7FFF) + ((exact >> np.uint32(16)) & np.uint32(1))
            bits[i, j] = np.uint32((exact + to_even) >> np.uint32(16))


@_compile(
    *(
        types.int64(
            *(_readonly(score, 2), _readonly(types.float32, 1), types.int64, _readonly(kind, 2)),
            *(_readonly(types.float32, 2), types.float64[:, ::1], types.int64[:, ::1], types.int64[::1]),
        )
        for score, kind in [(types.float32, types.float32), *((types.uint16, kind) for kind in _STORED)]
    ),
    fastmath=_IN_ANY_ORDER,
)
def _append_scored(scores, floors, first, vectors, queries, sums, rows, filled):
    whole, room, full = len(floors) // _WIDTH * _WIDTH, sums.shape[1], False
    vector = np.empty(vectors.shape[1])
    for i in range(len(scores)):
        line, ready = scores[i], False
        for start in range(0, len(floors), _WIDTH):
            if start < whole:
                bits = _above(line, start, floors)
            else:
                bits = np.uint32(0)
                for query in range(whole, len(floors)):
                    if _of_score(line[query]) > floors[query]:
                        bits |= np.uint32(1) << np.uint32(query - whole)
            while bits:
                query = start + _lowest_bit(bits)
                bits &= bits - np.uint32(1)
                if not ready:
                    for j in range(len(vector)):
                        vector[j] = np.float64(_to_single(vectors[i, j]))
                    ready = True
                total, place, numbers = 0.0, filled[query], queries[query]
                for j in range(len(vector)):
                    total += vector[j] * np.float64(numbers[j])
                sums[query, place], rows[query, place] = total, first + i
                filled[query] = place + 1
                full |= place + 1 == room
        if full:
            return i + 1
    return len(scores)
