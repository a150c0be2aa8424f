"""Columns of a data frame that the sink writes, and checks of their types.

The columns are those of Spark's Kafka sink (`value`, and optionally `key`, `headers`, `topic` and
`partition`), and also `timestamp`. Other columns are not written. A `value` that is a struct is
written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.errors import InvalidRows

VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
KEY: Final = "key"
_JSON_LEAVES: Final = (
    BooleanType, NumericType, StringType, DateType, TimestampType, TimestampNTZType, NullType,
)  # fmt: skip
_CURE: Final = "use to_json({name}) or cast({name} as string)"


def written_columns(schema: StructType, *, topic: str | None) -> tuple[str, ...]:
    """Return the columns to write, in the order of `_CHECKS`, for a sink with this topic.

    Raises:
        InvalidRows: the column `value` or any topic is missing, or a column has the wrong type.
    """
    if VALUE not in schema.names:
        raise InvalidRows(
            f"the data has no column named value; its columns: {', '.join(schema.names) or 'none'}."
            " Name the column to write value, for example with to_json(struct(*)) as value"
        )
    if topic is None and TOPIC not in schema.names:
        raise InvalidRows("no topic is set. Set the option topic, or add a column named topic")
    names = [name for name in _CHECKS if name in schema.names]
    if topic is not None and TOPIC in names:
        names.remove(TOPIC)  # the option wins, as in Spark's Kafka sink
    for name in names:
        right, wanted, fix = _CHECKS[name]
        found = schema[name].dataType
        if not right(found):
            raise InvalidRows(
                f"column {name} has type {found.simpleString()}, but must be {wanted}."
                f" To convert it, {fix.format(name=name)}"
            )
    return tuple(names)


def _bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType, NullType))


def is_json_value(kind: DataType) -> bool:
    """Whether a value of this type can be written as JSON inside a struct.

    The workers write it with `formats/json/writing.py`.
    """
    if isinstance(kind, StructType):
        return all(is_json_value(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return is_json_value(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and is_json_value(kind.valueType)
    return isinstance(kind, _JSON_LEAVES)


def _value(kind: DataType) -> bool:
    return _bytes(kind) or (isinstance(kind, StructType) and is_json_value(kind))


def _headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return isinstance(kind, NullType)
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return (
        list(fields) == ["key", "value"]
        and isinstance(fields["key"], StringType)
        and isinstance(fields["value"], (BinaryType, StringType))
    )


_CHECKS: Final[dict[str, tuple[Callable[[DataType], bool], str, str]]] = {
    KEY: (_bytes, "string or binary", _CURE),
    VALUE: (_value, "string, binary, or a struct of types that JSON supports", _CURE),
    "headers": (
        _headers,
        "array<struct<key:string,value:binary>>",
        "use array(struct('name' as key, cast(x as binary) as value))",
    ),
    "timestamp": (
        lambda kind: isinstance(kind, (TimestampType, LongType)),
        "timestamp or bigint (milliseconds)",
        "use cast({name} as timestamp)",
    ),
    TOPIC: (lambda kind: isinstance(kind, StringType), "string", "use cast({name} as string)"),
    PARTITION: (lambda kind: isinstance(kind, IntegerType), "int", "use cast({name} as int)"),
}
