"""Conversion of PostgreSQL's texts to the values of Debezium's envelopes, by columns.

| PostgreSQL                  | value                                                        |
|-----------------------------|--------------------------------------------------------------|
| smallint, integer, bigint   | int16, int32, int64; oid: int64                              |
| real, double precision      | float32, float64                                             |
| numeric(p, s), money        | bytes: the unscaled number, big-endian; or text, or float64  |
| numeric                     | struct of scale and bytes; or text, or float64               |
| date                        | int32: days since 1970                                       |
| time, timestamp             | milliseconds up to precision 3, else microseconds            |
| timetz, timestamptz         | text in UTC                                                  |
| interval                    | int64: microseconds; a month has 365.25 / 12 days            |
| bytea                       | bytes                                                        |
| bit(1), bit(n), bit varying | boolean; bytes, little-endian, without leading zeros         |
| point                       | struct of x, y, wkb and srid                                 |
| arrays                      | lists of these                                               |
| enum, domain                | text; the value of the base type                             |
| other types                 | text as PostgreSQL writes it                                 |

Texts of common form are converted by Arrow in one call per column. The few others (infinity, years
before Christ or after 9999, numbers of more than 18 digits) are converted one by one.

Source: Debezium's `PostgresValueConverter`; PostgreSQL documentation, "Data Types".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json.writing import json_values

Decimals = Literal["precise", "string", "double"]
Convert = Callable[[Any], Any]

VARIABLE_SCALE: Final = pa.struct([("scale", pa.int32()), ("value", pa.binary())])
POINT: Final = pa.struct(
    [("x", pa.float64()), ("y", pa.float64()), ("wkb", pa.binary()), ("srid", pa.int32())]
)
DAYS_PER_MONTH: Final = 365.25 / 12
DAY_US: Final = 86_400_000_000
INFINITE_US: Final = {
    "infinity": 9_223_372_036_825_200_000,
    "-infinity": -9_223_372_036_832_400_000,
}
"""Microseconds of PostgreSQL's JDBC driver for infinite timestamps."""

_TIMESTAMP: Final = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?$"
_ZONED: Final = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?\+00$"
_DATE: Final = r"^\d{4}-\d\d-\d\d$"
_MOMENT: Final = re.compile(
    r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:[+-][0-9:]+)?( BC)?"
)
_CLOCK: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?"
)
_INTERVAL: Final = re.compile(r"([+-]?\d+) (year|mon|day)s?")
_SPAN: Final = re.compile(r"([+-])?(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?$")
_WHOLE_NUMBER: Final = r"^-?\d{1,18}$"
_PLAIN_NUMBER: Final = r"^-?[0-9.]{1,19}$"
"""Number with a scale that is not 0, of at most 18 digits."""
_DIGITS: Final = 6
"""Digits of microseconds."""
_LENGTH: Final = len("2000-01-01 00:00:00.000000")
_BYTES_MAX: Final = 8
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """Type of a column, after domains were resolved to their base types.

    Attributes:
        id: OID of the base type.
        name: name of the type, such as `int4`.
        kind: `pg_type.typtype`: b base, e enum, c composite, r range, m multirange.
        modifier: type modifier, -1 if there is none.
        element: type of the elements of an array; None for other types.
        delimiter: character between the elements in texts of arrays of this type.
    """

    id: int
    name: str
    kind: str = "b"
    modifier: int = -1
    element: PgType | None = None
    delimiter: str = ","


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRules:
    """Choices of the value conversion."""

    decimals: Decimals = "precise"


def converter(kind: PgType, rules: ValueRules) -> Convert:
    """Return the function that converts a column of texts (large_string) of a type."""
    if kind.element is not None:
        return _array(converter(kind.element, rules), kind.element.delimiter)
    if kind.name == "numeric":
        return _numeric(kind.modifier, rules.decimals)
    if kind.name == "money":
        return _money(rules.decimals)
    if kind.name in ("bit", "varbit"):
        single = kind.name == "bit" and kind.modifier in (-1, 1)
        return _flag_bit if single else _bits
    if kind.name == "timestamptz":
        return _zoned(kind.modifier if kind.modifier >= 0 else _DIGITS)
    if kind.name in ("timestamp", "time"):
        coarse = 0 <= kind.modifier <= 3
        return (_timestamp if kind.name == "timestamp" else _time)(coarse)
    return _CONVERTERS.get(kind.name, _text)


