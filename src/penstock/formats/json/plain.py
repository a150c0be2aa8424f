"""One JSON value at a time, read slowly: what is wrong with it, in words, or what it is.

The kernels accept only what is surely right. All else comes here: this is what says what a value
means. A number is text until its column says what it becomes, because decimals, integers and
doubles each make something else of it. What is told is the first thing wrong in the order of the
schema; members of a map and names outside the schema have the order of their UTF-16 units.

Numbers without an exponent and of at most 38 digits are decimals; others are doubles, of which
decimals are made by way of the shortest text that means the double.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.base.errors import BugError
from penstock.formats.json.moments import days_of, micros_of
from penstock.formats.json.shapes import Field, Items, Leaf, Named, Record, Shape
from penstock.formats.limits import JSON_DEPTH_MAX, JSON_DIGITS_MAX

SHOWN_CHARACTERS: Final = 60
"""How much of a wrong value an error shows."""
NOT_TEXT: Final = "not UTF-8 text"
NOT_JSON: Final = "not JSON"
NOT_AN_OBJECT: Final = "not a JSON object"
_DECIMAL_DIGITS: Final = 38
_EXACT: Final = Context(prec=2 * JSON_DIGITS_MAX, Emax=10**9, Emin=-(10**9))
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMERAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?")
_BLANKS: Final = "".join(map(chr, range(33)))
_MISSING: Final = object()
_ESCAPES: Final = {
    **{chr(code): f"\\u{code:04X}" for code in range(32)},
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_TABLE: Final = str.maketrans(_ESCAPES)
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


class Wrong(Exception):
    """A value that is not of its schema, in words."""


class Number(str):
    """The text of a number."""

    __slots__ = ()


def read_plain(
    record: Record, content: bytes, zone: str
) -> tuple[dict[str, Any] | None, str | None]:
    """The value, as Arrow's conversion from Python takes it, or what is wrong."""
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
        return _record(record, value, "", zone), None
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
    """What the text says.

    Raises:
        ValueError: it is not JSON, has a name twice or half a surrogate pair, or nests too deep.
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


def _record(record: Record, value: Mapping[str, Any], prefix: str, zone: str) -> dict[str, Any]:
    made = {field.name: _field(field, value, prefix, zone) for field in record.fields}
    if record.closed:
        unknown = set(value) - made.keys()
        if unknown:
            name = min(unknown, key=_utf16)[:SHOWN_CHARACTERS]
            raise Wrong(f"field {prefix}{name}: is not in the schema")
    return made


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _field(field: Field, value: Mapping[str, Any], prefix: str, zone: str) -> Any:
    where = f"{prefix}{field.name}"
    found = value.get(field.name, _MISSING)
    if found is _MISSING:
        if field.required:
            raise Wrong(f"field {where}: missing")
        return None
    return _value(field.shape, found, where, zone)


def _value(shape: Shape, value: Any, where: str, zone: str) -> Any:
    if value is None:
        if not shape.nullable:
            raise Wrong(f"field {where}: null")
        return None
    match shape:
        case Leaf():
            return _leaf(shape, value, where, zone)
        case Record():
            _need(value, dict, where, "an object")
            return _record(shape, value, f"{where}.", zone)
        case Items():
            _need(value, list, where, "an array")
            _check(shape.checks, value, where)
            return [_value(shape.item, item, f"{where}[]", zone) for item in value]
        case Named():
            _need(value, dict, where, "an object")
            for name in sorted(value, key=_utf16):
                _value(shape.value, value[name], f"{where}{{}}", zone)
            return [
                (name, _value(shape.value, item, f"{where}{{}}", zone))
                for name, item in value.items()
            ]


def _need(value: Any, kind: type, where: str, words: str) -> None:
    if not isinstance(value, kind):
        raise Wrong(f"field {where}: is not {words}")


def _leaf(leaf: Leaf, value: Any, where: str, zone: str) -> Any:
    made = _converted(leaf, value, zone)
    if made is None:
        shown = _shown(value)[:SHOWN_CHARACTERS]
        quote = "'" if type(value) is str else ""
        raise Wrong(f"field {where}: {quote}{shown}{quote} is not {type_name(leaf.data_type)}")
    _check(leaf.checks, made, where)
    return made


def type_name(data_type: pa.DataType) -> str:
    """A type in the words of SQL."""
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _NAMES[data_type]


def _converted(leaf: Leaf, value: Any, zone: str) -> Any:
    """What a leaf becomes, or None."""
    kind: Any = leaf.data_type
    if kind == pa.bool_():
        return value if isinstance(value, bool) else None
    if pa.types.is_decimal(kind):
        return _as_decimal(kind, value, leaf.text_too)
    if isinstance(value, Number):
        return _of_number(kind, value)
    return _of_text(kind, value, leaf.pattern, zone) if type(value) is str else None


def _of_text(kind: Any, text: str, pattern: str | None, zone: str) -> Any:
    if kind == pa.string():
        return text
    if kind == pa.date32():
        return days_of(text)
    if not pa.types.is_timestamp(kind):
        return None
    # Java's end of a text may be followed by the end of a line; so may Python's, by one of these.
    if pattern is not None and re.search(pattern, text.removesuffix("\r"), re.ASCII) is None:
        return None
    return micros_of(text, zone if kind.tz else None)


def _of_number(kind: pa.DataType, number: Number) -> Any:
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        exact = _exact(number)
        if isinstance(exact, float):
            return _of_double(exact, low, high)
        return int(exact) if exact == int(exact) and low <= exact <= high else None
    if kind not in (pa.float32(), pa.float64()):
        return None
    made = _as_single(number) if kind == pa.float32() else float(number)
    if math.isinf(made):
        return None
    return abs(made) if made == 0 and not isinstance(_exact(number), float) else made


def _of_double(value: float, low: int, high: int) -> int | None:
    """The integer that a double is; the double above the highest integer of 64 bits becomes it."""
    if not math.isfinite(value) or value != int(value):
        return None
    if low <= value <= float(high):
        return min(int(value), high)
    return None


def _as_single(number: Number) -> float:
    exact = _exact(number)
    text = _double_text(exact) if isinstance(exact, float) else str(number)
    try:
        return float(pa.scalar(text).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        with np.errstate(over="ignore"):
            return float(np.float32(float(text)))


def _exact(number: Number) -> Decimal | float:
    """A number as it is held: a decimal, or a double."""
    if "e" not in number and "E" not in number:
        made = Decimal(number)
        _, digits, exponent = made.as_tuple()
        if len(digits) <= _DECIMAL_DIGITS and -int(exponent) <= _DECIMAL_DIGITS:
            return made
    return float(number)


def _as_decimal(kind: pa.DataType, value: Any, text_too: bool) -> Decimal | None:
    """A decimal rounded half up to the scale of its type, if its precision has room for it."""
    if isinstance(value, Number):
        exact = _exact(value)
        if isinstance(exact, float):
            if not math.isfinite(exact):
                return None
            exact = Decimal(_double_text(exact))
    elif type(value) is str and text_too:
        text = value.strip(_BLANKS)
        if _NUMERAL.fullmatch(text) is None:
            return None
        exact = _EXACT.create_decimal(text)
    else:
        return None
    return _fitted(exact, kind.precision, kind.scale)


def _fitted(exact: Decimal, precision: int, scale: int) -> Decimal | None:
    if exact == 0:
        return _EXACT.scaleb(Decimal(0), -scale)
    sign, digits, exponent = exact.as_tuple()
    power = int(exponent)
    if len(digits) + power > _DECIMAL_DIGITS:
        return None
    shift = power + scale
    unscaled = int("".join(map(str, digits)))
    if shift >= 0:
        unscaled *= 10**shift
    elif -shift > len(digits):
        unscaled = 0
    else:
        unscaled = (unscaled + 5 * 10 ** (-shift - 1)) // 10**-shift
    if unscaled >= 10**precision:
        return None
    made = Decimal(-unscaled if sign else unscaled)
    return _EXACT.scaleb(made, -scale)


def _double_text(value: float) -> str:
    """A double as Java writes it."""
    if not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if len(digits) == 1:
        # Of two digits at least, which the smallest doubles do not both have.
        sign, digits, exponent = Decimal(f"{value:.1e}").normalize().as_tuple()
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    first = len(digits) + int(exponent) - 1
    text = "".join(map(str, digits))
    if not -3 <= first < 7:
        return f"{minus}{text[0]}.{text[1:] or '0'}E{first}"
    if first < 0:
        return f"{minus}0.{'0' * (-first - 1)}{text}"
    text = text.ljust(first + 2, "0")
    return f"{minus}{text[: first + 1]}.{text[first + 1 :]}"


def _shown(value: Any, depth: int = 0) -> str:
    """A value as JSON without blanks, members in the order of their names, as far as is shown."""
    if type(value) is str:
        return value if depth == 0 else f'"{value.translate(_TABLE)}"'
    if isinstance(value, Number):
        exact = _exact(value)
        if isinstance(exact, float):
            return _double_text(exact)
        return format(exact.normalize(_EXACT), "f") if exact else "0"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    # Every level shows a character at least, so that what lies deeper is never seen.
    if depth > SHOWN_CHARACTERS:
        return ""
    if isinstance(value, list):
        return "[" + ",".join(_shown(item, depth + 1) for item in value) + "]"
    members = (
        f"{_shown(name, depth + 1)}:{_shown(value[name], depth + 1)}"
        for name in sorted(value, key=_utf16)
    )
    return "{" + ",".join(members) + "}"


def _is_multiple(value: Any, step: Any) -> bool:
    """By decimals, as 0.3 is a multiple of 0.1 to everybody but a floating-point unit."""
    made = Decimal(_double_text(value)) if isinstance(value, float) else Decimal(value)
    fitted = _fitted(made, 38, 15)
    return fitted is not None and _EXACT.remainder(fitted, Decimal(str(step))) == 0


def _compared(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """A comparison of doubles where one of the two is a double."""

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
            raise BugError(f"the check {check.keyword} of field {where} is not for this reader")
        if not HOLDS[check.keyword](value, check.bound):
            raise Wrong(f"field {where}: {check.words}")
