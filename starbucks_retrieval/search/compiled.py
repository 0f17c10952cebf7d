"""The loops of `starbucks_retrieval.search.loops`. Importing this module compiles them, which takes about a second."""

from __future__ import annotations

import numpy as np
from numba import types

from starbucks_retrieval.intrinsics import (
    IN_ANY_ORDER,
    WIDTH,
    above,
    bfloat16_bits,
    bits_of,
    compile_loop,
    lowest_bit,
    ordered,
    readonly,
    request,
    single_of,
)

_AT_ONCE = 64  # vectors whose scores are compared before they are scored
_DIGIT_BITS, _DIGITS = 11, 2**11  # of a third of a float32's bits, and values of them
_SIGN, _PLACES = 2**31, 2**31 - 1  # a float32's bit of the sign; bits that hold a place in a list
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
    approximate: np.ndarray,
    floors: np.ndarray,
    first: int,
    vectors: np.ndarray,
    queries: np.ndarray,
    errors: np.ndarray,
    scores: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
) -> int:
    """Append the exact scores of those vectors whose approximate scores are above the query's floor.

    It ends early after a vector that filled a list.

    Args:
        approximate: Scores [new rows, queries] float32, or the bits of bfloat16 as uint16; contiguous.
        floors: [queries] float32, or for bfloat16 what `bfloat16_floors` returns.
        first: The row of the first vector.
        vectors: [new rows, dim] float16 or float32, finite, contiguous.
        queries: [queries, dim] float32, contiguous.
        errors: `double_error` of the queries, [queries].
        scores: The lists [queries, room] float32, none of them full. Scores are those of `inner_products`.
        rows: The rows of the vectors in the lists, [queries, room] int64.
        filled: Lengths of the lists, [queries] int64.

    Returns:
        How many of the vectors it took.

    Example:
        >>> scores, rows, filled = np.empty((1, 3), np.float32), np.empty((1, 3), np.int64), np.zeros(1, np.int64)
        >>> vectors, query = np.eye(3, dtype=np.float32), np.array([[0.5, 0.0, 0.25]], np.float32)
        >>> lists, floors, errors = (scores, rows, filled), np.array([0.1], np.float32), np.array([1e-15])
        >>> append_scored(vectors @ query.T, floors, 7, vectors, query, errors, *lists)
        3
        >>> scores[0, : filled[0]].tolist(), rows[0, : filled[0]].tolist()
        ([0.5, 0.25], [7, 9])
    """
    return _append_scored(approximate, floors, first, _as_numba_knows(vectors), queries, errors, scores, rows, filled)


def _as_numba_knows(vectors: np.ndarray) -> np.ndarray:
    vectors = np.ascontiguousarray(vectors)
    return vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors  # it has no float16 on CPUs


def bfloat16_floors(floors: np.ndarray) -> np.ndarray:
    """Return what bits of bfloat16 are compared with instead of float32 numbers: [queries] int16, in the order of bfloat16.

    Example:
        >>> bfloat16_floors(np.array([1.0, -1.0, 0.0], np.float32)).tolist()
        [16256, -16257, 0]
    """
    bits = floors.view(np.int32)
    ordered_bits = bits ^ (bits >> 31 & 0x7FFFFFFF)
    return np.where(bits < 0, (ordered_bits + 1 >> 16) - 1, ordered_bits >> 16).astype(np.int16)


_STORED = (types.uint16, types.float32)  # float16 and float32


@compile_loop(
    *(
        types.void(
            *(readonly(kind, 2), readonly(types.int64, 1), readonly(types.float64, 2)),
            *(readonly(types.int64, 1), types.float64[:, ::1]),
        )
        for kind in _STORED
    ),
    fastmath=IN_ANY_ORDER,
)
def _sum_products(vectors, rows, queries, places, sums):
    step, last = _LINE // vectors.itemsize, len(rows) - 1
    for n in range(len(rows)):
        for start in range(0, vectors.shape[1], step):
            request(vectors, rows[min(n + _AHEAD, last)], start)
        i = places[n] // sums.shape[1]
        vector, query = vectors[rows[n]], queries[i]
        total = 0.0
        for j in range(len(query)):
            total += np.float64(single_of(vector[j])) * query[j]
        sums[i, places[n] - i * sums.shape[1]] = total


@compile_loop(*(types.void(readonly(kind, 2), types.float32[:, ::1]) for kind in _STORED))
def _widen(vectors, single):
    for i in range(len(vectors)):
        for j in range(vectors.shape[1]):
            single[i, j] = single_of(vectors[i, j])


@compile_loop(*(types.void(readonly(kind, 2), types.uint16[:, ::1]) for kind in _STORED))
def _round(vectors, bits):
    for i in range(len(vectors)):
        for j in range(vectors.shape[1]):
            bits[i, j] = bfloat16_bits(single_of(vectors[i, j]))


_LISTS = types.float32[:, ::1], types.int64[:, ::1], types.int64[::1]


