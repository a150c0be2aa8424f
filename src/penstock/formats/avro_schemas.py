"""Avro schemas of Arrow types.

Source: the Avro 1.12 specification, "Schema Declaration", "Logical Types".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.base.errors import InvalidError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPES: Final[Mapping[Any, Any]] = {
    pa.null(): "null", pa.bool_(): "boolean",
    pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.uint8(): "int",
    pa.uint16(): "int", pa.uint32(): "long", pa.int64(): "long",
    pa.uint64(): {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0},
    pa.float16(): "float", pa.float32(): "float", pa.float64(): "double",
    pa.string(): "string", pa.large_string(): "string",
    pa.binary(): "bytes", pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time32("ms"): {"type": "int", "logicalType": "time-millis"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
}  # fmt: skip
_UNITS: Final = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}


def schema_of(kind: Any, name: str) -> Any:
    """Return the Avro schema of an Arrow type as JSON; fields and elements may be null.

    Args:
        name: full name of the record, if the type is a struct. Records in it extend it.

    Raises:
        InvalidError: the type, or the name of a field, does not exist in Avro.
    """
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_struct(kind):
        fields = []
        for field in kind:
            if not _NAME.fullmatch(field.name):
                raise InvalidError(
                    f"Avro has no field name {field.name!r}: rename the field, or use another"
                    " format, such as Parquet"
                )
            inner = _nullable(field.type, f"{name}_{field.name}")
            fields.append({"name": field.name, "type": inner, "default": None})
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_map(kind):
        return {"type": "map", "values": _nullable(kind.item_type, f"{name}_value")}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, f"{name}_item")}
    if pa.types.is_timestamp(kind):
        logical = f"{'' if kind.tz else 'local-'}timestamp-{_UNITS[kind.unit]}"
        return {"type": "long", "logicalType": logical}
    if pa.types.is_decimal128(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    raise InvalidError(f"Avro has no type for {kind}; use another format, such as Parquet")


def _nullable(kind: Any, name: str) -> Any:
    inner = schema_of(kind, name)
    return inner if inner == "null" else ["null", inner]