def _text(texts: Any) -> Any:
    return texts.cast(pa.string())


def _to(kind: Any) -> Convert:
    return lambda texts: texts.cast(kind)


def _boolean(texts: Any) -> Any:
    return pc.equal(texts, pa.scalar("t", texts.type))


def _rarely(
    texts: Any, pattern: str, usual: Callable[[Any], Any], each: Callable[[str], Any], kind: Any
) -> Any:
    """Convert the texts that match a pattern by `usual`, and each other text by `each`."""
    fits = pc.match_substring_regex(texts, pattern)
    if pc.all(fits, min_count=0).as_py():
        return usual(texts).cast(kind)
    usually = usual(pc.if_else(fits, texts, None)).cast(kind)
    others = pc.if_else(pc.invert(fits), texts, None).dictionary_encode()
    distinct = pa.array([each(text) for text in others.dictionary.to_pylist()], kind)
    return pc.coalesce(usually, distinct.take(others.indices))


def _distinct(texts: Any, each: Callable[[str], Any], kind: Any) -> Any:
    """Convert each distinct text by `each`."""
    coded = texts.dictionary_encode()
    values = pa.array([each(text) for text in coded.dictionary.to_pylist()], kind)
    return values.take(coded.indices)


# Numbers


def _numeric(modifier: int, decimals: Decimals) -> Convert:
    if decimals == "string":
        return _text
    if decimals == "double":
        return _to(pa.float64())
    if modifier < 0:
        return _variable
    scale = _scale(modifier)
    return lambda texts: _unscaled(texts, scale)


def _scale(modifier: int) -> int:
    """Return the scale of a numeric's type modifier; it may be negative (PostgreSQL 15)."""
    scale = (modifier - 4) & 0x7FF
    return scale - 0x800 if scale >= 0x400 else scale


def _unscaled(texts: Any, scale: int) -> Any:
    """Return numbers of one scale as big-endian two's complement; NaN and infinity are null."""

    def usual(texts: Any) -> Any:
        if scale < 0:
            return _packed(pc.utf8_slice_codeunits(texts, 0, scale))
        return _packed(pc.replace_substring(texts, ".", "") if scale else texts)

    def each(text: str) -> bytes | None:
        if not Decimal(text).is_finite():
            return None
        return _octets(text[:scale] if scale < 0 else text.replace(".", ""))

    return _rarely(texts, _PLAIN_NUMBER if scale else _WHOLE_NUMBER, usual, each, pa.binary())


def _octets(digits: str) -> bytes:
    """Return a whole number as its shortest big-endian two's complement."""
    number = int(Decimal(digits or 0))  # `int` of a text has a limit of digits
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, signed=True)


def _packed(texts: Any) -> Any:
    """Return texts of whole numbers below 10**18 as their shortest two's complement bytes."""
    numbers = pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64())
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    magnitude = np.where(values < 0, ~values, values)
    sizes = np.ones(len(values), np.int64)
    for size in range(1, _BYTES_MAX):
        sizes += magnitude >= 1 << (8 * size - 1)
    octets = values.astype(">i8").view(np.uint8).reshape(-1, _BYTES_MAX)
    used = np.arange(_BYTES_MAX) >= (_BYTES_MAX - sizes)[:, None]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    found = pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(octets[used])]
    )
    return pc.if_else(numbers.is_valid(), found, None) if numbers.null_count else found


def _variable(texts: Any) -> Any:
    """Return numbers of any scale as structs, without zeros at the end of their fractions.

    NaN and infinity are null.
    """

    def each(text: str) -> dict[str, Any] | None:
        if not Decimal(text).is_finite():
            return None
        whole, _, fraction = text.partition(".")
        fraction = fraction.rstrip("0")
        return {"scale": len(fraction), "value": _octets(whole + fraction)}

    return _distinct(texts, each, VARIABLE_SCALE)


def _money(decimals: Decimals) -> Convert:
    def convert(texts: Any) -> Any:
        negative = pc.match_substring_regex(texts, r"^[^0-9]*[-(]")
        digits = pc.replace_substring_regex(texts, r"[^0-9.]", "")
        signed = pc.if_else(negative, pc.binary_replace_slice(digits, 0, 0, "-"), digits)
        return _numeric(((19 << 16) | 2) + 4, decimals)(signed)

    return convert


# Dates and times


