"""Memory operations for kernels: copies of bytes, prefetches, and loads of words."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.kernels.compiling import intrinsic, kernel
from penstock.kernels.sources import CHECKED, NATIVE
from penstock.kernels.types import READ

if NATIVE is None:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

_SHORT: Final = 16


@intrinsic
def _copy(context: Any, target: Any, target_at: Any, source: Any, source_at: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = []
        for array, at in ((0, 1), (2, 3)):
            made = context.make_array(signature.args[array])(context, builder, arguments[array])
            pointers.append(cgutils.pointer_add(builder, made.data, arguments[at]))
        cgutils.raw_memcpy(builder, *pointers, arguments[4], ir.Constant(ir.IntType(64), 1))
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@kernel(f"void(uint8[::1], int64, {READ}, int64, int64)", inlined=True)
def copy_bytes(target: Any, target_at: int, source: Any, source_at: int, size: int) -> None:
    """Copy `size` bytes of `source` into `target`.

    Raises:
        IndexError: the copy would read or write outside; this cannot happen if the caller checks.
    """
    if size < 0 or target_at < 0 or source_at < 0:
        raise IndexError("a copy has a negative size or position")
    if target_at + size > target.size or source_at + size > source.size:
        raise IndexError("a copy is outside of an array")
    _copy(target, target_at, source, source_at, size)


@kernel(f"void(uint8[::1], int64, {READ}, int64, int64)", inlined=True)
def append_bytes(target: Any, target_at: Any, source: Any, source_at: Any, size: Any) -> None:
    """Copy bytes into a target that is filled from its beginning to its end.

    Up to sixteen bytes after the copied ones may be overwritten: copying sixteen bytes in a
    register is faster than a call of `memcpy`.
    """
    if (
        0 <= size <= _SHORT
        and 0 <= target_at <= target.size - _SHORT
        and 0 <= source_at <= source.size - _SHORT
    ):
        _copy(target, target_at, source, source_at, 16)
    else:
        copy_bytes(target, target_at, source, source_at, size)


@intrinsic
def prefetch(context: Any, data: Any, at: Any) -> Any:
    """Load an address, which need not be valid, into the processor's caches before it is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        place = cgutils.pointer_add(builder, made.data, arguments[1], byte)
        # Arguments: for reading, into all cache levels, of data.
        builder.call(call, [place, *[ir.Constant(number, value) for value in (0, 3, 1)]])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@intrinsic
def _load(context: Any, data: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        word = ir.IntType(64)
        place = cgutils.pointer_add(builder, made.data, arguments[1], word.as_pointer())
        return builder.load(place, align=1)

    return types.uint64(data, types.int64), generate


@kernel(f"uint64({READ}, int64)", inlined=True)
def peek_word(data: Any, at: Any) -> Any:
    """Return the eight bytes from `at` on as a little-endian word, without checking the bounds.

    Raises:
        IndexError: the bytes are out of bounds, and kernels are checked (`compiling.py`).
    """
    if CHECKED and not 0 <= at <= data.size - 8:
        raise IndexError("a word is outside of an array")
    return _load(data, at)


@kernel(f"uint64({READ}, int64)", inlined=True)
def load_word(data: Any, at: Any) -> Any:
    """Return the eight bytes from `at` on as a little-endian word; bytes after the end are 0."""
    if 0 <= at <= data.size - 8:
        return _load(data, at)
    word = np.uint64(0)
    for index in range(min(8, data.size - at)):
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word


@intrinsic
def _store(context: Any, data: Any, at: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        kind = ir.IntType(64).as_pointer()
        place = cgutils.pointer_add(builder, made.data, arguments[1], kind)
        builder.store(arguments[2], place, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


@kernel("void(uint8[::1], int64, uint64)", inlined=True)
def store_word(data: Any, at: Any, word: Any) -> None:
    """Write a word of eight bytes, little endian.

    Raises:
        IndexError: the bytes are out of bounds.
    """
    if not 0 <= at <= data.size - 8:
        raise IndexError("a word is outside of an array")
    _store(data, at, word)
