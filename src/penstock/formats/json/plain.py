"""Slow reader of one JSON value: returns the decoded value, or its error as text.

Kernels accept only values that are certainly valid; this reader reads all others. A number stays
text until its column determines how it is converted: an integer or decimal exactly, a double or
float to the nearest. The first error in the order of the schema is reported. Members of a map, and
names outside the schema, are ordered by their UTF-16 units.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import pyarrow as pa

from penstock.base.errors import BugError
from penstock.formats.json.moments import days_of, is_finer, micros_of
from penstock.formats.json.shapes import Field, Items, Leaf, Named, Record, Shape
from penstock.formats.limits import JSON_DEPTH_MAX, JSON_DIGITS_MAX

SHOWN_CHARACTERS: Final = 60
"""Most characters of an invalid value that an error shows."""
NOT_TEXT: Final = "not UTF-8 text"
NOT_JSON: Final = "not JSON"
NOT_AN_OBJECT: Final = "not a JSON object"
_EXPONENT_DIGITS: Final = 9
_EXACT: Final = Context(prec=2 * JSON_DIGITS_MAX, Emax=10**10, Emin=-(10**10), traps=[])
"""Decimal arithmetic that keeps all digits of a number."""
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMERAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_BLANKS: Final = "".join(map(chr, range(33)))
_MISSING: Final = object()
_INTEGERS: Final = {
    data_type: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for data_type, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
}
_NAMES: Final = {
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.bool_(): "boolean",
    pa.date32(): "date", pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz", pa.binary(): "binary",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Rules for converting values that do not fit their column exactly.

    `zone` is the zone of times without one. If `exact`, digits that do not fit are an error.
    Otherwise decimals are rounded half up, and times are cut to microseconds.
    """

    zone: str = "UTC"
    exact: bool = True


class Wrong(Exception):
    """Error of a value that does not match its schema, with a text for users."""


class _Finer(Exception):
    """Error of a value with more digits than its column has."""


class Number(str):
    """Text of a JSON number."""

    __slots__ = ()


