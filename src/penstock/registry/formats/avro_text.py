"""Text of an Avro schema: JSON of untrusted clients, bounded in size, depth and digits."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final

from penstock.registry.formats.schema import DEPTH_MAX, SCHEMA_BYTES_MAX, InvalidSchema

JSON_DEPTH_MAX: Final = 3 * DEPTH_MAX + 8
"""Deepest nesting of JSON: an object, its list of fields and a field for each record."""
DIGITS_MAX: Final = 1_000
"""Longest number in characters. Jackson, which Avro's Java library uses, has the same limit."""
SHOWN_MAX: Final = 100
"""Longest value in an error message, in characters."""
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidSchema: the text is not JSON, is too large, nests too deep, or has a key twice, a
            number that is too long or too large, or half a surrogate pair.
    """
    size = utf8_size(text)
    if size > SCHEMA_BYTES_MAX:
        raise InvalidSchema(
            f"The schema has {size} bytes, the limit is {SCHEMA_BYTES_MAX}. Split it into several"
            " schemas with references."
        )
    if text.count("{") + text.count("[") > JSON_DEPTH_MAX and _nests_too_deep(text):
        raise InvalidSchema(f"The schema's JSON nests deeper than {JSON_DEPTH_MAX} levels.")
    try:
        value = _DECODER.decode(text)
    except ValueError as error:
        raise InvalidSchema(f"The schema is not JSON: {shown(str(error))}.") from error
    if "\\u" in text:
        utf8_size(write_json(value))
    return value


def write_json(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return _ENCODER.encode(value)


def utf8_size(text: str) -> int:
    """Return the size of a text in bytes of UTF-8.

    Raises:
        InvalidSchema: the text has half a surrogate pair.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidSchema(
            f"The schema has half a surrogate pair at character {error.start}."
        ) from error


def shown(text: str) -> str:
    """Return a text for an error message, shortened to `SHOWN_MAX` characters."""
    text = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return text.encode(errors="replace").decode()


def shown_json(value: Any) -> str:
    """Return a JSON value for an error message."""
    return shown(write_json(value))


def _nests_too_deep(text: str) -> bool:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > JSON_DEPTH_MAX:
            return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated, _ = counts.most_common(1)[0]
        raise ValueError(f"the key {shown_json(repeated)} occurs twice in an object")
    return made


def _integer(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"a number has {len(digits)} characters, the limit is {DIGITS_MAX}")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > DIGITS_MAX or math.isinf(float(digits)):
        raise ValueError(f"the number {shown(digits)} is too long or too large")
    return float(digits)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
