"""Columns of a frame that become records, and checks of their types.

They are those of Spark's Kafka sink: `value`, optionally `key`, `headers`, `topic` and `partition`,
and also `timestamp`. Other columns are not written. A value that is a struct is written as JSON.
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

from penstock.spark.sink.errors import InvalidRows

VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
KEY: Final = "key"
_JSON_LEAVES: Final = (
    BooleanType, NumericType, StringType, DateType, TimestampType, TimestampNTZType, NullType,
)  # fmt: skip
_CURE: Final = "turn it into text with to_json({name}) or cast({name} as string)"


def written_columns(schema: StructType, *, topic: str | None) -> tuple[str, ...]:
    """Return the columns to write, in the order of this module, for a sink with this topic.

    Raises:
        InvalidRows: no value, no topic, or a column of a type that no record can have.
    """
    if VALUE not in schema.names:
        raise InvalidRows(
            f"the data has no column value, only {', '.join(schema.names) or 'none'}: name the"
            " column to be written value, for example with to_json(struct(*)) as value"
        )
    if topic is None and TOPIC not in schema.names:
        raise InvalidRows("no topic given: set option topic, or add a column topic")
    names = [name for name in _CHECKS if name in schema.names]
    if topic is not None and TOPIC in names:
        names.remove(TOPIC)  # the option wins, as in Spark's Kafka sink
    for name in names:
        right, wanted, fix = _CHECKS[name]
        found = schema[name].dataType
        if not right(found):
            raise InvalidRows(
                f"column {name} is {found.simpleString()}; it must be {wanted}:"
                f" {fix.format(name=name)}"
            )
    return tuple(names)


def _bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType, NullType))


def is_json_value(kind: DataType) -> bool:
    """Whether workers write it within a struct as JSON (`formats/json/writing.py`)."""
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
    VALUE: (_value, "string, binary, or a struct that JSON can have", _CURE),
    "headers": (
        _headers,
        "array<struct<key:string,value:binary>>",
        "build it with array(struct('name' as key, cast(x as binary) as value))",
    ),
    "timestamp": (
        lambda kind: isinstance(kind, (TimestampType, LongType)),
        "timestamp or bigint (milliseconds)",
        "cast({name} as timestamp)",
    ),
    TOPIC: (lambda kind: isinstance(kind, StringType), "string", "cast({name} as string)"),
    PARTITION: (lambda kind: isinstance(kind, IntegerType), "int", "cast({name} as int)"),
}