def _date(texts: Any) -> Any:
    def each(text: str) -> int | None:
        if text in INFINITE_US:
            return 2**31 - 1 if text == "infinity" else -(2**31)
        return _epoch_us(text) // DAY_US

    return _rarely(
        texts, _DATE, lambda usual: usual.cast(pa.date32()).cast(pa.int32()), each, pa.int32()
    )


def _timestamp(coarse: bool) -> Convert:
    divisor = 1_000 if coarse else 1

    def usual(texts: Any) -> Any:
        micros = texts.cast(pa.timestamp("us")).cast(pa.int64())
        return micros if not coarse else _floor(micros, divisor)

    def each(text: str) -> int:
        micros = INFINITE_US[text] if text in INFINITE_US else _epoch_us(text)
        return _saturated(micros // divisor)

    return lambda texts: _rarely(texts, _TIMESTAMP, usual, each, pa.int64())


def _floor(numbers: Any, divisor: int) -> Any:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) // divisor
    return pa.array(values, pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _zoned(precision: int) -> Convert:
    """Return the converter of timestamps with zone, whose texts are in UTC.

    Results have `precision` digits after the second, and `Z`.
    """
    left_out = _DIGITS - precision if precision else _DIGITS + 1

    def usual(texts: Any) -> Any:
        moments = pc.replace_substring(texts, "+00", "").cast(pa.timestamp("us"))
        found = moments.cast(pa.string())
        if left_out:
            found = pc.utf8_slice_codeunits(found, 0, _LENGTH - left_out)
        found = pc.binary_replace_slice(found, 10, 11, "T")
        return pc.binary_join_element_wise(found, "Z", "")

    def each(text: str) -> str:
        moment = _MOMENT.fullmatch(text)
        if moment is None:
            return text
        year = -int(moment[1]) + 1 if moment[8] else int(moment[1])
        sign = "-" if year < 0 else "+" if year > 9999 else ""
        fraction = "." + (moment[7] or "").ljust(precision, "0") if precision else ""
        return (
            f"{sign}{abs(year):04d}-{moment[2]}-{moment[3]}"
            f"T{moment[4]}:{moment[5]}:{moment[6]}{fraction}Z"
        )

    return lambda texts: _rarely(texts, _ZONED, usual, each, pa.string())


def _epoch_us(text: str) -> int:
    """Return microseconds since 1970 of a date or timestamp of any year, without zone."""
    moment = _MOMENT.fullmatch(text)
    if moment is None:
        raise ValueError(f"{text!r} is not a date or timestamp")
    year = -int(moment[1]) + 1 if moment[8] else int(moment[1])
    # The calendar repeats every 400 years, which have 146,097 days.
    cycles, base = divmod(year - 2000, 400)
    days = (date(base + 2000, int(moment[2]), int(moment[3])) - date(1970, 1, 1)).days
    seconds = int(moment[4] or 0) * 3600 + int(moment[5] or 0) * 60 + int(moment[6] or 0)
    micros = int((moment[7] or "").ljust(6, "0"))
    return (days + cycles * 146_097) * DAY_US + seconds * 1_000_000 + micros


def _saturated(number: int) -> int:
    """Return the nearest number of 64 bits."""
    return max(~_INT64_MAX, min(number, _INT64_MAX))


def _time(coarse: bool) -> Convert:
    divisor, kind = (1_000, pa.int32()) if coarse else (1, pa.int64())

    def each(text: str) -> int:
        clock = _CLOCK.fullmatch(text)
        return 0 if clock is None else _clock_us(clock) // divisor

    def convert(texts: Any) -> Any:
        return _distinct(texts, each, kind)

    return convert


def _clock_us(clock: re.Match[str]) -> int:
    seconds = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])
    return seconds * 1_000_000 + int((clock[4] or "").ljust(6, "0"))


def _zoned_time(texts: Any) -> Any:
    def each(text: str) -> str:
        clock = _CLOCK.fullmatch(text)
        if clock is None:
            return text
        offset = int(clock[6] or 0) * 3600 + int(clock[7] or 0) * 60 + int(clock[8] or 0)
        offset = -offset if clock[5] == "-" else offset
        moment = datetime(1970, 1, 2, tzinfo=UTC) + timedelta(
            microseconds=_clock_us(clock) - offset * 1_000_000
        )
        fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
        return f"{moment:%H:%M:%S}{fraction}Z"

    return _distinct(texts, each, pa.string())