@compile_loop(*(types.float64(readonly(kind, 1), readonly(types.float32, 1)) for kind in _STORED))
def _in_fixed_order(vector, query):
    terms = np.empty(len(query))
    for j in range(len(query)):
        terms[j] = np.float64(single_of(vector[j])) * np.float64(query[j])
    width = len(terms)
    while width > 1:
        half = width // 2
        width -= half
        for j in range(half):
            terms[j] += terms[width + j]
    return terms[0]


@compile_loop(
    *(
        types.int64(
            *(readonly(score, 2), readonly(floor, 1), types.int64, readonly(kind, 2)),
            *(readonly(types.float32, 2), readonly(types.float64, 1), *_LISTS),
        )
        for score, floor, kind in [
            (types.float32, types.float32, types.float32),
            *((types.uint16, types.int16, kind) for kind in _STORED),
        ]
    ),
    fastmath=IN_ANY_ORDER,
)
def _append_scored(approximate, floors, first, vectors, queries, errors, scores, rows, filled):
    whole = len(floors) // WIDTH * WIDTH
    places = np.empty(_AT_ONCE * (whole // WIDTH + 1), np.int64)
    masks = np.empty(len(places), np.uint32)
    for top in range(0, len(approximate), _AT_ONCE):
        # First all comparisons, without jumps that depend on them: a processor that guesses one wrong loses a product's time.
        found = 0
        for i in range(top, min(top + _AT_ONCE, len(approximate))):
            for start in range(0, whole, WIDTH):
                places[found], masks[found] = i << 32 | start, above(approximate, i, start, floors)
                found += masks[found] != 0
            if whole < len(floors):
                bits = np.uint32(0)
                for query in range(whole, len(floors)):
                    bits |= np.uint32(ordered(approximate[i, query]) > floors[query]) << np.uint32(query - whole)
                places[found], masks[found] = i << 32 | whole, bits
                found += bits != 0
        last, full = 0, False
        for n in range(found):
            i = places[n] >> 32
            if full and i > last:
                return last + 1
            last, bits = i, masks[n]
            while bits:
                query = (places[n] & 0xFFFFFFFF) + lowest_bit(bits)
                bits &= bits - np.uint32(1)
                total, slack = 0.0, 2 * errors[query]
                for j in range(queries.shape[1]):  # not with an array of a row: counting references to it takes longer
                    total += np.float64(single_of(vectors[i, j])) * np.float64(queries[query, j])
                score = np.float32(total + slack)
                if score != np.float32(total - slack):
                    score = np.float32(_in_fixed_order(vectors[i], queries[query]))
                place = filled[query]
                scores[query, place], rows[query, place] = score + np.float32(0), first + i  # no negative zero
                filled[query] = place + 1
                full |= place + 1 == scores.shape[1]
        if full:
            return last + 1
    return len(approximate)


@compile_loop(types.void(readonly(types.float32, 2), readonly(types.int64, 2), readonly(types.int64, 1), *_LISTS))
def append_lists(more_scores, more_rows, more_filled, scores, rows, filled):
    """Append lists, as `append_scored` fills them, to others of the same queries, which have room for them."""
    for i in range(len(filled)):
        for j in range(more_filled[i]):
            scores[i, filled[i] + j], rows[i, filled[i] + j] = more_scores[i, j], more_rows[i, j]
        filled[i] += more_filled[i]


@compile_loop(types.void(*_LISTS, types.int64, *_LISTS))
def rank_lists(scores, rows, filled, depth, best_scores, best_rows, found):
    """Sort lists by descending score, equal ones in any order, and write the `depth` best and those equal to the last.

    Args:
        scores: [queries, room] float32.
        rows: [queries, room] int64.
        filled: Lengths of the lists, [queries] int64.
        depth: At least 1.
        best_scores: The result [queries, as long as the longest list or more] float32.
        best_rows: The same of the rows, int64.
        found: How many were written, [queries] int64.
    """
    # A radix sort: three times by a part of the bits, equal ones in the order of the time before.
    keys, others = np.empty(scores.shape[1], np.int64), np.empty(scores.shape[1], np.int64)
    starts = np.empty((3, _DIGITS), np.int64)
    for i in range(len(filled)):
        starts[:] = 0
        for j in range(filled[i]):
            bits = np.int64(bits_of(scores[i, j]))
            if bits < _SIGN:  # in descending order of the scores
                bits ^= _SIGN - 1
            keys[j] = bits << 31 | j
            for k in range(3):
                starts[k, bits >> _DIGIT_BITS * k & _DIGITS - 1] += 1
        for k in range(3):
            start = 0
            for digit in range(_DIGITS):
                start, starts[k, digit] = start + starts[k, digit], start
            for j in range(filled[i]):
                digit = keys[j] >> 31 + _DIGIT_BITS * k & _DIGITS - 1
                others[starts[k, digit]] = keys[j]
                starts[k, digit] += 1
            keys, others = others, keys
        found[i] = 0
        for j in range(filled[i]):
            if j >= depth and keys[j] >> 31 != keys[j - 1] >> 31:
                break
            place = keys[j] & _PLACES
            best_scores[i, j], best_rows[i, j] = scores[i, place], rows[i, place]
            found[i] = j + 1
