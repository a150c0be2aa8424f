"""Writer of rows as JSON texts, column by column, with the results of Spark's `to_json`.

A null field is left out, or written with `nulls`; a null element of a list or map is `null`. Bytes
are base64. Times are in UTC with
milliseconds. Finer digits are written too unless they are 0, whereas Spark cuts them. Numbers may
have another notation than Spark's (`1e+10` for `1.0E10`). Invalid UTF-8 becomes the replacement
character. Arrow casts every column to text, and joins names and texts to rows.

Source: JacksonGenerator and JSONOptions of Spark; RFC 8259.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SHORT: Final = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_CONTROLS: Final = [
    (bytes([code]), _SHORT.get(code, f"\\u{code:04X}").encode()) for code in range(32)
]
_NOT_FINITE: Final = (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"'))
_CONSTANT_ROWS: Final = 16
"""Rows from which a column is searched for a single value."""
_NO_BYTES: Final = np.empty(0, np.uint8)
_FINER: Final = {"us": (1_000, 3), "ns": (1_000_000, 6)}
"""For a time unit: units in a millisecond, and digits after the milliseconds."""
_YEARS: Final = (np.datetime64("0000", "ms"), np.datetime64("10000", "ms"))
"""First year with a text of four digits, and the year after the last one."""


def json_rows(rows: pa.StructArray, *, nulls: bool = False) -> pa.StringArray:
    """Return each row as a JSON object; a null row is null.

    Args:
        rows: columns of booleans, integers, floats, decimals, texts, bytes, dates, timestamps, and
            structs, lists and maps (with text keys) of these.
        nulls: whether null fields are written as `null`; else they are left out.

    Raises:
        pa.ArrowException: a column has another type.
    """
    if nulls and rows.type.num_fields:
        return _whole_rows(rows)
    parts: list[Any] = []
    columns = rows.flatten()
    begun = bool(columns) and not columns[0].null_count
    for field, column in zip(rows.type, columns, strict=True):
        quote, text = _text(column, nulls)
        ends = [f",{json.dumps(field.name, ensure_ascii=False)}:{quote}", quote]
        if column.null_count:
            given = column.is_valid()
            ends = [pc.if_else(given, end, "") for end in ends]
            text = text.fill_null("")
        parts += [ends[0], text, *ends[1:][: len(quote)]]
    if begun:
        parts[0] = "{" + parts[0][1:]
    joined = pc.binary_join_element_wise(*parts, pa.repeat("}", len(rows)), "")
    if not begun:  # rows begin with a comma, or if they have no fields with a brace
        opened = pc.binary_replace_slice(joined, 0, 1, "{")
        joined = pc.if_else(pc.equal(joined, "}"), "{}", opened)
    return pc.if_else(rows.is_valid(), joined, None) if rows.null_count else joined


def json_values(column: Any) -> pa.StringArray:
    """Return each value of a column as JSON text, with null fields; a null value is null.

    Raises:
        pa.ArrowException: the column has a type that `json_rows` does not write.
    """
    quote, text = _text(column, True)
    return pc.binary_join_element_wise(quote, text, quote, "") if quote else text


def _whole_rows(rows: Any) -> Any:
    """Return rows as JSON objects in which every field is written."""
    parts: list[Any] = []
    plain = "{"
    for field, column in zip(rows.type, rows.flatten(), strict=True):
        plain += f"{json.dumps(field.name, ensure_ascii=False)}:"
        if _is_constant(column):
            plain += str(_elements(column[:1], True)[0]) + ","
        else:
            parts += [plain, _elements(column, True)]
            plain = ","
    parts.append(pa.repeat(plain.removesuffix(",") + "}", len(rows)))
    joined = pc.binary_join_element_wise(*parts, "")
    return pc.if_else(rows.is_valid(), joined, None) if rows.null_count else joined


def _is_constant(column: Any) -> bool:
    """Whether a column has one value in all rows, which is then written only once."""
    count, kind = len(column), column.type
    if count < _CONSTANT_ROWS or column.null_count == count:
        return bool(count >= _CONSTANT_ROWS)
    # Equal floats may have different texts: 0.0 and -0.0.
    if column.null_count or pa.types.is_nested(kind) or pa.types.is_floating(kind):
        return False
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _text(column: Any, nulls: bool) -> tuple[str, Any]:
    """Return the quote around a column's texts, and the texts."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return '"', _escaped(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return '"', base64_texts(column)
    if pa.types.is_date32(kind):
        return '"', _moments(column, "D", "")
    if pa.types.is_timestamp(kind):
        return '"', _moments(column, kind.unit, "Z" if kind.tz else "")
    if pa.types.is_floating(kind):
        return "", _floats(column)
    if pa.types.is_nested(kind):
        return "", _nested(column, nulls)
    return "", column.cast(pa.string())