def _interval(texts: Any) -> Any:
    def each(text: str) -> int:
        parts = {unit: int(number) for number, unit in _INTERVAL.findall(text)}
        months = parts.get("year", 0) * 12 + parts.get("mon", 0)
        days = months * DAYS_PER_MONTH + parts.get("day", 0)
        micros = 0
        span = _SPAN.search(text)
        if span is not None:
            seconds = int(span[2]) * 3600 + int(span[3]) * 60 + int(span[4])
            micros = seconds * 1_000_000 + int((span[5] or "").ljust(6, "0"))
            micros = -micros if span[1] == "-" else micros
        return _saturated(int(days * DAY_US) + micros)

    return _distinct(texts, each, pa.int64())


# Bytes and bits


def _bytes(texts: Any) -> Any:
    r"""Return bytes of texts such as `\x00ff`."""
    digits = pc.binary_replace_slice(texts.fill_null(""), 0, 2, "")
    lengths = pc.binary_length(digits).to_numpy(zero_copy_only=False)
    held = digits.buffers()[2]
    data = bytes.fromhex(held.to_pybytes()[: int(lengths.sum())].decode()) if held else b""
    offsets = np.concatenate(([0], np.cumsum(lengths // 2))).astype(np.int64)
    found = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(digits), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    ).cast(pa.binary())
    return pc.if_else(texts.is_valid(), found, None) if texts.null_count else found


def _flag_bit(texts: Any) -> Any:
    return pc.equal(texts, pa.scalar("1", texts.type))


def _bits(texts: Any) -> Any:
    def each(text: str) -> bytes:
        return int(text or "0", 2).to_bytes(-(-len(text.lstrip("0")) // 8), "little")

    return _distinct(texts, each, pa.binary())


def _point(texts: Any) -> Any:
    def each(text: str) -> dict[str, Any]:
        x, y = (float(number) for number in text.strip("()").split(","))
        return {"x": x, "y": y, "wkb": struct.pack("<bIdd", 1, 1, x, y), "srid": None}

    return _distinct(texts, each, POINT)


def _hstore(texts: Any) -> Any:
    """Return texts such as `"a"=>"1", "b"=>NULL` as JSON objects of texts."""
    pair = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")')

    def plain(text: str | None) -> str | None:
        return None if text is None else re.sub(r"\\(.)", r"\1", text)

    def each(text: str) -> list[tuple[str | None, str | None]]:
        return [(plain(found[1]), plain(found[2])) for found in pair.finditer(text)]

    coded = texts.dictionary_encode()
    kind = pa.map_(pa.string(), pa.string())
    maps = pa.array([each(text) for text in coded.dictionary.to_pylist()], kind)
    return json_values(maps).take(coded.indices)


# Arrays


def _array(element: Convert, delimiter: str) -> Convert:
    """Return the converter of arrays; elements of several dimensions are in one list."""

    def convert(texts: Any) -> Any:
        coded = texts.dictionary_encode()
        lists = [array_elements(text, delimiter) for text in coded.dictionary.to_pylist()]
        items = element(pa.array([item for found in lists for item in found], pa.large_string()))
        offsets = np.concatenate(([0], np.cumsum([len(found) for found in lists]))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items).take(coded.indices)

    return convert


@cache
def _element(delimiter: str) -> re.Pattern[str]:
    return re.compile(rf'"((?:[^"\\]|\\.)*)"|([^{{}}{re.escape(delimiter)}"]+)', re.DOTALL)


def array_elements(text: str, delimiter: str = ",") -> list[str | None]:
    """Return the elements of an array's text, such as `{1,NULL,"a b"}`; bounds are ignored.

    Args:
        delimiter: `pg_type.typdelim` of the elements: `;` for box, a comma for other types.
    """
    body = text[text.index("{") :] if "{" in text else "{}"
    return [
        re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        if found[0].startswith('"')
        else None
        if plain == "NULL"
        else plain
        for found in _element(delimiter).finditer(body)
        for quoted, plain in [(found[1], found[2])]
    ]


_CONVERTERS: Final[Mapping[str, Convert]] = {
    "bool": _boolean,
    "int2": _to(pa.int16()),
    "int4": _to(pa.int32()),
    "int8": _to(pa.int64()),
    "oid": _to(pa.int64()),
    "float4": _to(pa.float32()),
    "float8": _to(pa.float64()),
    "date": _date,
    "timetz": _zoned_time,
    "interval": _interval,
    "bytea": _bytes,
    "point": _point,
    "hstore": _hstore,
}