def read_plain(
    record: Record, content: bytes, how: Conversion
) -> tuple[dict[str, Any] | None, str | None]:
    """Return a value as a Python dict that Arrow converts, and None; or None and the error text."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None, NOT_TEXT
    try:
        value = _parse(text)
    except (ValueError, RecursionError):
        return None, NOT_JSON
    if not isinstance(value, dict):
        return None, NOT_AN_OBJECT
    try:
        return _record(record, value, "", how), None
    except Wrong as wrong:
        return None, str(wrong)


def _number(text: str) -> Number:
    if len(text) > JSON_DIGITS_MAX and sum(map(str.isdigit, text)) > JSON_DIGITS_MAX:
        raise ValueError(f"a number of more than {JSON_DIGITS_MAX} digits")
    return Number(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name comes twice")
    return made


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_number, parse_float=_number, parse_constant=_refuse
)


def _parse(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: the text is not JSON, has a name twice or half a surrogate pair, or nests too
            deep.
    """
    if text.count("{") + text.count("[") > JSON_DEPTH_MAX and _depth(text) > JSON_DEPTH_MAX:
        raise ValueError(f"nests deeper than {JSON_DEPTH_MAX}")
    value = _DECODER.decode(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _depth(text: str) -> int:
    deepest = depth = 0
    for byte in _STRINGS.sub("", text):
        depth += (byte in "{[") - (byte in "}]")
        deepest = max(deepest, depth)
    return deepest


def _record(
    record: Record, value: Mapping[str, Any], prefix: str, how: Conversion
) -> dict[str, Any]:
    made = {field.name: _field(field, value, prefix, how) for field in record.fields}
    if record.closed:
        unknown = set(value) - made.keys()
        if unknown:
            name = min(unknown, key=_utf16)[:SHOWN_CHARACTERS]
            raise Wrong(f"field {prefix}{name}: is not in the schema")
    return made


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _field(field: Field, value: Mapping[str, Any], prefix: str, how: Conversion) -> Any:
    where = f"{prefix}{field.name}"
    found = value.get(field.name, _MISSING)
    if found is _MISSING:
        if field.required:
            raise Wrong(f"field {where}: missing")
        return None
    return _value(field.shape, found, where, how)


def _value(shape: Shape, value: Any, where: str, how: Conversion) -> Any:
    if value is None:
        if not shape.nullable:
            raise Wrong(f"field {where}: null")
        return "null" if isinstance(shape, Leaf) and shape.data_type is None else None
    match shape:
        case Leaf():
            return _leaf(shape, value, where, how)
        case Record():
            _need(value, dict, where, "an object")
            return _record(shape, value, f"{where}.", how)
        case Items():
            _need(value, list, where, "an array")
            _check(shape.checks, value, where)
            return [_value(shape.item, item, f"{where}[]", how) for item in value]
        case Named():
            _need(value, dict, where, "an object")
            for name in sorted(value, key=_utf16):
                _value(shape.value, value[name], f"{where}{{}}", how)
            return [
                (name, _value(shape.value, item, f"{where}{{}}", how))
                for name, item in value.items()
            ]


def _need(value: Any, kind: type, where: str, words: str) -> None:
    if not isinstance(value, kind):
        raise Wrong(f"field {where}: is not {words}")


def _leaf(leaf: Leaf, value: Any, where: str, how: Conversion) -> Any:
    if leaf.data_type is None:
        return _json(value)
    reason = "is not"
    try:
        made = _converted(leaf, value, how)
    except _Finer as finer:
        made, reason = None, f"{finer} than"
    if made is None:
        shown = (value if type(value) is str else _json(value))[:SHOWN_CHARACTERS]
        quote = "'" if type(value) is str else ""
        remedy = "" if reason == "is not" else '; decimals = "round" keeps the digits that fit'
        raise Wrong(
            f"field {where}: {quote}{shown}{quote} {reason} {type_name(leaf.data_type)}{remedy}"
        )
    _check(leaf.checks, made, where)
    return made


def type_name(data_type: pa.DataType) -> str:
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _NAMES[data_type]


def _converted(leaf: Leaf, value: Any, how: Conversion) -> Any:
    kind: Any = leaf.data_type
    if kind == pa.bool_():
        return value if isinstance(value, bool) else None
    if pa.types.is_decimal(kind):
        return _as_decimal(kind, value, leaf.text_too, how.exact)
    if isinstance(value, Number):
        return _of_number(kind, value)
    return _of_text(kind, value, leaf.pattern, how) if type(value) is str else None


def _of_text(kind: Any, text: str, pattern: str | None, how: Conversion) -> Any:
    if kind in (pa.string(), pa.binary()):
        return text
    if kind == pa.date32():
        return days_of(text)
    if not pa.types.is_timestamp(kind):
        return None
    # Java's `$` also matches before a final line end, but Python's only before a line feed.
    if pattern is not None and re.search(pattern, text.removesuffix("\r"), re.ASCII) is None:
        return None
    made = micros_of(text, how.zone if kind.tz else None)
    if made is not None and how.exact and is_finer(text):
        raise _Finer("has a finer fraction of a second")
    return made


def _of_number(kind: pa.DataType, number: Number) -> Any:
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        exact = _exact(number)
        return int(exact) if low <= exact <= high and exact == int(exact) else None
    if kind not in (pa.float32(), pa.float64()):
        return None
    made = _as_single(number) if kind == pa.float32() else float(number)
    if math.isinf(made):
        return None
    return 0.0 if number == "-0" else made  # an integer, as in Spark's `from_json`


def _as_single(number: Number) -> float:
    """Return the nearest single-precision float; infinity or zero if it is out of range."""
    try:
        return float(pa.scalar(str(number)).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:  # above the largest or below the smallest float
        return math.copysign(math.inf if abs(float(number)) > 1 else 0.0, float(number))


def _exact(number: str) -> Decimal:
    mantissa, _, exponent = number.lower().partition("e")
    digits = exponent.lstrip("+-").lstrip("0")
    if len(digits) > _EXPONENT_DIGITS:
        sign = "-" if exponent.startswith("-") else ""
        return _EXACT.create_decimal(f"{mantissa}e{sign}{'9' * _EXPONENT_DIGITS}")
    return _EXACT.create_decimal(number)


def _as_decimal(kind: Any, value: Any, text_too: bool, exactly: bool) -> Decimal | None:
    """Return a decimal with the scale of its type; None if it does not fit or is not a number.

    Raises:
        _Finer: the number has more digits after the point, and `exactly` forbids rounding.
    """
    if isinstance(value, Number):
        return _fitted(_exact(value), kind.precision, kind.scale, exactly)
    if type(value) is not str or not text_too:
        return None
    text = value.strip(_BLANKS)
    if len(text) > 2 * JSON_DIGITS_MAX or _NUMERAL.fullmatch(text) is None:
        return None
    return _fitted(_exact(text), kind.precision, kind.scale, exactly)


def _fitted(exact: Decimal, precision: int, scale: int, exactly: bool) -> Decimal | None:
    if exact.adjusted() > precision - scale:
        return _EXACT.scaleb(Decimal(0), -scale) if exact == 0 else None
    made = exact.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, _EXACT)
    if made.adjusted() >= precision - scale and made != 0:
        return None
    if exactly and made != exact:
        raise _Finer("has more digits after the point")
    return made


def _json(value: Any) -> str:
    parts: list[str] = []
    waiting: list[Any] = [value]
    while waiting:  # no recursion, because values may nest deeper than Python's calls
        item = waiting.pop()
        if isinstance(item, Number):
            parts.append(item)
            continue
        if not isinstance(item, dict | list):
            parts.append(json.dumps(item, ensure_ascii=False))
            continue
        members = [("", part) for part in item] if isinstance(item, list) else [
            (f"{json.dumps(name, ensure_ascii=False)}:", part) for name, part in item.items()
        ]  # fmt: skip
        parts.append("[" if isinstance(item, list) else "{")
        waiting.append(Number("]" if isinstance(item, list) else "}"))
        for number, (name, part) in reversed(list(enumerate(members))):
            waiting += [part, Number(f",{name}" if number else name)]
    return "".join(parts)


def _is_multiple(value: Any, step: Any) -> bool:
    """Whether a value is a multiple as a decimal; in doubles, 0.3 is no multiple of 0.1."""
    fitted = _fitted(Decimal(str(value)), 38, 15, False)
    return fitted is not None and _EXACT.remainder(fitted, Decimal(str(step))) == 0


def _compared(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a comparison that converts both values to doubles if one of them is a double."""

    def compared(value: Any, bound: Any) -> bool:
        if isinstance(value, float) or isinstance(bound, float):
            return holds(float(value), float(bound))
        return holds(value, bound)

    return compared


HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": _compared(operator.ge),
    "maximum": _compared(operator.le),
    "exclusiveMinimum": _compared(operator.gt),
    "exclusiveMaximum": _compared(operator.lt),
    "multipleOf": _is_multiple,
    "minLength": lambda value, bound: len(value) >= bound,
    "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
    "enum": lambda value, bound: value in bound,
}


def _check(checks: Sequence[Any], value: Any, where: str) -> None:
    for check in checks:
        if check.keyword not in HOLDS:
            raise BugError(f"field {where}: this reader cannot check {check.keyword}")
        if not HOLDS[check.keyword](value, check.bound):
            raise Wrong(f"field {where}: {check.words}")
