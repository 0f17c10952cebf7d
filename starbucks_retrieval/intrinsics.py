"""What compiled loops share: how Numba compiles them, and instructions that it does not find by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

WIDTH = 32  # scores that are compared at once
IN_ANY_ORDER = {"reassoc", "contract"}  # `fastmath` of loops whose sums may be taken in any order


def readonly(kind: Any, dims: int) -> Any:
    """Return the type of contiguous arrays that a loop only reads."""
    return types.Array(kind, dims, "C", readonly=True)


def compile_loop(*signatures: Any, **options: Any) -> Any:
    """Return a decorator that compiles a function for some signatures, at once; other threads run beside it."""
    return njit(list(signatures), nogil=True, error_model="numpy", **options)


@intrinsic
def single_of(typing_context: Any, number: Any) -> Any:
    """A float32 as it is, or one from the bits of a float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if number == types.float32:
            return arguments[0]
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(number), generate


@intrinsic
def bits_of(typing_context: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32) if number == types.float32 else ir.FloatType())

    return (types.uint32 if number == types.float32 else types.float32)(number), generate


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Where a number of a matrix is, given with its row and column."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    offset = builder.add(builder.mul(arguments[1], builder.extract_value(array.shape, 1)), arguments[2])
    return builder.gep(array.data, [offset])


@intrinsic
def request(typing_context: Any, matrix: Any, row: Any, column: Any) -> Any:
    """Tell the processor that a number will be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(prefetch, [address, number(0), number(3), number(1)])  # for reading, into all caches, data
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), generate


@intrinsic
def ordered(typing_context: Any, score: Any) -> Any:
    """A float32 as it is, or an int16 in the order of bfloat16 from its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0] if score == types.float32 else _ordered(builder, arguments[0], 1)

    return (types.float32 if score == types.float32 else types.int16)(score), generate


def _ordered(builder: Any, bits: Any, count: int) -> Any:
    def constant(number: int) -> Any:
        return ir.Constant(bits.type, [number] * count if count > 1 else number)

    return builder.xor(bits, builder.and_(builder.ashr(bits, constant(15)), constant(0x7FFF)))


@intrinsic
def above(typing_context: Any, scores: Any, row: Any, start: Any, floors: Any) -> Any:
    """Which of the `WIDTH` scores of a row from `start` on are above their floors, as bits. Numba does not find this form by itself."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single = scores.dtype == types.float32
        numbers = ir.VectorType(ir.FloatType() if single else ir.IntType(16), WIDTH)

        def loaded(address: Any) -> Any:
            return builder.load(builder.bitcast(address, numbers.as_pointer()), align=4 if single else 2)

        line = loaded(_address(context, builder, signature, arguments))
        floor_data = context.make_array(floors)(context, builder, arguments[3]).data
        floors_there = loaded(builder.gep(floor_data, [arguments[2]]))
        if single:
            found = builder.fcmp_ordered(">", line, floors_there)
        else:
            found = builder.icmp_signed(">", _ordered(builder, line, WIDTH), floors_there)
        return builder.bitcast(found, ir.IntType(WIDTH))

    return types.uint32(scores, types.int64, types.int64, floors), generate


@intrinsic
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), ir.IntType(64))

    return types.int64(types.uint32), generate


@njit([types.uint16(types.float32)], inline="always")
def bfloat16_bits(number):
    """Round a float32 to the nearest bfloat16, and return its bits."""
    bits = bits_of(number)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
