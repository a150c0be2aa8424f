"""Conversion of Avro schemas to column trees."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.formats.avro.schema import (
    NULL,
    Decimal,
    Enum,
    Fixed,
    Items,
    Named,
    Node,
    Primitive,
    Record,
    Union,
)
from penstock.formats.columns import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    column_of,
    enum_of,
    list_of,
    map_of,
    struct_of,
)

_TYPES: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
    "date": pa.date32(), "timestamp-millis": TIMESTAMP, "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": TIMESTAMP_NTZ, "local-timestamp-micros": TIMESTAMP_NTZ,
}  # fmt: skip
_LONGS: Final = frozenset({Primitive(kind="int"), Primitive(kind="long")})
_DOUBLES: Final = frozenset({Primitive(kind="float"), Primitive(kind="double")})


def column_of_schema(node: Node) -> Column:
    match node:
        case Primitive(kind=kind, logical=logical):
            return column_of(_TYPES[logical or kind])
        case Fixed(logical=logical):
            return column_of(pa.binary() if logical is None else pa.string())
        case Decimal(precision=precision, scale=scale):
            return column_of(pa.decimal128(precision, scale))
        case Enum(symbols=symbols):
            return enum_of(symbols)
        case Items(item=item):
            return list_of(column_of_schema(item))
        case Named(value=value):
            return map_of(column_of(pa.string()), column_of_schema(value))
        case Record(fields=fields):
            return struct_of([(name, column_of_schema(child)) for name, child in fields])
        case Union():
            return _union_column(node)


def _union_column(node: Union) -> Column:
    branches = valued(node)
    if not branches:
        return column_of(pa.null())
    plain = plain_union(branches)
    if plain is not None:
        return column_of(plain)
    if len(branches) == 1:
        return column_of_schema(branches[0])
    return struct_of(
        [(f"member{number}", column_of_schema(part)) for number, part in enumerate(branches)]
    )


def valued(node: Union) -> list[Node]:
    """Return the branches of a union that are not null."""
    return [branch for branch in node.branches if branch != NULL]


def plain_union(branches: list[Node]) -> pa.DataType | None:
    """Return the number type of a union of int and long, or of float and double; else None.

    Spark's own reader uses the same types.
    """
    if len(branches) < 2:
        return None
    if _LONGS.issuperset(branches):
        return pa.int64()
    return pa.float64() if _DOUBLES.issuperset(branches) else None
