"""Single numbers, texts and enum values, many at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.formats.protobuf.schema import Scalar
from penstock.formats.vectorised import arrays
from penstock.formats.vectorised.cursor import Cursors, Longs, Words, unzigzag

UINT64: Final = pa.decimal128(20, 0)
_TYPES: Final = {
    "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(),
    "uint32": pa.int64(), "fixed32": pa.int64(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(),
    "uint64": UINT64, "fixed64": UINT64,
    "bool": pa.bool_(), "enum": pa.string(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip


def scalar_type(scalar: Scalar) -> pa.DataType:
    return _TYPES[scalar.kind]


def read_scalar(scalar: Scalar, cursors: Cursors, label: str) -> pa.Array:
    """One value per cursor; a cursor is the range of its bytes, without a length in front."""
    match scalar.kind:
        case "string":
            return arrays.texts(cursors, cursors.position, cursors.end - cursors.position, label)
        case "bytes":
            return arrays.binaries(cursors.octets, cursors.position, cursors.end - cursors.position)
        case "float":
            return pa.array(
                cursors.octets.word(cursors.position).astype(np.uint32).view(np.float32)
            )
        case "double":
            return pa.array(cursors.octets.word(cursors.position).view(np.float64))
        case "fixed32" | "sfixed32" | "fixed64" | "sfixed64":
            return _number(scalar, cursors.octets.word(cursors.position))
    return _number(scalar, cursors.varint(label))


def _number(scalar: Scalar, value: Words) -> pa.Array:
    match scalar.kind:
        case "int32" | "sfixed32":
            return pa.array(value.astype(np.uint32).view(np.int32))
        case "sint32":
            return pa.array(unzigzag(value & np.uint64(0xFFFFFFFF)).astype(np.int32))
        case "uint32" | "fixed32":
            return pa.array(value.astype(np.uint32).astype(np.int64))
        case "sint64":
            return pa.array(unzigzag(value))
        case "int64" | "sfixed64":
            return pa.array(value.view(np.int64))
        case "bool":
            return pa.array(value != 0)
        case "enum":
            return _enum(scalar, value.astype(np.uint32).view(np.int32).astype(np.int64))
    return _unsigned(value)


def _unsigned(value: Words) -> pa.Array:
    both = np.zeros(2 * value.size, np.uint64)
    both[0::2] = value
    return pa.Array.from_buffers(UINT64, value.size, [None, pa.py_buffer(both)])


def _enum(scalar: Scalar, value: Longs) -> pa.Array:
    numbers = np.array(scalar.numbers, np.int64)
    index = np.minimum(np.searchsorted(numbers, value), numbers.size - 1)
    known = numbers[index] == value
    names = arrays.choose(scalar.names, index)
    if known.all():
        return names
    digits = pa.array(value).cast(pa.string())
    return pa.compute.if_else(pa.array(known), names, digits)


def zero(scalar: Scalar) -> pa.Scalar:
    """What a field without presence is when it was not written."""
    data_type = scalar_type(scalar)
    if scalar.kind == "enum":
        # Enums of proto3 begin at zero, which is the only place where this is asked.
        found = dict(zip(scalar.numbers, scalar.names, strict=True)).get(0, "0")
        return pa.scalar(found, data_type)
    empty: object = {"string": "", "bytes": b"", "bool": False}.get(scalar.kind, 0)
    return pa.scalar(empty, data_type)
