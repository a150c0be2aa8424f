"""Casts of columns with the results of Java's conversions, as Kafka Connect's `Cast` has them.

| from            | to               | result                                                      |
|-----------------|------------------|-------------------------------------------------------------|
| integer         | smaller integer  | the low bits                                                |
| float           | integer          | truncated, limited to 32 or 64 bits; NaN is 0               |
| number          | boolean          | whether the number without its fraction is not 0            |
| text            | number           | as `parseLong` and `parseDouble` read it, ASCII digits only |
| text            | boolean          | whether it is `true`, in any case                           |
| float           | text             | as Java's `toString`: the shortest digits, `1.0E10`         |
| bytes           | text             | base64                                                      |
| date, timestamp | number           | days or milliseconds since 1970                             |
| date, timestamp | text             | ISO 8601 in UTC: `2024-01-31`, `2024-01-31T10:00:00.000Z`   |
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connect.transforms.dates import parse_format
from penstock.connect.transforms.transform import constant, content, reject
from penstock.formats.json.writing import base64_texts
from penstock.kernels import texts as kernels

TARGETS: Final[Mapping[str, Any]] = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float32": pa.float32(), "float64": pa.float64(), "boolean": pa.bool_(),
    "string": pa.string(),
}  # fmt: skip
_PLAIN: Final = {
    "int": np.isin(np.arange(256), list(b"0123456789-")),
    "flo": np.isin(np.arange(256), list(b"0123456789-.eE")),
}
"""Bytes of texts that Arrow reads as Java does, or rejects, by the first letters of the target."""
_INTEGER: Final = r"^[+-]?[0-9]+$"
_LIMITS: Final = {  # digits of the smallest and the largest number of a type, without sign
    kind: (str(-int(np.iinfo(kind).min)), str(int(np.iinfo(kind).max)))
    for kind in ("int8", "int16", "int32", "int64")
}
_FLOAT: Final = (
    r"^[\x00-\x20]*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)"
    r"[\x00-\x20]*$"
)
_AROUND_FLOAT: Final = r"^[\x00-\x20]*\+?|(?:[fFdD])?[\x00-\x20]*$"
_PLAIN_FLOAT: Final = (1e-3, 1e7)
"""Range in which Java writes a float without an exponent; the second number is excluded."""
_ISO: Final = parse_format("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
_ISO_TIME: Final = parse_format("HH:mm:ss.SSS'Z'")
_ISO_DATE: Final = parse_format("yyyy-MM-dd")


def cast(column: Any, target: str) -> Any:
    """Return a column in another type.

    Args:
        target: a name of `TARGETS`.

    Raises:
        RowsRejected: values have no such form, or their type is not supported.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), TARGETS[target])
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        reject(column.is_valid(), f"a value of type {kind} cannot become {target}")
        return pa.nulls(len(column), TARGETS[target])
    if target == "string":
        return to_text(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _parsed(column.cast(pa.string()), target)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        reject(column.is_valid(), f"bytes cannot become {target}; they can become string")
        return pa.nulls(len(column), TARGETS[target])
    return _narrowed(_numbers(column), target, column)


def to_text(column: Any) -> Any:
    """Return values that are not nested as text."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64_texts(column)
    if pa.types.is_floating(kind):
        return _float_texts(column)
    if pa.types.is_timestamp(kind):
        return _ISO.format(column.cast(pa.timestamp("ms", kind.tz), safe=False))
    if pa.types.is_time(kind):
        times = column.cast(pa.time32("ms"), safe=False).cast(pa.int32())
        return _ISO_TIME.format(times.cast(pa.int64()))
    if pa.types.is_date(kind):
        return _ISO_DATE.format(column.cast(pa.timestamp("ms")))
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return _integer_texts(column)
    return column.cast(pa.string())


def _integer_texts(column: Any) -> Any:
    filled = column.fill_null(0) if column.null_count else column
    numbers = filled.cast(pa.int64()).to_numpy()
    target = np.empty(kernels.INTEGER_BYTES * len(column) + kernels.ROOM_BYTES, np.uint8)
    bounds = np.empty(len(column) + 1, np.int32)
    target.resize(kernels.write_integers(numbers, target, bounds), refcheck=False)
    texts = pa.StringArray.from_buffers(len(column), pa.py_buffer(bounds), pa.py_buffer(target))
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _numbers(column: Any) -> Any:
    """Return values as NumPy numbers or booleans; nulls become 0."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return _whole_decimals(column)
    if pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_time(kind):
        column = column.cast(pa.time32("ms"), safe=False).cast(pa.int32())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    return column.to_numpy(zero_copy_only=False)


def _whole_decimals(column: Any) -> Any:
    """Return the low 64 bits of decimals without their fraction, as `BigDecimal.longValue`."""
    whole = pc.trunc(column).fill_null(0).cast(pa.decimal256(76, 0))
    words = np.frombuffer(whole.buffers()[1], np.int64)
    return words[4 * whole.offset :: 4][: len(whole)]


def _narrowed(numbers: Any, target: str, like: Any) -> Any:
    """Return NumPy numbers in another type, null where `like` is null."""
    if target == "boolean":
        found = (numbers if numbers.dtype == bool else _limited(numbers, np.int64)) != 0
    elif target.startswith("float"):
        decimal = pa.types.is_decimal(like.type)
        source = like.cast(pa.float64()).fill_null(0).to_numpy() if decimal else numbers
        with np.errstate(over="ignore"):
            found = source.astype(target)
    else:
        wide = np.int64 if target == "int64" else np.int32
        found = _limited(numbers, wide).astype(target)
    return pa.array(found, TARGETS[target], mask=_nulls(like))


def _nulls(column: Any) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _limited(numbers: Any, kind: type[np.signedinteger[Any]]) -> Any:
    """Return numbers as integers: floats truncated and limited to the range of the type."""
    if numbers.dtype.kind != "f":
        return numbers.astype(kind)
    limits = np.iinfo(kind)
    wide = np.nan_to_num(numbers.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    high, low = wide >= -float(limits.min), wide < float(limits.min)
    found = np.where(high | low, 0, wide).astype(kind)
    return np.where(high, limits.max, np.where(low, limits.min, found)).astype(kind)


def _parsed(texts: Any, target: str) -> Any:
    if target == "boolean":
        return pc.equal(pc.utf8_lower(texts), "true")
    if target == "float64":
        numbers = np.empty(len(texts))
        filled = texts.fill_null("0") if texts.null_count else texts
        if kernels.read_doubles(*content(filled), numbers):
            return pa.array(numbers, mask=_nulls(texts))
    data, bounds = content(texts)
    if _PLAIN[target[:3]][data[bounds[0] : bounds[-1]]].all():
        with suppress(pa.ArrowInvalid):
            return texts.cast(TARGETS[target])
    return _parsed_floats(texts, target) if target.startswith("float") else _integers(texts, target)


def _integers(texts: Any, target: str) -> Any:
    """Return texts as integers; reject texts that are none, or out of range."""
    reject(pc.invert(pc.match_substring_regex(texts, _INTEGER)), f"{{}} is not an {target}", texts)
    negative = pc.starts_with(texts, "-")
    digits = pc.utf8_ltrim(texts, "+-0")  # the sign is first, so this removes no digit but zeros
    low, high = _LIMITS[target]
    limit = pc.if_else(negative, low, high)
    longer, shorter = pc.greater(pc.utf8_length(digits), len(high)), len(high)
    same = pc.and_(pc.equal(pc.utf8_length(digits), shorter), pc.greater(digits, limit))
    reject(pc.or_(longer, same), f"{{}} is out of range of {target}", texts)
    digits = pc.if_else(pc.equal(digits, ""), "0", digits)
    signed = pc.binary_join_element_wise(pc.if_else(negative, "-", ""), digits, "")
    return signed.cast(TARGETS[target])


def _parsed_floats(texts: Any, target: str) -> Any:
    reject(pc.invert(pc.match_substring_regex(texts, _FLOAT)), f"{{}} is not a {target}", texts)
    plain = pc.replace_substring_regex(texts, _AROUND_FLOAT, "")
    # `Infinity` and `NaN` have no suffix of a type; the pattern removes none of their letters.
    try:
        return plain.cast(TARGETS[target])
    except pa.ArrowInvalid:  # a number is beyond the range of the type
        wide = plain.fill_null("0").to_numpy(zero_copy_only=False).astype("U").astype(np.float64)
    limits = np.finfo(target)
    inside = (np.abs(wide) <= limits.max) & (np.abs(wide) >= limits.tiny)
    exact = pc.if_else(pa.array(inside), plain, "0").cast(TARGETS[target]).fill_null(0).to_numpy()
    with np.errstate(over="ignore", under="ignore"):
        found = np.where(inside, exact, wide.astype(target))
    return pa.array(found, TARGETS[target], mask=_nulls(texts))


def _float_texts(column: Any) -> Any:
    """Return floats as Java's `toString` writes them since JDK 19."""
    text = column.cast(pa.string())
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    size = np.abs(numbers)
    low, high = _PLAIN_FLOAT
    plain = ((size >= low) & (size < high)) | (size == 0)
    if not plain.all():
        text = pc.if_else(pa.array(plain), text, _scientific(text, numbers))
    point = pc.match_substring_regex(text, "^-?[0-9]+$")
    return pc.if_else(point, pc.binary_join_element_wise(text, ".0", ""), text)


def _scientific(text: Any, numbers: Any) -> Any:
    """Return texts of floats with an exponent, such as `-1.25E-7`."""
    parts = pc.extract_regex(
        text, r"^(?P<sign>-?)(?P<whole>[0-9]*)\.?(?P<rest>[0-9]*)(?:e(?P<power>[+-]?[0-9]+))?$"
    )
    sign, whole, rest, power = (pc.struct_field(parts, name) for name in
                                ("sign", "whole", "rest", "power"))  # fmt: skip
    all_digits = pc.binary_join_element_wise(whole, rest, "")
    digits = pc.utf8_ltrim(all_digits, "0")
    zeros = pc.subtract(pc.utf8_length(all_digits), pc.utf8_length(digits))
    given = pc.if_else(pc.equal(power, ""), "0", pc.utf8_ltrim(power, "+")).cast(pa.int32())
    exponent = pc.subtract(pc.add(given, pc.utf8_length(whole)), pc.add(zeros, 1))
    rest = pc.utf8_rtrim(pc.utf8_slice_codeunits(digits, 1), "0")
    written = pc.binary_join_element_wise(
        sign, pc.utf8_slice_codeunits(digits, 0, 1), ".",
        pc.if_else(pc.equal(rest, ""), "0", rest), "E", exponent.cast(pa.string()), "",
    )  # fmt: skip
    names = constant(pa.scalar("NaN"), text)
    for value, name in ((np.inf, "Infinity"), (-np.inf, "-Infinity")):
        names = pc.if_else(pa.array(numbers == value), name, names)
    return pc.if_else(pa.array(np.isfinite(numbers)), written, names)
