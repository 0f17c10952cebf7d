"""Loops between the products of a BERT in bfloat16, compiled by Numba. Importing this module compiles them, in about a second.

Tensors come as the bits of bfloat16, uint16 arrays. `starts` are where texts start among all tokens, and where the last one
ends: [texts + 1] uint64, as Numba compiles slower code for indices that may be negative. Nothing is checked.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types, uint64

from starbucks_retrieval.intrinsics import IN_ANY_ORDER, bfloat16_bits, bits_of, compile_loop, readonly

_BITS, _INDEX = types.uint16, types.uint64
_LOG2_E = np.float32(1.4426950408889634)
# 2^f from 0 to 1 is about 1 + f (A + f (B + f C)), by 0.0001 of it at most: bfloat16 rounds by 0.004.
_A, _B, _C = np.float32(0.6954243), np.float32(0.2263077), np.float32(0.0782680)
_LOWEST = np.float32(-100)  # exponent of the smallest number that counts: products with smaller ones take long
_HIDDEN = np.float32(-1e30)


_STARTS = readonly(_INDEX, 1)


@njit([types.float32(types.uint16)], inline="always")
def _single(bits):
    return bits_of(np.uint32(np.uint32(bits) << np.uint32(16)))


@njit([types.int32(types.int32)], inline="always")
def _in_order(bits):
    """Bits of a float32 to an integer that is ordered as the numbers are, and back: LLVM finds the largest of many."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@compile_loop(types.void(readonly(_BITS, 2), _STARTS, _INDEX, _BITS[:, :, :, ::1]))
def split_heads(states, starts, heads, split):
    """Copy the states of each head of each text.

    Args:
        states: [tokens or more, parts * heads * width]; parts are queries, keys and values, or some of them.
        starts: See above.
        heads: How many there are.
        split: The result [parts, texts * heads, longest or more, width], zero where a text has no token.
    """
    parts, longest, width = uint64(split.shape[0]), uint64(split.shape[2]), uint64(split.shape[3])
    for part in range(parts):
        for text in range(uint64(len(starts) - 1)):
            first, tokens = starts[text], starts[text + uint64(1)] - starts[text]
            for token in range(tokens):
                for head in range(heads):
                    for j in range(width):
                        split[part, text * heads + head, token, j] = states[
                            first + token, (part * heads + head) * width + j
                        ]
            for head in range(heads):
                for token in range(tokens, longest):
                    for j in range(width):
                        split[part, text * heads + head, token, j] = 0


@compile_loop(types.void(_BITS[:, :, ::1], _STARTS, _INDEX), fastmath=IN_ANY_ORDER)
def softmax(scores, starts, heads):
    """Replace the scores of each text's tokens by their softmax over these tokens, in place.

    Args:
        scores: [texts * heads, rows, longest or more]; rows after a text's last token are left as they are.
        starts: See above.
        heads: How many there are.
    """
    rows, width = uint64(scores.shape[1]), uint64(scores.shape[2])
    line, hidden = np.empty(width, np.float32), np.empty(width, np.float32)
    for text in range(uint64(len(starts) - 1)):
        tokens = starts[text + uint64(1)] - starts[text]
        for j in range(width):
            hidden[j] = np.float32(0) if j < tokens else _HIDDEN
        for matrix in range(text * heads, (text + uint64(1)) * heads):
            for row in range(min(tokens, rows)):
                largest = np.int32(-(2**31))
                for j in range(width):
                    line[j] = _single(scores[matrix, row, j]) + hidden[j]
                    largest = max(largest, _in_order(np.int32(bits_of(line[j]))))
                highest = bits_of(np.uint32(_in_order(largest)))
                total = np.float32(0)
                for j in range(width):
                    power = (line[j] - highest) * _LOG2_E
                    power = _LOWEST if power < _LOWEST else power  # NaN stays
                    whole = np.floor(power)
                    rest = power - whole
                    scale = bits_of(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))
                    line[j] = scale * (np.float32(1) + rest * (_A + rest * (_B + rest * _C)))
                    total += line[j]
                share = np.float32(1) / total
                for j in range(width):
                    scores[matrix, row, j] = bfloat16_bits(np.float32(line[j] * share))


@compile_loop(types.void(readonly(_BITS, 3), _STARTS, _INDEX, _BITS[:, ::1]))
def join_heads(split, starts, heads, states):
    """Copy the states of heads back to their tokens.

    Args:
        split: [texts * heads, longest or more, width].
        starts: See above.
        heads: How many there are.
        states: The result [tokens or more, heads * width], zero after the last token.
    """
    width, last = uint64(split.shape[2]), uint64(len(starts) - 1)
    for text in range(last):
        first = starts[text]
        for token in range(starts[text + uint64(1)] - first):
            for head in range(heads):
                for j in range(width):
                    states[first + token, head * width + j] = split[text * heads + head, token, j]
    for token in range(starts[last], uint64(len(states))):
        for j in range(uint64(states.shape[1])):
            states[token, j] = 0


@compile_loop(
    types.void(
        *(readonly(_BITS, 2), readonly(_BITS, 2), readonly(types.float32, 1), readonly(types.float32, 1)),
        *(types.float32, _BITS[:, ::1]),
    ),
    fastmath=IN_ANY_ORDER,
)
def add_norm(states, residual, weight, bias, epsilon, normed):
    """Write the layer norm of the sum of two arrays.

    Args:
        states: [rows, width].
        residual: The same.
        weight: [width] float32.
        bias: [width] float32.
        epsilon: Added to the variance.
        normed: The result [rows, width].
    """
    width = uint64(states.shape[1])
    line = np.empty(width, np.float32)
    for row in range(uint64(len(states))):
        total, squares = np.float32(0), np.float32(0)
        for j in range(width):
            line[j] = _single(states[row, j]) + _single(residual[row, j])
            total += line[j]
        mean = total / np.float32(width)
        for j in range(width):
            squares += (line[j] - mean) * (line[j] - mean)
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
        for j in range(width):
            normed[row, j] = bfloat16_bits(np.float32((line[j] - mean) * scale * weight[j] + bias[j]))