def _nested(column: Any, nulls: bool) -> Any:
    if pa.types.is_struct(column.type):
        return json_rows(column, nulls=nulls)
    if pa.types.is_map(column.type):
        keys, items = column.keys, _elements(column.items, nulls)
        pairs = pc.binary_join_element_wise('"', _escaped(keys), '":', items, "")
        return _joined(column, pairs, "{", "}")
    return _joined(column, _elements(column.values, nulls), "[", "]")


def base64_texts(column: Any) -> Any:
    """Return each value of a binary column in base64 (RFC 4648, with padding); null stays null."""
    values = column.cast(pa.large_binary())
    _, places, data = values.buffers()
    # Nulls may have bytes too.
    offsets = np.frombuffer(places, np.int64)[values.offset :][: len(values) + 1]
    lengths = np.diff(offsets)
    total = int(lengths.sum())
    content = np.frombuffer(data, np.uint8)[offsets[0] :][:total] if total else _NO_BYTES
    groups = -(-lengths // 3)
    # Each value begins at a multiple of three bytes, so one call encodes all of them.
    gaps = groups * 3 - lengths
    padded = np.zeros(int(groups.sum()) * 3, np.uint8)
    padded[np.arange(total) + np.repeat(np.cumsum(gaps) - gaps, lengths)] = content
    encoded = np.frombuffer(base64.b64encode(padded.tobytes()), np.uint8).copy()
    ends = np.cumsum(groups) * 4
    encoded[ends[gaps > 0] - 1] = ord("=")
    encoded[ends[gaps > 1] - 2] = ord("=")
    begins = np.concatenate(([0], ends)).astype(np.int64)
    texts = pa.LargeStringArray.from_buffers(
        len(values), pa.py_buffer(begins), pa.py_buffer(encoded)
    ).cast(pa.string())
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _elements(column: Any, nulls: bool) -> Any:
    quote, text = _text(column, nulls)
    if quote:
        text = pc.binary_join_element_wise(quote, text, quote, "")
    return text.fill_null("null")


def _joined(lists: Any, texts: Any, opening: str, closing: str) -> Any:
    """Return one text for each list, joined from the texts of its elements."""
    inner = pc.binary_join(pa.ListArray.from_arrays(lists.offsets, texts), ",")
    outer = pc.binary_join_element_wise(opening, inner, closing, "")
    return pc.if_else(lists.is_valid(), outer, None) if lists.null_count else outer


def _escaped(column: Any) -> Any:
    text = column.cast(pa.binary())
    used = _bytes_of(text)
    for plain in (b"\\", b'"'):
        if (used == plain[0]).any():
            text = pc.replace_substring(text, plain, b"\\" + plain)
    if used.size and used.min() < len(_CONTROLS):
        for plain, escaped in _CONTROLS:
            text = pc.replace_substring(text, plain, escaped)
    try:
        return text.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8; line feeds in texts are escaped by now
        whole = _bytes_of(pc.binary_join_element_wise(text.fill_null(b""), b"\n", b""))
        mended = pa.array(whole.tobytes().decode("utf-8", "replace").split("\n")[:-1], pa.string())
        return pc.if_else(column.is_valid(), mended, None)


def _bytes_of(column: Any) -> Any:
    _, offsets, data = column.buffers()
    if data is None:
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[1]]


def _floats(column: Any) -> Any:
    """Return floats as texts with a point or an exponent; NaN and infinities are quoted."""
    text = column.cast(pa.string())
    text = pc.if_else(
        pc.match_substring_regex(text, "^-?[0-9]+$"),
        pc.binary_join_element_wise(text, ".0", ""),
        text,
    )
    if not pc.all(pc.is_finite(column)).as_py():
        for plain, quoted in _NOT_FINITE:
            text = pc.if_else(pc.equal(text, plain), quoted, text)
    return text


def _moments(column: Any, unit: str, zone: str) -> Any:
    """Return dates or times as texts of ISO 8601; years of more than four digits have a sign."""
    times = unit != "D"
    counts = column.cast(pa.int64() if times else pa.int32()).fill_null(0).to_numpy()
    moments = counts.astype(f"M8[{unit}]").astype("M8[ms]" if times else "M8[D]")
    if moments.size and not (_YEARS[0] <= moments.min() and moments.max() < _YEARS[1]):
        text = pa.array(np.datetime_as_string(moments), pa.string())
        text = pc.replace_substring_regex(text, r"^([0-9]{5})", r"+\1")
        text = pc.replace_substring_regex(text, r"^-([0-9]{3}-)", r"-0\1")
    else:
        text = pa.array(moments).cast(pa.string())
        text = pc.binary_replace_slice(text, 10, 11, "T") if times else text
    if unit in _FINER:
        millisecond, digits = _FINER[unit]
        rest = counts % millisecond
        if rest.any():
            finer = pc.utf8_lpad(pa.array(rest).cast(pa.string()), digits, "0")
            text = pc.binary_join_element_wise(text, pc.if_else(pa.array(rest > 0), finer, ""), "")
    if zone:
        text = pc.binary_join_element_wise(text, zone, "")
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text
