"""Default values of Avro fields as the words and texts that columns have.

Source: the Avro 1.12 specification, "Complex Types", default values.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final
from uuid import UUID

import numpy as np

from penstock.formats.avro import (
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

SHOWN_CHARACTERS: Final = 100
"""Most characters of a default that an error shows."""
_BITS: Final = {"int": 31, "long": 63}
MILLIS: Final = frozenset(("timestamp-millis", "local-timestamp-millis"))
"""Logical types of milliseconds, whose columns have microseconds."""


class Misfit(Exception):
    """Default that is not a value of its type."""

    def __init__(self, node: Node, value: Any) -> None:
        kind = node.kind if isinstance(node, Primitive) else type(node).__name__.lower()
        super().__init__(f"the default {json.dumps(value)[:SHOWN_CHARACTERS]} is no {kind}")


def matches(node: Node, value: Any) -> bool:
    """Return whether a JSON value has the form of a type's default."""
    match node:
        case Union(branches=branches):
            return any(matches(branch, value) for branch in branches)
        case Items():
            return isinstance(value, list)
        case Named() | Record():
            return isinstance(value, dict)
        case Primitive(kind="null"):
            return value is None
        case Primitive(kind="boolean"):
            return isinstance(value, bool)
        case Primitive(kind="int" | "long" as kind):
            limit = 1 << _BITS[kind]
            return type(value) is int and -limit <= value < limit
        case Primitive(kind="float" | "double"):
            return type(value) in (int, float)
    return isinstance(value, str)


def text_of(node: Node, value: Any) -> bytes | None:
    """Return the bytes of a default whose column has texts or bytes; None for other types.

    Raises:
        Misfit: the default is not of this type.
    """
    match node:
        case Primitive(kind="string"):
            return _encoded(node, value, "utf-8")
        case Primitive(kind="bytes"):
            return _encoded(node, value, "latin-1")
        case Fixed(size_bytes=size, logical=logical):
            octets = _encoded(node, value, "latin-1")
            if len(octets) != size:
                raise Misfit(node, value)
            return octets if logical is None else str(UUID(bytes=octets)).encode()
    return None


def words_of_decimal(node: Decimal, value: Any) -> tuple[int, int]:
    """Return the low and the high word of a decimal's default.

    Raises:
        Misfit: the default is not of this type, or has too many digits.
    """
    octets = _encoded(node, value, "latin-1")
    number = int.from_bytes(octets, "big", signed=True)
    sized = node.size_bytes in (None, len(octets))
    if not octets or not sized or abs(number) >= 10**node.precision:
        raise Misfit(node, value)
    low, high = struct.unpack("<qq", number.to_bytes(16, "little", signed=True))
    return low, high


def word_of(node: Node, value: Any) -> int:
    """Return the word of a default whose column has words.

    Raises:
        Misfit: the default is not of this type.
    """
    match node:
        case Enum(symbols=symbols) if value in symbols:
            return symbols.index(value)
        case Primitive(kind="boolean" | "int" | "long", logical=logical) if matches(node, value):
            word = int(value) * (1_000 if logical in MILLIS else 1)
            if -(1 << 63) <= word < 1 << 63:
                return word
        case Primitive(kind="float" | "double" as kind):
            return _real(node, kind, value)
    raise Misfit(node, value)


def _real(node: Node, kind: str, value: Any) -> int:
    # Avro's Java library accepts numbers as texts there, also NaN and infinities.
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise Misfit(node, value)
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise Misfit(node, value) from error
    if kind == "double":
        return int(np.float64(number).view(np.int64))
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.int32))


def _encoded(node: Node, value: Any, encoding: str) -> bytes:
    """Return a text in an encoding. In Avro, each character of a default of bytes is one byte."""
    if not isinstance(value, str):
        raise Misfit(node, value)
    try:
        return value.encode(encoding)
    except UnicodeEncodeError as error:
        raise Misfit(node, value) from error
