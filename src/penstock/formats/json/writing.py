"""Writer of rows as JSON texts, column by column, with the results of Spark's `to_json`.

A null field is left out; a null element of a list or map is `null`. Times are in UTC with
milliseconds. Finer digits are written too unless they are 0, whereas Spark cuts them. Numbers may
have another notation than Spark's (`1e+10` for `1.0E10`). Invalid UTF-8 becomes the replacement
character. Arrow casts every column to text, and joins names and texts to rows.

Source: JacksonGenerator and JSONOptions of Spark; RFC 8259.
"""

from __future__ import annotations

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
_FINER: Final = {"us": (1_000, 3), "ns": (1_000_000, 6)}
"""For a time unit: units in a millisecond, and digits after the milliseconds."""
_YEARS: Final = (np.datetime64("0000", "ms"), np.datetime64("10000", "ms"))
"""First year with a text of four digits, and the year after the last one."""


def json_rows(rows: pa.StructArray) -> pa.StringArray:
    """Return each row as a JSON object; a null row is null.

    Args:
        rows: columns of booleans, integers, floats, decimals, texts, dates, timestamps, and
            structs, lists and maps (with text keys) of these.

    Raises:
        pa.ArrowException: a column has another type.
    """
    parts: list[Any] = []
    columns = rows.flatten()
    begun = bool(columns) and not columns[0].null_count
    for field, column in zip(rows.type, columns, strict=True):
        quote, text = _text(column)
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


def _text(column: Any) -> tuple[str, Any]:
    """Return the quote around a column's texts, and the texts."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return '"', _escaped(column)
    if pa.types.is_date32(kind):
        return '"', _moments(column, "D", "")
    if pa.types.is_timestamp(kind):
        return '"', _moments(column, kind.unit, "Z" if kind.tz else "")
    if pa.types.is_floating(kind):
        return "", _floats(column)
    if pa.types.is_struct(kind):
        return "", json_rows(column)
    if pa.types.is_map(kind):
        keys, items = column.keys, _elements(column.items)
        pairs = pc.binary_join_element_wise('"', _escaped(keys), '":', items, "")
        return "", _joined(column, pairs, "{", "}")
    if pa.types.is_list(kind):
        return "", _joined(column, _elements(column.values), "[", "]")
    return "", column.cast(pa.string())


def _elements(column: Any) -> Any:
    quote, text = _text(column)
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
