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
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from penstock.base.errors import BugError
from penstock.formats.json.json_schema import Field, Items, Leaf, Named, Record, Shape
from penstock.formats.value_format import JSON_DEPTH_MAX, JSON_DIGITS_MAX

# Parser of dates and times, in all the forms that Spark's cast accepts.
#
# A date has ten characters. A time may follow after `T` or a blank. Its minutes, seconds and
# fraction are optional, and its numbers may have one digit. Then a zone may follow: `Z`, an offset,
# `UTC`, `GMT` or `UT` with or without an offset, or a name of the time zone database. Only six
# digits of a fraction are used; `is_finer` finds texts with more. At a change of clocks, a time
# that does not exist is read with the offset before the change, and a time that exists twice is the
# first one.
#
# Source: `stringToTimestamp` and `stringToDate` of Spark's SparkDateTimeUtils; java.time.ZoneId.


_TIME_BLANKS: Final = "".join(map(chr, [*range(33), 127]))
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?=[Tt \n\r\x85\u2028\u2029]|\Z)")
_DAY: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:\r\n|[\n\r])?")
_TIME: Final = re.compile(
    r"[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.][\s\S]*)?)?)?"
)
_OFFSET: Final = re.compile(
    r"([+-])(?:([0-9])|([0-9]{2})(?::?([0-9]{2}))?|([0-9]{2}):([0-9]{2}):([0-9]{2})|"
    r"([0-9]{2})([0-9]{2})([0-9]{2}))"
)
_REGION: Final = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_OFFSET_SECONDS_MAX: Final = 18 * 3600
_ZONES_KEPT: Final = 1_000
_SHORT: Final = {
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago",
    "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Short zone ids of Java: `ZoneId.SHORT_IDS`."""


def days_of(text: str) -> int | None:
    """Return the days since 1970 of a date, which may have a line end; None for other texts."""
    found = _DAY.fullmatch(text)
    return None if found is None else _days(*map(int, found.groups()))


def micros_of(text: str, zone: str | None) -> int | None:
    """Return the microseconds since 1970 of a date with or without a time; None for other texts.

    Args:
        zone: the zone of a text without one. None returns the local time, and ignores a zone in the
            text.
    """
    date = _DATE.match(text)
    days = None if date is None else _days(*map(int, date.groups()))
    time = _time(text[10:].rstrip(_TIME_BLANKS))
    if days is None or time is None:
        return None
    micros, said = time
    shown = days * 86_400_000_000 + micros
    try:
        offset = 0 if said is None else _offset(said.strip(_TIME_BLANKS), shown)
        if zone is None:
            return shown
        if said is None:
            offset = _offset(zone, shown)
    except (ValueError, OSError, LookupError):
        return None
    return shown - offset * 1_000_000


def is_finer(text: str) -> bool:
    """Whether a text that `micros_of` reads has a fraction finer than microseconds."""
    found = _TIME.fullmatch(text[10:].rstrip(_TIME_BLANKS))
    return found is not None and (found[4] or "")[6:].strip("0") != ""


def _days(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a date; None if the date does not exist.

    It is computed in another 400-year cycle of the calendar, because Python's has no year 0.
    """
    era, of_era = divmod(year, 400)
    try:
        moved = datetime(2_000 + of_era, month, day, tzinfo=UTC)
    except ValueError:
        return None
    return moved.toordinal() + (era - 5) * 146_097 - 719_163


def _time(text: str) -> tuple[int, str | None] | None:
    if not text:
        return 0, None
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    hour, minute, second = (int(found[number] or 0) for number in (1, 2, 3))
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int((found[4] or "")[:6].ljust(6, "0"))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, found[5]


def _offset(zone: str, shown: int) -> int:
    """Return the offset of a zone from UTC in seconds, at the local time `shown` in microseconds.

    Raises:
        ValueError, OSError, LookupError: the zone does not exist.
    """
    found = _zone(zone)
    if isinstance(found, int):
        return found
    seconds = min(max(shown // 1_000_000, -62_135_596_800), 253_402_300_799)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    offset = at.replace(tzinfo=found).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


@lru_cache(maxsize=_ZONES_KEPT)
def _zone(name: str) -> int | ZoneInfo:
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-])([0-9]{2}):([0-9])$", r"\1\2:0\3", name)
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    for prefix in ("", "UTC", "GMT", "UT"):
        if name[len(prefix) : len(prefix) + 1] in ("+", "-") and name.startswith(prefix):
            return _seconds(name[len(prefix) :])
    if _REGION.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a zone")
    return ZoneInfo(name)


def _seconds(offset: str) -> int:
    found = _OFFSET.fullmatch(offset)
    if found is None:
        raise ValueError(f"{offset!r} is not an offset")
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    total = (hours * 60 + minutes) * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _OFFSET_SECONDS_MAX:
        raise ValueError(f"{offset!r} is not an offset")
    return total if found[1] == "+" else -total


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
        value = parse(text)
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


def parse(text: str) -> Any:
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
        return json_text(value)
    reason = "is not"
    try:
        made = _converted(leaf, value, how)
    except _Finer as finer:
        made, reason = None, f"{finer} than"
    if made is None:
        shown = (value if type(value) is str else json_text(value))[:SHOWN_CHARACTERS]
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


def json_text(value: Any) -> str:
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
    """Return a JSON Schema comparison: in doubles if one value is a double, otherwise exact."""

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
