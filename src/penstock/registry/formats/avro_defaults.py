"""Default values of fields.

A default matches a union if it matches any branch, as in version 1.12 of the specification.
Defaults of bytes, fixed types and enums are texts of any content, as in Avro's Java library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.registry.formats.avro_types import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
)
from penstock.registry.formats.json_text import shown, shown_json
from penstock.registry.formats.schema import COMPARISONS_MAX, DEPTH_MAX, InvalidSchema

INTEGER_BITS: Final[Mapping[str, int]] = {"int": 31, "long": 63}
ZERO_BYTES_MAX: Final = 512
"""Largest fixed type that has a default of zeros."""
_NUMBER: Final = re.compile(
    r"\s*[+-]?(NaN|Infinity|(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?)\s*", re.ASCII
)
_ZEROS: Final[Mapping[str, Any]] = {
    "null": None, "boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": "",
    "string": "",
}  # fmt: skip


def matches_field(node: Node, value: Any) -> bool:
    """Return whether a JSON value is a valid default of a field of a type.

    The default of a floating-point field may be the text of a number.

    Raises:
        InvalidSchema: the default nests too deep, has too many parts, or is a value of the record
            that has the field.
    """
    if isinstance(value, str) and node.kind in ("float", "double"):
        return _NUMBER.fullmatch(value) is not None
    return _Check().matches(node, value, 0)


class _Check:
    """Check of one default, bounded because unions may be tried with every part of the value."""

    def __init__(self) -> None:
        self._steps = 0

    def matches(self, node: Node, value: Any, depth: int) -> bool:
        self._steps += 1
        if depth > DEPTH_MAX or self._steps > COMPARISONS_MAX:
            raise InvalidSchema(
                f"The default {shown_json(value)} nests too deep or has too many parts."
            )
        match node:
            case Primitive(kind=kind):
                return _matches_primitive(kind, value)
            case Array(item=item):
                return isinstance(value, list) and all(
                    self.matches(item, part, depth + 1) for part in value
                )
            case Map(value=inner):
                return isinstance(value, dict) and all(
                    self.matches(inner, part, depth + 1) for part in value.values()
                )
            case Union(branches=branches):
                return any(self.matches(branch, value, depth + 1) for branch in branches)
            case Record():
                return isinstance(value, dict) and self._matches_record(node, value, depth)
        return isinstance(value, str)

    def _matches_record(self, record: Record, value: dict[str, Any], depth: int) -> bool:
        if not record.complete:
            raise InvalidSchema(
                f"The default {shown_json(value)} is a value of the record {shown(record.name)},"
                " which contains the field itself. Use null or an empty array."
            )
        for part in record.fields.values():
            if part.name not in value:
                if not part.has_default:
                    return False
            elif not self.matches(part.node, value[part.name], depth + 1):
                return False
        return True


def _matches_primitive(kind: str, value: Any) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = 1 << INTEGER_BITS[kind]
            return type(value) is int and -limit <= value < limit
        case "float" | "double":
            return type(value) in (int, float)
    return isinstance(value, str)


def zero_default(node: Node, depth: int = 0) -> tuple[Any, ...]:
    """Return the simplest default of a type, in a tuple; empty if no small default exists.

    It is null, false, zero, empty, the first symbol, or a record of such values.
    """
    match node:
        case Primitive(kind=kind):
            return (_ZEROS[kind],)
        case Array():
            return ([],)
        case Map():
            return ({},)
        case Union(branches=branches):
            if any(branch.kind == "null" for branch in branches):
                return (None,)
            return zero_default(branches[0], depth) if branches else ()
        case Enum(symbols=symbols, default=default):
            return symbols[:1] if default is None else (default,)
        case Fixed(size_bytes=size) if size <= ZERO_BYTES_MAX:
            return ("\0" * size,)
        case Record() if node.complete and depth == 0:
            return _zero_record(node)
    return ()


def _zero_record(record: Record) -> tuple[Any, ...]:
    made = {}
    for part in record.fields.values():
        if not part.has_default:
            values = zero_default(part.node, 1)
            if not values:
                return ()
            made[part.name] = values[0]
    return (made,)
