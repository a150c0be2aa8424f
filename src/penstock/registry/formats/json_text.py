"""JSON of Avro and JSON schemas: texts of untrusted clients, bounded in size, depth and digits."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from penstock.registry.formats.schema import SCHEMA_BYTES_MAX, InvalidSchema

DIGITS_MAX: Final = 1_000
"""Longest number in characters. Jackson, which Avro's Java library uses, has the same limit."""
EXPONENT_MAX: Final = 10_000
"""Largest decimal exponent of a `Number`, positive or negative."""
SHOWN_MAX: Final = 100
"""Longest value in an error message, in characters."""
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_EXPONENT: Final = re.compile(r"[eE][+-]?0*(\d+)$")


@dataclass(frozen=True, slots=True)
class Number:
    """JSON number. Numbers of equal value are equal, however they are written."""

    literal: str = field(compare=False)
    value: Decimal


def read_json(text: str, *, depth_max: int, exact: bool) -> Any:
    """Return the value of a JSON text.

    Args:
        depth_max: deepest nesting of arrays and objects.
        exact: whether numbers are returned as `Number`, otherwise as int and float.

    Raises:
        InvalidSchema: the text is not JSON, is too large, nests too deep, or has a key twice, a
            number that is too long or too large, or a lone surrogate.
    """
    size = utf8_size(text)
    if size > SCHEMA_BYTES_MAX:
        raise InvalidSchema(
            f"The schema has {size} bytes, the limit is {SCHEMA_BYTES_MAX}. Split it into several"
            " schemas with references."
        )
    if text.count("{") + text.count("[") > depth_max and _nests_deeper(text, depth_max):
        raise InvalidSchema(
            f"The schema's JSON nests deeper than {depth_max} levels. Define inner parts separately"
            " and refer to them."
        )
    try:
        value = (_EXACT_DECODER if exact else _DECODER).decode(text)
    except ValueError as error:
        raise InvalidSchema(f"The schema is not JSON: {error}.") from error
    if "\\u" in text:
        utf8_size(write_json(value))
    return value


def write_json(value: Any) -> str:
    """Return a value as JSON without spaces. A `Number` keeps its spelling."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def utf8_size(text: str) -> int:
    """Return the size of a text in bytes of UTF-8.

    Raises:
        InvalidSchema: the text has a lone surrogate.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidSchema(
            f"The schema has the lone surrogate {text[error.start]!a} at character {error.start},"
            " which UTF-8 cannot encode. Replace it with a character."
        ) from error


def shown(text: str) -> str:
    """Return a text for an error message, shortened to `SHOWN_MAX` characters."""
    text = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return text.encode(errors="replace").decode()


def shown_json(value: Any) -> str:
    """Return a JSON value for an error message."""
    return shown(write_json(value))


def _nests_deeper(text: str, depth_max: int) -> bool:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > depth_max:
            return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidSchema(
            f"The key {shown_json(repeated)} occurs twice in an object of the schema. Remove one"
            " of them."
        )
    return made


def _check_digits(literal: str) -> None:
    if len(literal) > DIGITS_MAX:
        raise InvalidSchema(
            f"The number {shown(literal)} has {len(literal)} characters, the limit is {DIGITS_MAX}."
        )


def _integer(literal: str) -> int:
    _check_digits(literal)
    return int(literal)


def _float(literal: str) -> float:
    _check_digits(literal)
    value = float(literal)
    if math.isinf(value):
        raise InvalidSchema(f"The number {shown(literal)} is too large for a double.")
    return value


def _number(literal: str) -> Number:
    _check_digits(literal)
    exponent = _EXPONENT.search(literal)
    if exponent and int(exponent[1]) > EXPONENT_MAX:
        raise InvalidSchema(
            f"The exponent of the number {shown(literal)} is not from -{EXPONENT_MAX} to"
            f" {EXPONENT_MAX}."
        )
    return Number(literal, Decimal(literal))


def _constant(name: str) -> Any:
    raise InvalidSchema(f"The schema is not JSON: {name} is not a JSON number.")


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, dict):
        mark = "{"
        for key, item in value.items():
            parts.append(f"{mark}{_quoted(key)}:")
            _write(item, parts)
            mark = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, list):
        mark = "["
        for item in value:
            parts.append(mark)
            _write(item, parts)
            mark = ","
        parts.append("]" if value else "[]")
    elif isinstance(value, str):
        parts.append(_quoted(value))
    elif isinstance(value, Number):
        parts.append(value.literal)
    else:
        parts.append(_ENCODER.encode(value))


_quoted: Final = json.encoder.encode_basestring
_ENCODER: Final = json.JSONEncoder(allow_nan=False)
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
_EXACT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_constant
)
