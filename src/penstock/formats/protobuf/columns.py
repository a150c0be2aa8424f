"""Conversion of Protobuf messages to column trees."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.formats.columns import (
    TIMESTAMP,
    Column,
    column_of,
    enum_of,
    list_of,
    map_of,
    struct_of,
)
from penstock.formats.protobuf.schema import Field, Message, Scalar

_UINT64: Final = pa.decimal128(20, 0)
_TYPES: Final = {
    "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(),
    "uint32": pa.int64(), "fixed32": pa.int64(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(),
    "uint64": _UINT64, "fixed64": _UINT64,
    "bool": pa.bool_(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
_SPECIAL: Final = {"timestamp": TIMESTAMP, "duration": pa.int64()}


def column_of_message(message: Message) -> Column:
    """Return the column of a message; a time's parts are its seconds and nanoseconds."""
    parts = [(field.name, column_of_field(field)) for field in message.fields]
    if message.special is None:
        return struct_of(parts)
    columns = tuple(column for _, column in parts)
    if message.special == "wrapper":
        return Column(type=columns[0].type, parts=columns)
    return Column(type=_SPECIAL[message.special], parts=columns)


def column_of_field(field: Field) -> Column:
    if field.is_map and isinstance(field.holds, Message):
        key, value = field.holds.fields
        return map_of(_held(key), _held(value))
    return list_of(_held(field)) if field.repeated else _held(field)


def _held(field: Field) -> Column:
    holds = field.holds
    if isinstance(holds, Message):
        return column_of_message(holds)
    return _enum(holds) if holds.kind == "enum" else column_of(_TYPES[holds.kind])


def _enum(scalar: Scalar) -> Column:
    return enum_of(scalar.names, scalar.numbers)
